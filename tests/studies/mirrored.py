"""What MLflow must show of a storage: one run for each node, no step twice, and equal frames."""

from collections import Counter
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from pandas.testing import assert_frame_equal

from gram_platform.store import Store
from gram_platform.tracking import default_tracking_uri
from gram_platform.tracking.frame import load_curves, load_runs, load_store, load_store_curves


def assert_mirrored_once(storage: Path, uri: str | None = None) -> None:
    """Every node of the storage has exactly one finished MLflow run, whose curves have every step
    once.

    The frames of both are equal.
    """
    store, uri = Store(storage), uri or default_tracking_uri(str(storage))
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("gram")
    found = client.search_runs([experiment.experiment_id], max_results=1000)
    nodes = [run for run in found if run.data.tags["gram.kind"] in ("run", "evaluation")]
    expected = Counter([*store.list_runs(), *store.list_evaluations()])
    shown = Counter(map(_node_id, nodes))
    assert shown == expected, (
        f"not once: {[(run.info.run_name, run.info.status) for run in nodes]}, of {expected}"
    )
    assert {run.info.status for run in nodes} == {"FINISHED"}
    for run in nodes:
        _assert_no_step_twice(client, store, run)
    assert_frame_equal(load_runs(uri), load_store(store), check_exact=True)
    assert_frame_equal(load_curves(uri), load_store_curves(store), check_exact=True)


def _node_id(run: Run) -> str:
    return run.data.tags.get("gram.eval_id") or run.data.tags["gram.run_id"]


def _assert_no_step_twice(client: MlflowClient, store: Store, run: Run) -> None:
    for key in run.data.metrics:
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, key)]
        assert len(steps) == len(set(steps)), (
            f"{run.info.run_name}: {key} has a step twice: {steps}"
        )
    if run.data.tags["gram.kind"] == "run":
        records = store.run(_node_id(run)).records()
        wanted = {
            record["step"] for record in records if "validation/loss/core" in record["metrics"]
        }
        history = client.get_metric_history(run.info.run_id, "loss/core")
        assert {metric.step for metric in history} == wanted or not wanted
