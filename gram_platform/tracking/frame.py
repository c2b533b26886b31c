"""Reads runs, evaluations and curves as data frames, from MLflow or from the storage: both give equal frames.

`load_runs` and `load_store` give one row for each run that was attempted and each evaluation that has a result:

| column | meaning |
|---|---|
| kind, id | "run" or "evaluation", and its run_id or eval_id |
| run_id, view_id | the run itself and "", or the evaluated view and its run |
| status | complete, failed, running or interrupted |
| method, size, seed, profile, retained, ... | the tags of the study, all strings, "" where missing |
| measure | if any has one: "tokens", "samples" or "tasks" for such evaluations, "" for those of losses |
| num_steps, num_tokens, parameters, compute_units, hardware_flops | of complete runs (num_steps: of every run) |
| elapsed_s, tokens_per_second | of complete runs; elapsed_s of evaluations too |
| loss/<domain> | validation loss at the end of complete runs, with every module on; of evaluations |
| loss_at_best/<domain> | of complete runs, at the evaluation with the lowest mean |
| surprisal/<domain> | of continuations: mean -log probability of the tokens drawn, in nats |
| task/<task>/<metric> | of scores on tasks of the LM Evaluation Harness |

Rows are sorted by kind and id; numbers are float64, NaN where missing.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from gram_platform.config import State
from gram_platform.store import Store
from gram_platform.store.checkpoints import VALIDATION
from gram_platform.store.runs import SIZES, TIMES
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking import entry as content
from gram_platform.tracking.connection import collector_paused, require_database
from gram_platform.tracking.values import curve_points, in_utf8, number_of, study_of, unescape

TAGS = ("method", "size", "seed", "profile", "retained")
TEXT_COLUMNS = ("kind", "id", "run_id", "view_id", "status")
NUMBER_COLUMNS = (*SIZES, *TIMES)
MEASURED = (content.LOSS, content.BEST_LOSS, content.SURPRISAL, content.TASK)
CURVE_COLUMNS = ("run_id", "step", "domain", "loss")
CURVES = (content.LOSS, VALIDATION)  # + domain: the keys of curves in MLflow, now and in earlier versions

MlflowRuns = Mapping[tuple[str, str], Run]  # by kind and id


def load_runs(tracking_uri: str, *, experiment: str = "gram", **tags: str | Iterable[str]) -> pd.DataFrame:
    """Reads the frame from MLflow, only rows with the given tag values; TrackingUnavailable when it cannot be read."""
    return _mlflow_frame(_mlflow_runs(Tracker(tracking_uri, experiment)), tags)


def load_store(storage: str | Store, **tags: str | Iterable[str]) -> pd.DataFrame:
    """Reads the frame from the storage, only rows with the given tag values (one value or several for each tag)."""
    store = storage if isinstance(storage, Store) else Store(storage)
    entries = map(content.node_entry, store.nodes())
    rows = [_row(e.kind, e.node_id, e.tags, e.result_metrics, e.num_steps) for e in entries if e is not None]
    return _frame(rows, tags)


@collector_paused()
def load_curves(tracking_uri: str, run_ids: Iterable[str] | None = None, *, experiment: str = "gram") -> pd.DataFrame:
    """Reads validation curves from MLflow: run_id, step, domain, loss, sorted in this order; all runs by default."""
    return _mlflow_curves(_mlflow_runs(Tracker(tracking_uri, experiment)), tracking_uri, run_ids)


def load_store_curves(storage: str | Store, run_ids: Iterable[str] | None = None) -> pd.DataFrame:
    """Reads the same curves from the storage."""
    store = storage if isinstance(storage, Store) else Store(storage)
    wanted = None if run_ids is None else set(run_ids)
    rows = []
    for run_id in store.list_runs():
        for record in store.run(run_id).records() if wanted is None or run_id in wanted else ():
            losses = {k: v for k, v in record["metrics"].items() if k.startswith(VALIDATION)}
            rows += [(run_id, record["step"], name, float(loss)) for name, loss in losses.items()]
    return _curves(rows)


class Frames:
    """The frames of a storage and of its MLflow, each read once, at the first use."""

    def __init__(self, storage: str | Store, tracking_uri: str | None = None) -> None:
        self.storage, self.tracking_uri = storage, tracking_uri

    @cached_property
    def stored(self) -> pd.DataFrame:
        """All of `load_store`."""
        return load_store(self.storage)

    @cached_property
    def mlflow_runs(self) -> MlflowRuns:
        """All MLflow runs as {(kind, node_id): run}."""
        assert self.tracking_uri is not None, "there is no MLflow"
        return _mlflow_runs(Tracker(self.tracking_uri))

    @cached_property
    def mirrored(self) -> pd.DataFrame:
        """All of `load_runs`."""
        return _mlflow_frame(self.mlflow_runs, {})

    def mirrored_curves(self, run_ids: Iterable[str]) -> pd.DataFrame:
        """The curves of these runs as `load_curves` gives them."""
        assert self.tracking_uri is not None, "there is no MLflow"
        return _mlflow_curves(self.mlflow_runs, self.tracking_uri, run_ids)


# ------------------------------------------------------------------------------------------------------- rows


def _mlflow_runs(tracker: Tracker) -> MlflowRuns:
    require_database(tracker.tracking_uri)
    return tracker.runs()


def _mlflow_frame(runs: MlflowRuns, tags: Mapping[str, str | Iterable[str]]) -> pd.DataFrame:
    rows = []
    for (kind, node_id), run in runs.items():
        has_result = run.data.tags.get(content.STATUS) == State.COMPLETE  # else they are the curves' points so far
        metrics = {_column(key): value for key, value in run.data.metrics.items()} if has_result else {}
        metrics = (content.last_as_best(metrics) if kind == "run" else {}) | metrics
        rows.append(_row(kind, node_id, run.data.tags, metrics, number_of(run.data.params, "num_steps")))
    return _frame(rows, tags)


def _column(key: str) -> str:
    """Names a metric of MLflow in a frame; earlier versions sent a run's results a second time as `final/...`."""
    return content.AT_END.get(key) or content.shown_name(unescape(key).removeprefix("final/"))


