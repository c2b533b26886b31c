"""Reads nodes and curves as data frames. MLflow and the storage give equal frames.

`load_runs` and `load_store` return a row for each started run and each evaluation with a result,
sorted by kind and id. Missing strings are "", and missing numbers are NaN (float64). Columns:

- `kind, id`: "run" or "evaluation", and the run_id or eval_id.
- `run_id, view_id`: ids of the run and view that an evaluation measures. A run has its own id and
  "".
- `status`: complete, failed, running or interrupted.
- `method, size, seed, profile, retained, ...`: the study's tags, as strings.
- `measure`: "tokens", "samples", "tasks", or "" for losses. Absent if no node has this tag.
- `num_steps`: training steps of a run.
- `elapsed_s`: seconds that a complete run or evaluation took.
- `num_tokens, parameters, compute_units, hardware_flops, tokens_per_second`: of complete runs.
- `loss/<domain>`: validation loss of an evaluation, or of a complete run with every module on.
- `loss_at_best/<domain>`: a complete run's loss at the step whose mean loss over domains
  is lowest.
- `surprisal/<domain>`: mean -log(probability) of the tokens in sampled continuations, in nats.
- `task/<task>/<metric>`: score on a task of the LM Evaluation Harness.
"""

import io
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import pandas as pd
from mlflow.entities import Run

from gram_platform.config import State
from gram_platform.config.identity import flatten, require_choice
from gram_platform.store import Store
from gram_platform.store.checkpoints import VALIDATION
from gram_platform.store.root import StudyEntries
from gram_platform.store.runs import SIZES, TIMES
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking import entry as content
from gram_platform.tracking.connection import first_line
from gram_platform.tracking.sender import CURVE
from gram_platform.tracking.tracker import Runs
from gram_platform.tracking.values import curve_points, in_utf8, number_of, study_of, unescape

NUMBER_COLUMNS = (*SIZES, *TIMES)
MEASURED = (content.LOSS, content.BEST_LOSS, content.SURPRISAL, content.TASK)
TAGS = ("method", "size", "seed", "profile", "retained")
TEXT_COLUMNS = ("kind", "id", "run_id", "view_id", "status")
CURVE_TYPES = {"run_id": "str", "step": "int64", "domain": "str", "loss": "float64"}

Tags = Mapping[str, str | Iterable[str]]


def load_runs(tracking_uri: str, study: str = "", **tags: str | Iterable[str]) -> pd.DataFrame:
    """Reads the nodes of a study or search from MLflow, or of all studies if `study` is "".

    Keeps only the nodes whose tags have the given values. Raises ValueError for an unknown study,
    and TrackingUnavailable if MLflow cannot be read.
    """
    tracker = Tracker(tracking_uri)
    return _mlflow_frame(tracker.study_nodes(study) if study else tracker.runs(), tags)


def load_store(storage: str | Store, study: str = "", **tags: str | Iterable[str]) -> pd.DataFrame:
    """Reads the same frame as `load_runs`, but from the storage."""
    store = _open_store(storage)
    return _store_frame(store, _study_ids(store, study) if study else None, tags)


def _study_ids(store: Store, study: str) -> set[str]:
    require_choice("study", study, store.list_studies())
    folder = store.study_dir(study)
    if (record := folder.read_json("study.json", StudyEntries)) is not None:
        return {entry["id"] for entry in record["entries"]}
    if not folder.exists("trials.csv"):
        return set()
    trials = pd.read_csv(io.BytesIO(folder.read("trials.csv")), dtype="str", keep_default_na=False)
    return {run_id for runs in trials["runs"] for run_id in runs.split()}


def load_configs(storage: str | Store, run_ids: Iterable[str]) -> dict[str, dict[str, object]]:
    """Reads the configs of runs as {run id: {dotted field name: value}}.

    Raises ValueError for a run that is not in the storage, and for a damaged config.
    """
    store = _open_store(storage)
    return {run_id: flatten(store.run(run_id).config()) for run_id in run_ids}


def load_curves(tracking_uri: str, run_ids: Iterable[str] | None = None) -> pd.DataFrame:
    """Reads the validation curves of runs (by default of all runs) from MLflow.

    The columns are run_id, step, domain and loss. Rows are sorted by run_id, step and domain.
    """
    tracker = Tracker(tracking_uri)
    return _mlflow_curves(tracker.runs(), tracker, run_ids)


def load_store_curves(storage: str | Store, run_ids: Iterable[str] | None = None) -> pd.DataFrame:
    """Reads the same frame as `load_curves`, but from the storage."""
    store, wanted = _open_store(storage), None if run_ids is None else set(run_ids)
    return _curves(
        (run_id, record["step"], name.removeprefix(VALIDATION), float(loss))
        for run_id in store.list_runs()
        if wanted is None or run_id in wanted
        for record in store.run(run_id).records()
        for name, loss in record["metrics"].items()
        if name.startswith(VALIDATION)
    )


def _open_store(storage: str | Store) -> Store:
    return storage if isinstance(storage, Store) else Store(storage)


class Frames(NamedTuple):
    """A study's nodes and the curves of its baselines."""

    nodes: pd.DataFrame
    curves: pd.DataFrame
    # "MLflow", or "the storage", with the reason if MLflow could not be read.
    source: str


