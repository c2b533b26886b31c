"""Metric histories of many MLflow runs in few requests: SQL for a database, the bulk endpoint for a server."""

from collections.abc import Iterator, Mapping, Sequence

import sqlalchemy as sql
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlMetric, SqlRun, SqlTag
from mlflow.utils.rest_utils import http_request

from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking import entry as content

RUNS_PER_REQUEST, POINTS_PER_RESPONSE = 100, 25_000  # limits of MLflow's bulk endpoint
# One query for all of a request's runs. `get-history-bulk-interval` makes one for each of them, and thins long curves.
BULK_ENDPOINT = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"

Row = tuple[str, int, str, float]  # run_id, step, metric key, value


def read_histories(tracking_uri: str, experiment: str, prefix: str, run_ids: set[str] | None) -> list[Row]:
    """All values of the metrics whose key begins with `prefix`, of the given runs or of all, in no particular order."""
    if tracking_uri.startswith("http"):
        return list(_from_server(tracking_uri, experiment, prefix, run_ids))
    return _from_database(tracking_uri, experiment, prefix, run_ids)


def _from_database(tracking_uri: str, experiment: str, prefix: str, run_ids: set[str] | None) -> list[Row]:
    """One query, past MLflow's object mapper, which takes many times as long for half a million points."""
    query = (
        sql.select(SqlTag.value, SqlMetric.step, SqlMetric.key, SqlMetric.value, SqlMetric.is_nan)
        .join(SqlTag, SqlTag.run_uuid == SqlMetric.run_uuid)
        .join(SqlRun, SqlRun.run_uuid == SqlMetric.run_uuid)
        .join(SqlExperiment, SqlExperiment.experiment_id == SqlRun.experiment_id)
        .where(SqlExperiment.name == experiment, SqlRun.lifecycle_stage == "active")
        .where(SqlTag.key == content.RUN_ID, SqlMetric.key.startswith(prefix, autoescape=True))
    )
    if run_ids is not None and len(run_ids) <= 500:
        query = query.where(SqlTag.value.in_(sorted(run_ids)))
    engine = sql.create_engine(tracking_uri)
    try:
        with engine.connect() as connection:
            rows = connection.execute(query).all()
    except sql.exc.SQLAlchemyError as error:
        raise TrackingUnavailable(f"MLflow at {tracking_uri} cannot be read: {error}") from error
    finally:
        engine.dispose()
    chosen = (row for row in rows if run_ids is None or row[0] in run_ids)
    return [(run_id, step, key, float("nan") if is_nan else value) for run_id, step, key, value, is_nan in chosen]


def _from_server(tracking_uri: str, experiment: str, prefix: str, run_ids: set[str] | None) -> Iterator[Row]:
    runs = {node_id: run for (kind, node_id), run in Tracker(tracking_uri, experiment).runs().items() if kind == "run"}
    runs = {run_id: run for run_id, run in runs.items() if run_ids is None or run_id in run_ids}
    keys = sorted({key for run in runs.values() for key in run.data.metrics if key.startswith(prefix)})
    client = MlflowClient(tracking_uri)
    try:
        for key in keys:
            having = {run.info.run_id: run_id for run_id, run in runs.items() if key in run.data.metrics}
            for start in range(0, len(having), RUNS_PER_REQUEST):
                chunk = dict(list(having.items())[start : start + RUNS_PER_REQUEST])
                yield from _request(client, key, chunk)
    except (MlflowException, OSError) as error:
        raise TrackingUnavailable(f"MLflow at {tracking_uri} cannot be read: {error}") from error


def _request(client: MlflowClient, key: str, run_ids: Mapping[str, str]) -> Sequence[Row]:
    """One metric of up to a hundred runs, {MLflow run id: run_id}; run by run where the server has no bulk endpoint.

    A response that is full may have been cut off: then each half of the runs is asked for.
    """
    creds = client._tracking_client.store.get_host_creds()  # the one way to the user's credentials for this server
    params = {"run_id": list(run_ids), "metric_key": key, "max_results": POINTS_PER_RESPONSE}
    response = http_request(creds, BULK_ENDPOINT, "GET", params=params)
    points = response.json().get("metrics", []) if response.status_code == 200 else None
    if points is not None and len(points) < POINTS_PER_RESPONSE:
        return [(run_ids[p["run_id"]], int(p["step"]), key, float(p["value"])) for p in points]
    if points is not None and len(run_ids) > 1:
        names = list(run_ids)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return [row for half in halves for row in _request(client, key, {name: run_ids[name] for name in half})]
    histories = ((run_id, client.get_metric_history(mlflow_id, key)) for mlflow_id, run_id in run_ids.items())
    return [(run_id, point.step, key, point.value) for run_id, history in histories for point in history]
