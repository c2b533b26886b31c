"""Makes what the reports of all searches share: frames of their nodes, links to runs, the files."""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from gram_platform.analysis.ratios import PREFIX
from gram_platform.analysis.trials import RUNS, SEARCH, STATE, TRIAL
from gram_platform.config import State
from gram_platform.config.identity import metric_name, to_plain
from gram_platform.engine.life import is_divergence
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.record import entries_of, tags_frame
from gram_platform.pages.results.results import named, named_attacks
from gram_platform.store import Store
from gram_platform.tracking.entry import SEARCH as SEARCH_TAG
from gram_platform.tracking.entry import run_metrics
from gram_platform.tracking.frame import load_store_curves
from gram_platform.tracking.values import text_for_people
from gram_platform.tracking.views import TrialColumns


def with_run_links(frame: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    """Links `runs` to the page of the first of them."""
    pages = [links.get(next(iter(str(runs).split()), ""), "") for runs in frame[RUNS].fillna("")]
    return frame.assign(**{f"{RUNS}_url": pages})


def trial_tags(trials: bytes) -> dict[str, dict[str, str]]:
    """Returns {run id: {tag that names a search: the trials that use the run}} of a
    `trials.csv`."""
    found: dict[str, dict[str, list[str]]] = {}
    frame = pd.read_csv(io.BytesIO(trials), dtype="str", keep_default_na=False)
    for search, trial, runs in frame[[SEARCH, TRIAL, RUNS]].itertuples(index=False):
        for run_id in runs.split():
            found.setdefault(run_id, {}).setdefault(
                metric_name(f"{SEARCH_TAG}.{search}"), []
            ).append(trial)
    return {
        run_id: {tag: text_for_people(", ".join(names)) for tag, names in tags.items()}
        for run_id, tags in found.items()
    }


def trial_metrics(trials: bytes, columns: TrialColumns) -> dict[str, dict[str, float]]:
    """Returns {run id: {metric: value}} of a `trials.csv`, for the runs of one trial alone, with
    its finite values.

    {} without trials, and for a search that declares no columns.
    """
    if not trials or columns == TrialColumns():
        return {}
    frame = pd.read_csv(io.BytesIO(trials))
    of_trials = frame[frame[STATE] == State.COMPLETE].to_dict("records")
    uses = Counter(run_id for trial in frame[RUNS].fillna("") for run_id in str(trial).split())
    return {
        run_id: {
            name: float(value)
            for name, value in columns.metrics_of(trial).items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for trial in of_trials
        for run_id in str(trial[RUNS]).split()
        if uses[run_id] == 1
    }


def counts_text(trials: pd.DataFrame) -> str:
    """Returns the number of trials in each state, as a sentence."""
    counts = trials[STATE].value_counts()
    return (
        f"{len(trials)} trials: "
        + ", ".join(f"{count} {state}" for state, count in counts.items())
        + "."
    )


def json_file(content: Mapping) -> bytes:
    """Returns the bytes of a JSON file, the same for equal content."""
    return (
        json.dumps(to_plain(content), indent=1, sort_keys=True, allow_nan=False) + "\n"
    ).encode()


def result_frame(nodes: Iterable[Node], results: Mapping[str, Mapping]) -> pd.DataFrame:
    """Returns results by node id in the columns of the stored frame that `view_frame` and
    `attack_frame` read."""
    rows = []
    for node in nodes:
        result = results[node.id]
        if node.is_run:
            run_id, losses = node.id, run_metrics(result, {})
        else:
            run_id = node.config.view.run_id
            losses = {PREFIX + domain: value for domain, value in result["losses"].items()}
        rows.append({"id": node.id, "run_id": run_id, "status": State.COMPLETE, **losses})
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["id", "run_id", "status"])


def declared_frame(nodes: Iterable[Node]) -> pd.DataFrame:
    """Returns the names of every view that the nodes evaluate: see `tags_frame`."""
    return tags_frame(entries_of(nodes), "evaluation")


def view_frame(nodes: Iterable[Node], frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the complete evaluations of a stored frame under the nodes' names, as
    `tables.analyse` takes them."""
    return named(declared_frame(nodes), frame[frame["status"] == State.COMPLETE])


def attack_frame(nodes: Iterable[Node], frame: pd.DataFrame) -> pd.DataFrame:
    """Returns every attack among the nodes as `tables.analyse` takes it; the loss is NaN without a
    result."""
    return named_attacks(
        tags_frame(entries_of(nodes), "attack"), frame[frame["status"] == State.COMPLETE]
    )


def curve_frame(nodes: Iterable[Node], curves: pd.DataFrame) -> pd.DataFrame:
    """Returns the validation curves of these runs with `method, size, seed`, as `tables.analyse`
    takes them."""
    runs = tags_frame(entries_of(nodes), "run").rename(columns={"id": "run_id"})
    return curves.merge(runs[["run_id", "method", "size", "seed"]], on="run_id")


def baseline_frames(store: Store, nodes: Sequence[Node]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns (evaluations, curves) of the baselines that are complete in the storage, for compute
    ratios."""
    results = {n.id: store.evaluation(n.id).result() for n in nodes if not n.is_run}
    done = [node for node in nodes if results.get(node.id) is not None]
    evaluations = view_frame(done, result_frame(done, results))
    return evaluations, curve_frame(
        nodes, load_store_curves(store, [n.id for n in nodes if n.is_run])
    )


def trial_state(nodes: Iterable[Node], frame: pd.DataFrame, store: Store) -> tuple[str, str]:
    """Returns (state, message) of a trial; the message says why it diverged or failed."""
    complete = set(frame.loc[frame["status"] == State.COMPLETE, "id"])
    left = [node for node in nodes if node.id not in complete]
    if not left:
        return State.COMPLETE, ""
    begun = [store.run(node.id) for node in left if node.is_run]
    for run in begun:
        if run.status() == State.FAILED:
            failure = run.failure() or {}
            return State.DIVERGED if is_divergence(failure) else State.FAILED, str(
                failure.get("message", "")
            )
    return (
        State.RUNNING if any(run.status() == State.RUNNING for run in begun) else State.WAITING
    ), ""
