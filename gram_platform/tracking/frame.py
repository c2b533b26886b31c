"""Runs, evaluations and curves as data frames, from MLflow or from the storage: the two give equal frames.

`load_runs` and `load_store` have one row for each run that was attempted and each evaluation that has a result:

| column | meaning |
|---|---|
| kind, id | "run" or "evaluation", and its run_id or eval_id |
| run_id, view_id | the run itself and "", or the evaluated view and its run |
| status | complete, failed, running or interrupted |
| method, size, seed, profile, retained, ... | the tags of the study, all strings, missing ones "" |
| measure | if there is any: "tokens" or "samples" for evaluations of that kind, "" for plain ones |
| num_steps, num_tokens, parameters, compute_units, hardware_flops | of complete runs (num_steps: of every run) |
| elapsed_s, tokens_per_second | of complete runs; elapsed_s of evaluations too |
| final/<metric>, loss/<domain> | of complete runs; of evaluations |
| surprisal/<domain> | of continuations: mean -log probability of the tokens drawn, in nats |

Rows are sorted by kind and id; numbers are float64, NaN where they do not exist.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

import pandas as pd
from mlflow.entities import Run

from gram_platform.store import Store
from gram_platform.tracking import Tracker
from gram_platform.tracking import entry as content
from gram_platform.tracking.collector import collector_paused
from gram_platform.tracking.connection import require_database
from gram_platform.tracking.histories import read_histories

TAGS = ("method", "size", "seed", "profile", "retained")
TEXT_COLUMNS = ("kind", "id", "run_id", "view_id", "status")
NUMBER_COLUMNS = content.SIZES + content.TIMES
MEASURED = ("final/", content.LOSS, content.SURPRISAL)
CURVE_COLUMNS = ("run_id", "step", "domain", "loss")


def load_runs(tracking_uri: str, *, experiment: str = "gram", **tags: str | Iterable[str]) -> pd.DataFrame:
    """The frame from MLflow, rows restricted to the given tag values; TrackingUnavailable when it cannot be read."""
    return _mlflow_frame(_mlflow_runs(Tracker(tracking_uri, experiment)), tags)


def load_store(storage: str | Store, **tags: str | Iterable[str]) -> pd.DataFrame:
    """The frame from the storage, rows restricted to the given tag values (one, or several to choose from)."""
    store = storage if isinstance(storage, Store) else Store(storage)
    entries = [content.run_entry(store.run(run_id)) for run_id in store.list_runs()]
    entries += [content.evaluation_entry(store.evaluation(eval_id)) for eval_id in store.list_evaluations()]
    return _frame([_store_row(entry) for entry in entries if entry is not None], tags)


def load_links(tracking_uri: str, *, experiment: str = "gram", ui_url: str | None = None) -> pd.DataFrame:
    """kind, id, mlflow_run_id and url (None without a server or `ui_url`) of everything in MLflow."""
    tracker = Tracker(tracking_uri, experiment)
    columns = ("kind", "id", "mlflow_run_id", "url")
    rows = [
        (*node, run.info.run_id, tracker.run_url(run.info.run_id, ui_url))
        for node, run in _mlflow_runs(tracker).items()
    ]
    return pd.DataFrame(sorted(rows), columns=columns)


@collector_paused()
def load_curves(tracking_uri: str, run_ids: Iterable[str] | None = None, *, experiment: str = "gram") -> pd.DataFrame:
    """Validation curves from MLflow: run_id, step, domain, loss, sorted so; all runs by default."""
    require_database(tracking_uri)
    wanted = None if run_ids is None else set(run_ids)
    return _curves(read_histories(tracking_uri, experiment, content.VALIDATION_LOSS, wanted))


def load_store_curves(storage: str | Store, run_ids: Iterable[str] | None = None) -> pd.DataFrame:
    """The same from the storage."""
    store = storage if isinstance(storage, Store) else Store(storage)
    wanted = None if run_ids is None else set(run_ids)
    rows = []
    for run_id in store.list_runs():
        for record in store.run(run_id).records() if wanted is None or run_id in wanted else ():
            losses = {k: v for k, v in record["metrics"].items() if k.startswith(content.VALIDATION_LOSS)}
            rows += [(run_id, record["step"], name, float(loss)) for name, loss in losses.items()]
    return _curves(rows)


class Frames:
    """A storage and its MLflow, each read once, at its first use. Without `tracking_uri` there is only the storage."""

    def __init__(self, storage: str | Store, tracking_uri: str | None = None) -> None:
        self.storage, self.tracking_uri = storage, tracking_uri

    @cached_property
    def stored(self) -> pd.DataFrame:
        """`load_store` of everything."""
        return load_store(self.storage)

    @cached_property
    def mlflow_runs(self) -> dict[tuple[str, str], Run]:
        """{(kind, node id): MLflow's run} of everything."""
        assert self.tracking_uri is not None, "there is no MLflow"
        return _mlflow_runs(Tracker(self.tracking_uri))

    @cached_property
    def mirrored(self) -> pd.DataFrame:
        """`load_runs` of everything."""
        return _mlflow_frame(self.mlflow_runs, {})


# ------------------------------------------------------------------------------------------------------- rows


def _mlflow_runs(tracker: Tracker) -> dict[tuple[str, str], Run]:
    require_database(tracker.tracking_uri)
    return tracker.runs()


def _mlflow_frame(runs: Mapping[tuple[str, str], Run], tags: Mapping[str, str | Iterable[str]]) -> pd.DataFrame:
    return _frame([_mlflow_row(kind, node_id, run) for (kind, node_id), run in runs.items()], tags)


def _store_row(entry: content.Entry) -> dict:
    return _row(entry.kind, entry.node_id, entry.tags, entry.result_metrics, entry.num_steps)


def _mlflow_row(kind: str, node_id: str, run: Run) -> dict:
    metrics = {content.unescape(key): value for key, value in run.data.metrics.items()}
    return _row(kind, node_id, run.data.tags, metrics, int(run.data.params.get("num_steps", 0)))


def _row(kind: str, node_id: str, tags: Mapping, metrics: Mapping, num_steps: int) -> dict:
    is_run = kind == "run"
    names = [name for name in tags.get(content.TAG_NAMES, "").split(",") if name]
    study = {content.unescape(name): tags.get(name, "") for name in names}  # an empty tag may be dropped on the way
    ids = {"run_id": node_id if is_run else tags[content.VIEW_RUN], "view_id": tags.get(content.VIEW_ID, "")}
    numbers = {name: float(metrics[name]) for name in NUMBER_COLUMNS if name in metrics}
    numbers |= {name: float(value) for name, value in metrics.items() if name.startswith(MEASURED)}
    numbers |= {"num_steps": float(num_steps)} if is_run else {}
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


def _curves(rows: Iterable[tuple[str, int, str, float]]) -> pd.DataFrame:
    """Rows of (run_id, step, metric name, loss) as a tidy frame."""
    frame = pd.DataFrame(list(rows), columns=CURVE_COLUMNS)
    names = {name: content.unescape(name).removeprefix(content.VALIDATION_LOSS) for name in frame["domain"].unique()}
    frame["domain"] = frame["domain"].map(names)
    frame = frame.astype({"run_id": "str", "step": "int64", "domain": "str", "loss": "float64"})
    frame = frame.sort_values(["run_id", "step", "domain"], ignore_index=True)
    return frame.drop_duplicates(["run_id", "step", "domain"], ignore_index=True)
