"""Makes a node's row from the storage's entry or MLflow's run, and the tags that hold curves."""

from collections.abc import Iterable, Mapping

from mlflow.entities import Run

from gram_platform.config import State
from gram_platform.config.identity import metric_name
from gram_platform.store.checkpoints import VALIDATION
from gram_platform.store.runs import SIZES, TIMES
from gram_platform.tracking import entry as content
from gram_platform.tracking.entry import NodeEntry
from gram_platform.tracking.values import (
    LONGEST_TEXT,
    in_utf8,
    is_short_name,
    number_of,
    study_of,
    unescape,
)

NUMBER_COLUMNS = (*SIZES, *TIMES)
MEASURED = (content.LOSS, content.BEST_LOSS, content.SURPRISAL, content.TASK)
# A domain follows. MLflow's pages hide tags whose names begin with `mlflow.`.
CURVE = "mlflow.gram.curve."


def entry_row(entry: NodeEntry) -> dict:
    return _row(entry.kind, entry.node_id, entry.tags, entry.result_metrics, entry.num_steps)


def mlflow_row(kind: str, node_id: str, run: Run) -> dict:
    """Returns the row of a node of MLflow.

    Without a result its metrics are the curves' points so far.
    """
    has_result = run.data.tags.get(content.STATUS) == State.COMPLETE
    has_losses = kind != "run" or has_eval_points(run)
    shown = {column(key): value for key, value in run.data.metrics.items()} if has_result else {}
    metrics = {
        name: value
        for name, value in shown.items()
        if has_losses or not name.startswith(content.LOSS)
    }
    metrics = (content.last_as_best(metrics) if kind == "run" else {}) | metrics
    return _row(kind, node_id, run.data.tags, metrics, number_of(run.data.params, "num_steps"))


def has_eval_points(run: Run) -> bool:
    """Tells whether the losses of MLflow's run are of evaluation points, not of progress."""
    return number_of(run.data.params, content.NUM_EVAL_POINTS) != 0


def column(key: str) -> str:
    """Names a metric of MLflow in a frame."""
    return content.AT_END.get(key) or unescape(key)


def _row(kind: str, node_id: str, tags: Mapping, metrics: Mapping, num_steps: int | None) -> dict:
    is_run = kind == "run"
    study = {
        in_utf8(name): in_utf8(value)
        for name, value in study_of(tags).items()
        if not name.startswith(MEASURED) and name not in NUMBER_COLUMNS
    }
    ids = {
        "run_id": node_id if is_run else tags.get(content.VIEW_RUN, ""),
        "view_id": tags.get(content.VIEW_ID, ""),
    }
    numbers = {name: float(metrics[name]) for name in NUMBER_COLUMNS if name in metrics}
    numbers |= {name: float(value) for name, value in metrics.items() if name.startswith(MEASURED)}
    numbers |= {"num_steps": float(num_steps)} if is_run and num_steps is not None else {}
    return {
        **study,
        **numbers,
        "kind": kind,
        "id": node_id,
        **ids,
        "status": tags.get(content.STATUS, ""),
    }


def curve_tags(records: Iterable[Mapping], entry: NodeEntry) -> dict[str, str]:
    """Writes each validation curve of a complete run as a text, `<step>:<loss> <step>:<loss> ...`.

    Tags come with their run, a thousand runs in one request. The history of a metric needs a
    request of its own, which takes 40 s for the curves of a thousand runs. A curve that is too long
    for a tag gets none.
    """
    curves: dict[str, list[str]] = {}
    for record in records if entry.kind == "run" and entry.status == State.COMPLETE else ():
        for name, loss in record["metrics"].items():
            if name.startswith(VALIDATION):
                points = curves.setdefault(CURVE + metric_name(name.removeprefix(VALIDATION)), [])
                points.append(f"{record['step']}:{float(loss)!r}")
    texts = {key: " ".join(points) for key, points in curves.items()}
    return {
        key: text for key, text in texts.items() if len(text) <= LONGEST_TEXT and is_short_name(key)
    }
