"""Writes what the reports of all searches share: links to runs, counts of trials, tables as text, JSON files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from gram_platform.analysis.tables import aligned
from gram_platform.analysis.trials import RUNS, STATE
from gram_platform.config.identity import to_plain
from gram_platform.pages.results.record import links_note, mlflow_links
from gram_platform.tracking import Tracker, TrackingUnavailable


@dataclass(frozen=True)
class SearchOutput:
    """A search's output: files by name, figures for MLflow, and the text for the terminal."""

    files: Mapping[str, bytes]
    figures: Mapping[str, object]
    text: str


def run_links(tracker: Tracker | None) -> tuple[dict[str, str], str]:
    """Returns {node id: page in MLflow}, and a sentence on what the links need or why there are none."""
    if tracker is None:
        return {}, "There are no links: nothing was written to MLflow."
    try:
        urls = mlflow_links(tracker, tracker.runs())
    except TrackingUnavailable as error:
        return {}, f"There are no links: MLflow is away ({error})."
    return {node_id: url for node_id, url in urls.items() if url}, links_note(tracker.tracking_uri)


def with_run_links(frame: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    """Links `runs` to the page of the first of them."""
    pages = [links.get(next(iter(str(runs).split()), ""), "") for runs in frame[RUNS].fillna("")]
    return frame.assign(**{f"{RUNS}_url": pages})


def counts_text(trials: pd.DataFrame) -> str:
    """Returns the number of trials in each state, as a sentence."""
    counts = trials[STATE].value_counts()
    return f"{len(trials)} trials: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + "."


def frame_text(frame: pd.DataFrame, digits: str = ".3g", missing: str = "-") -> str:
    """Returns a frame for a terminal."""

    def cell(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if pd.isna(value):
            return missing
        return f"{value:{digits}}" if isinstance(value, float) else str(value) or "-"

    rows = [[cell(value) for value in row] for row in frame.itertuples(index=False)]
    return aligned([list(frame.columns), *rows])


def json_file(content: Mapping) -> bytes:
    """Returns the bytes of a JSON file, the same for equal content."""
    return (json.dumps(to_plain(content), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
