"""Makes the row of a node in a frame, from the storage's entry and from MLflow's run alike, and digests of both.

A finished node's digest is sent to MLflow as a tag, and so is that of its curves. Whoever reads MLflow computes them
again, and so knows whether everything that was sent is still there.
"""

from collections.abc import Iterable, Mapping

from mlflow.entities import Run

from gram_platform.config import State
from gram_platform.config.identity import metric_name, short_hash
from gram_platform.store.checkpoints import VALIDATION
from gram_platform.store.runs import SIZES, TIMES
from gram_platform.tracking import entry as content
from gram_platform.tracking.entry import Entry
from gram_platform.tracking.values import (
    LONGEST_TEXT,
    curve_points,
    in_utf8,
    is_short_name,
    number_of,
    study_of,
    unescape,
)

NUMBER_COLUMNS = (*SIZES, *TIMES)
MEASURED = (content.LOSS, content.BEST_LOSS, content.SURPRISAL, content.TASK)
DIGEST, CURVES_DIGEST = "gram.digest", "gram.curves_digest"  # tags
CURVE = "mlflow.gram.curve."  # + domain; MLflow's pages hide tags whose names begin with `mlflow.`
LONGEST_TAG, MOST_CURVES = LONGEST_TEXT, 60  # of a curve's text, and of such texts of a run

Curve = Iterable[tuple[int, float]]  # step, loss


def entry_row(entry: Entry) -> dict:
    """Returns the row of a node of the storage."""
    return _row(entry.kind, entry.node_id, entry.tags, entry.result_metrics, entry.num_steps)


def mlflow_row(kind: str, node_id: str, run: Run) -> dict:
    """Returns the row of a node of MLflow; without a result its metrics are the curves' points so far."""
    has_result = run.data.tags.get(content.STATUS) == State.COMPLETE
    has_losses = kind != "run" or has_eval_points(run)
    shown = {column(key): value for key, value in run.data.metrics.items()} if has_result else {}
    metrics = {name: value for name, value in shown.items() if has_losses or not name.startswith(content.LOSS)}
    metrics = (content.last_as_best(metrics) if kind == "run" else {}) | metrics
    return _row(kind, node_id, run.data.tags, metrics, number_of(run.data.params, "num_steps"))


def has_eval_points(run: Run) -> bool:
    """Tells whether the losses of MLflow's run are of its config's evaluation points, and not of its progress."""
    return number_of(run.data.params, content.NUM_EVAL_POINTS) != 0


def column(key: str) -> str:
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


def entry_digest(entry: Entry) -> str:
    """Returns the digest of a node of the storage; "" before its result."""
    return _digest(entry_row(entry), entry.tags[content.RESULT])


def mlflow_digest(kind: str, node_id: str, run: Run) -> str:
    """Returns the digest of a node of MLflow if it is the one that was sent; "" if anything has been changed since."""
    found = _digest(mlflow_row(kind, node_id, run), run.data.tags.get(content.RESULT, ""))
    return found if found == run.data.tags.get(DIGEST) else ""


def _digest(row: Mapping, result_sha256: str) -> str:
    """Hashes a row and the hash of its result, but no times, which differ between two that made one result."""
    if not result_sha256:
        return ""
    shown = {name: str(value) for name, value in row.items() if name not in TIMES}
    return short_hash({"result": result_sha256, "row": shown})


# ----------------------------------------------------------------------------------------------------- curves


def curve_tags(records: Iterable[Mapping], entry: Entry) -> dict[str, str]:
    """Writes each validation curve of a complete run as a text, `<step>:<loss> <step>:<loss> ...`, and their digest.

    Tags come with their run, a thousand runs in one request; the history of a metric is a request of its own, 40 s for
    the curves of a thousand runs. A curve that is too long for a tag gets none, nor do too many. Curves of which the
    storage has lost points get no digest.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records if entry.kind == "run" and entry.status == State.COMPLETE else ():
        for name, loss in record["metrics"].items():
            if name.startswith(VALIDATION):
                curves.setdefault(name.removeprefix(VALIDATION), []).append((record["step"], loss))
    texts = {CURVE + metric_name(domain): " ".join(_points(curve)) for domain, curve in curves.items()}
    kept = texts if len(texts) <= MOST_CURVES else {}
    tags = {key: text for key, text in kept.items() if len(text) <= LONGEST_TAG and is_short_name(key)}
    has_all = all(len(curve) >= entry.config["eval_points"]["num_points"] for curve in curves.values())
    return tags | ({CURVES_DIGEST: curves_digest(curves)} if curves and has_all else {})


def curves_digest(curves: Mapping[str, Curve]) -> str:
    """Hashes a run's validation curves by domain."""
    return short_hash({domain: _points(sorted(curve)) for domain, curve in curves.items()})


def has_curves(run: Run) -> bool:
    """Tells whether the texts of MLflow's run are the curves that were sent."""
    texts = {key.removeprefix(CURVE): text for key, text in run.data.tags.items() if key.startswith(CURVE)}
    curves = {unescape(key): curve_points(text) or () for key, text in texts.items()}
    return curves_digest(curves) == run.data.tags.get(CURVES_DIGEST)


def _points(curve: Curve) -> list[str]:
    return [f"{step}:{float(loss)!r}" for step, loss in curve]