def _row(kind: str, node_id: str, tags: Mapping, metrics: Mapping, num_steps: int | None) -> dict:
    is_run = kind == "run"
    study = {in_utf8(name): in_utf8(value) for name, value in study_of(tags).items() if not name.startswith(MEASURED)}
    study = {name: value for name, value in study.items() if name not in NUMBER_COLUMNS}
    ids = {"run_id": node_id if is_run else tags.get(content.VIEW_RUN, ""), "view_id": tags.get(content.VIEW_ID, "")}
    numbers = {name: float(metrics[name]) for name in NUMBER_COLUMNS if name in metrics}
    numbers |= {name: float(value) for name, value in metrics.items() if name.startswith(MEASURED)}
    numbers |= {"num_steps": float(num_steps)} if is_run and num_steps is not None else {}
    return {**study, **numbers, "kind": kind, "id": node_id, **ids, "status": tags.get(content.STATUS, "")}


def _frame(rows: list[dict], tags: Mapping[str, str | Iterable[str]]) -> pd.DataFrame:
    for name, allowed in tags.items():
        values = {allowed} if isinstance(allowed, str) else set(allowed)
        rows = [row for row in rows if row.get(name, "") in values]
    names = {name for row in rows for name in row}
    measured = sorted(name for name in names if name.startswith(MEASURED))
    other_tags = sorted(names - {*TEXT_COLUMNS, *TAGS, *NUMBER_COLUMNS, *measured})
    text, numbers = [*TEXT_COLUMNS, *TAGS, *other_tags], [*NUMBER_COLUMNS, *measured]
    rows = sorted(rows, key=lambda row: (row["kind"], row["id"]))
    columns = {name: pd.Series([row.get(name, "") for row in rows], dtype="str") for name in text}
    columns |= {name: pd.Series([row.get(name) for row in rows], dtype="float64") for name in numbers}
    return pd.DataFrame(columns)


# ----------------------------------------------------------------------------------------------------- curves


def _mlflow_curves(runs: MlflowRuns, tracking_uri: str, run_ids: Iterable[str] | None) -> pd.DataFrame:
    wanted, client = None if run_ids is None else set(run_ids), MlflowClient(tracking_uri)
    try:
        return _curves(
            (run_id, step, key, loss)
            for (kind, run_id), run in runs.items()
            if kind == "run" and (wanted is None or run_id in wanted)
            for key in run.data.metrics
            if key.startswith(CURVES)
            for step, loss in _points(client, run, key)
        )
    except (MlflowException, OSError) as error:
        raise TrackingUnavailable(f"MLflow at {tracking_uri} cannot be read: {error}") from error


def _points(client: MlflowClient, run: Run, key: str) -> Iterable[tuple[int, float]]:
    """Reads (step, loss) from the run's tag; by a request where there is no such text, as for a running run."""
    points = curve_points(run.data.tags.get(content.CURVE + key.removeprefix(content.LOSS), ""))
    if points:
        return points
    return ((point.step, point.value) for point in client.get_metric_history(run.info.run_id, key))


def _curves(rows: Iterable[tuple[str, int, str, float]]) -> pd.DataFrame:
    """Makes a tidy frame of rows (run_id, step, metric name, loss)."""
    frame = pd.DataFrame(list(rows), columns=CURVE_COLUMNS)
    names = {name: _column(name).removeprefix(content.LOSS) for name in frame["domain"].unique()}
    frame["domain"] = frame["domain"].map(names)
    frame = frame.astype({"run_id": "str", "step": "int64", "domain": "str", "loss": "float64"})
    frame = frame.sort_values(["run_id", "step", "domain"], ignore_index=True)
    return frame.drop_duplicates(["run_id", "step", "domain"], ignore_index=True)