def store_frames(store: Store, ids: Collection[str], curves_of: Iterable[str]) -> Frames:
    """Reads the nodes in `ids`, and the curves of runs in `curves_of`, from the storage."""
    nodes = _store_frame(store, ids, {})
    return Frames(nodes, load_store_curves(store, curves_of), "the storage")


def mlflow_frames(tracker: Tracker, ids: Collection[str], curves_of: Collection[str]) -> Frames:
    """Reads the same frames as `store_frames`, but from MLflow.

    Raises TrackingUnavailable if MLflow cannot be read.
    """
    runs = {key: run for key, run in tracker.runs().items() if key[1] in ids}
    return Frames(_mlflow_frame(runs, {}), _mlflow_curves(runs, tracker, curves_of), "MLflow")


def final_frames(
    store: Store, tracker: Tracker | None, ids: Collection[str], curves_of: Collection[str]
) -> Frames:
    """Reads the frames of a study's final table from MLflow, if the last `sync` sent everything.

    Otherwise, or if MLflow cannot be read, reads them from the storage.
    """
    if tracker is None or not tracker.has_sent_all:
        return store_frames(store, ids, curves_of)
    try:
        return mlflow_frames(tracker, ids, curves_of)
    except TrackingUnavailable as error:
        source = f"the storage: {first_line(error)}"
        return store_frames(store, ids, curves_of)._replace(source=source)


def _store_frame(store: Store, ids: Collection[str] | None, tags: Tags) -> pd.DataFrame:
    nodes = (node for node in store.nodes() if ids is None or node.node_id in ids)
    rows = [
        _row(entry.kind, entry.node_id, entry.tags, entry.result_metrics, entry.num_steps)
        for entry in store.concurrently(content.node_entry, nodes)
        if entry is not None
    ]
    return _frame(rows, tags)


def _mlflow_frame(runs: Runs, tags: Tags) -> pd.DataFrame:
    return _frame([_mlflow_row(kind, node_id, run) for (kind, node_id), run in runs.items()], tags)


def _frame(rows: list[dict], tags: Tags) -> pd.DataFrame:
    for name, allowed in tags.items():
        values = {allowed} if isinstance(allowed, str) else set(allowed)
        rows = [row for row in rows if row.get(name, "") in values]
    names = {name for row in rows for name in row}
    measured = sorted(name for name in names if name.startswith(MEASURED))
    other_tags = sorted(names - {*TEXT_COLUMNS, *TAGS, *NUMBER_COLUMNS, *measured})
    text, numbers = [*TEXT_COLUMNS, *TAGS, *other_tags], [*NUMBER_COLUMNS, *measured]
    rows = sorted(rows, key=lambda row: (row["kind"], row["id"]))
    columns = {n: pd.Series([row.get(n, "") for row in rows], dtype="str") for n in text}
    columns |= {n: pd.Series([row.get(n) for row in rows], dtype="float64") for n in numbers}
    return pd.DataFrame(columns)


def _mlflow_curves(runs: Runs, tracker: Tracker, run_ids: Iterable[str] | None) -> pd.DataFrame:
    wanted = None if run_ids is None else set(run_ids)
    return _curves(
        (run_id, step, unescape(key).removeprefix(content.LOSS), loss)
        for (kind, run_id), run in runs.items()
        if kind == "run" and (wanted is None or run_id in wanted) and _has_eval_points(run)
        for key in run.data.metrics
        if key.startswith(content.LOSS)
        # Only a complete run has the tag.
        for step, loss in curve_points(
            run.data.tags.get(CURVE + key.removeprefix(content.LOSS), "")
        )
        or tracker.history(run, key)
    )


def _curves(rows: Iterable[tuple[str, int, str, float]]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=list(CURVE_TYPES)).astype(CURVE_TYPES)
    key = ["run_id", "step", "domain"]
    return frame.sort_values(key).drop_duplicates(key, ignore_index=True)


def _mlflow_row(kind: str, node_id: str, run: Run) -> dict:
    has_result = run.data.tags.get(content.STATUS) == State.COMPLETE
    left_out = () if kind != "run" or _has_eval_points(run) else content.LOSS
    metrics = {
        content.AT_END.get(key) or unescape(key): value
        for key, value in (run.data.metrics.items() if has_result else ())
        if not unescape(key).startswith(left_out)
    }
    metrics = (content.last_as_best(metrics) if kind == "run" else {}) | metrics
    return _row(kind, node_id, run.data.tags, metrics, number_of(run.data.params, "num_steps"))


def _has_eval_points(run: Run) -> bool:
    return number_of(run.data.params, content.NUM_EVAL_POINTS) != 0


def _is_number(name: str) -> bool:
    return name in NUMBER_COLUMNS or name.startswith(MEASURED)


def _row(kind: str, node_id: str, tags: Mapping, metrics: Mapping, num_steps: int | None) -> dict:
    of_study = study_of(tags).items()
    row = {in_utf8(name): in_utf8(value) for name, value in of_study if not _is_number(name)}
    row |= {name: float(value) for name, value in metrics.items() if _is_number(name)}
    row |= {"kind": kind, "id": node_id, "run_id": tags.get(content.VIEW_RUN, "")}
    if kind == "run":
        row["run_id"] = node_id
        row |= {} if num_steps is None else {"num_steps": float(num_steps)}
    texts = {"view_id": content.VIEW_ID, "status": content.STATUS}
    return row | {name: tags.get(tag, "") for name, tag in texts.items()}
