"""Finds or creates the MLflow run of a node, and sends the data that the run lacks."""

import contextlib
import json
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from gram_platform.config import State
from gram_platform.config.identity import metric_name
from gram_platform.store import EvaluationDirectory, RunDirectory
from gram_platform.store.checkpoints import VALIDATION
from gram_platform.store.runs import TIMES
from gram_platform.tracking import entry as content
from gram_platform.tracking.connection import Connection
from gram_platform.tracking.entry import NodeEntry
from gram_platform.tracking.values import LONGEST_TEXT, MOST_TAGS, is_short_name, number_of

# A domain follows. MLflow's pages hide tags whose names begin with `mlflow.`.
CURVE = "mlflow.gram.curve."
METRICS_PER_REQUEST = 1000
# Tries, and the pause between them, for a node that other machines send too.
NUM_TRIES, LONGEST_PAUSE_S = 8, 0.25


class Sender:
    """Sends nodes through one connection. Several threads can share a Sender."""

    def __init__(self, connection: Connection) -> None:
        self._mlflow = connection
        self.known: dict[tuple[str, str], str] = {}
        # Runs with records that MLflow lacks and the storage has lost.
        self.incomplete: set[str] = set()

    def mirror(
        self, node: RunDirectory | EvaluationDirectory, entry: NodeEntry | None
    ) -> str | None:
        """Sends a node's data that MLflow lacks. Returns the MLflow run's id.

        Returns None if `entry` is None.
        """
        if entry is None:
            return None
        records = []
        has_lost = False
        if isinstance(node, RunDirectory):
            records = node.records()
            has_lost = entry.status == State.COMPLETE and node.lost_history() != ""
        lock = node.folder.lock("mlflow") if node.folder.writable else contextlib.nullcontext()
        with lock, self._mlflow.writing():
            # Until the storage has all records again, no step counts as sent.
            run = self._bring_up(replace(entry, last_step=-1) if has_lost else entry, records)
        if has_lost and _step(run.data.tags, content.MIRRORED_STEP) < max(entry.last_step, 0):
            self.incomplete.add(entry.node_id)
        self.known[entry.kind, entry.node_id] = run.info.run_id
        return run.info.run_id

    def _bring_up(self, entry: NodeEntry, records: Sequence[Mapping]) -> Run:
        """Finds or creates the node's MLflow run, and sends what the run lacks.

        Other machines may send the same node. Retries if another machine deleted this process's
        MLflow run as a duplicate, or wrote the same values first. If MLflow's result differs from
        the storage's, a new MLflow run replaces the old run.
        """
        same = ("", entry.tags[content.RESULT])
        for num_left in reversed(range(NUM_TRIES)):
            try:
                run = self.find(entry)
                if run is not None and run.data.tags.get(content.RESULT, "") not in same:
                    self.delete([run])
                    run = None
                is_new = run is None
                run = run or self._create(entry, records)
                if not self.is_mirrored(run, entry):
                    self._send(run, entry, records, is_new)
                return run
            except MlflowException as error:
                if not num_left or not self._mlflow.has_refused(error):
                    raise
            time.sleep(random.uniform(0.0, LONGEST_PAUSE_S))
        raise AssertionError("the last try returns or raises")

    def is_mirrored(self, run: Run, entry: NodeEntry) -> bool:
        is_sent = has(run, entry.last_step, self._collect_tags(entry)) and not _other_times(
            run, entry
        )
        return is_sent and run.info.status == content.MLFLOW_STATUS[entry.status]

    def _collect_tags(self, entry: NodeEntry) -> dict[str, str]:
        return {**entry.tags, **self.parent_tag(entry.parent)}

    def parent_tag(self, run_id: str) -> dict[str, str]:
        """Returns the tag that nests an MLflow run under its parent.

        `run_id` is the id of the parent. Returns {} if the MLflow run of the parent is unknown.
        """
        parent = self.known.get(("run", run_id))
        return {content.PARENT: parent} if parent else {}

    def find(self, entry: NodeEntry) -> Run | None:
        """Finds the node's MLflow run. If there are several, deletes all but the oldest."""
        known = self.known.get((entry.kind, entry.node_id))
        if known is not None:
            # If somebody has deleted it, another run is searched.
            with contextlib.suppress(MlflowException):
                run = self._mlflow.client.get_run(known)
                if run.info.lifecycle_stage == "active":
                    return run
        of_kind = f"tags.`{content.KIND}` = '{entry.kind}'"
        of_node = f"tags.`{content.ID_TAGS[entry.kind]}` = '{entry.node_id}'"
        runs = sorted(self._mlflow.search(f"{of_kind} and {of_node}"), key=age)
        self.delete(runs[1:])
        return runs[0] if runs else None

    def delete(self, runs: Iterable[Run]) -> None:
        """Deletes runs. Ignores runs that another machine has already deleted."""
        for run in runs:
            try:
                self._mlflow.client.delete_run(run.info.run_id)
            except MlflowException as error:
                if not self._mlflow.has_refused(error):
                    raise

    def _create(self, entry: NodeEntry, records: Sequence[Mapping]) -> Run:
        tags = {content.KIND: entry.kind, content.ID_TAGS[entry.kind]: entry.node_id}
        if entry.last_step >= 0:
            tags[content.SENDING_STEP] = str(entry.last_step)
        start_ms = content.start_ms(records, entry, time.time())
        run, data_id = self._mlflow.create(entry.name, tags, start_ms), entry.params["data_id"]
        dataset = Dataset(f"packed {data_id}", data_id, "gram", json.dumps({"data_id": data_id}))
        purpose = "training" if entry.kind == "run" else "evaluation"
        context = InputTag("mlflow.data.context", purpose)
        self._mlflow.client.log_inputs(run.info.run_id, [DatasetInput(dataset, [context])])
        return self.find(entry) or run

    def _send(self, run: Run, entry: NodeEntry, records: Sequence[Mapping], is_new: bool) -> None:
        client, run_id, tags = self._mlflow.client, run.info.run_id, run.data.tags
        mirrored = _step(tags, content.MIRRORED_STEP)
        metrics = content.curve_metrics(records, entry, mirrored)
        # Somebody may have removed or changed the tags of steps.
        is_doubtful = mirrored < 0 or _step(tags, content.SENDING_STEP) > mirrored
        if metrics and is_doubtful and not is_new:
            keys = sorted({metric.key for metric in metrics})
            points = {key: client.get_metric_history(run_id, key) for key in keys}
            present = {(key, point.step) for key in keys for point in points[key]}
            metrics = [metric for metric in metrics if (metric.key, metric.step) not in present]
        if tags.get(content.RESULT, "") != entry.tags[content.RESULT]:
            metrics += content.result_metrics(entry, records)
        elif times := _other_times(run, entry):
            # MLflow shows a step's newest point, which may be from a clock that was ahead.
            points = [one for key in times for one in client.get_metric_history(run_id, key)]
            now = max(round(time.time() * 1000), *(point.timestamp + 1 for point in points))
            metrics += [Metric(key, times[key], now, entry.num_steps) for key in times]
        if entry.last_step > mirrored and tags.get(content.SENDING_STEP) != str(entry.last_step):
            client.set_tag(run_id, content.SENDING_STEP, entry.last_step)
        has_result = tags.get(content.RESULT) == entry.tags[content.RESULT]
        has_curves = has_result and mirrored >= entry.last_step
        curves = {} if has_curves else curve_tags(records, entry)
        while len(metrics) > METRICS_PER_REQUEST:
            client.log_batch(run_id, metrics=metrics[:METRICS_PER_REQUEST])
            metrics = metrics[METRICS_PER_REQUEST:]
        wanted = {**self._collect_tags(entry), **curves}
        wanted[content.MIRRORED_STEP] = str(max(entry.last_step, mirrored))
        changed, missing = find_lacking(run, wanted, entry.params)
        # The last of them is `gram.mirrored_step`.
        while len(changed) > MOST_TAGS:
            client.log_batch(run_id, tags=changed[:MOST_TAGS])
            changed = changed[MOST_TAGS:]
        # MLflow writes the tags last.
        client.log_batch(run_id, metrics=metrics, params=missing, tags=changed)
        status = content.MLFLOW_STATUS[entry.status]
        if status == run.info.status:
            return
        if status == "RUNNING":
            client.update_run(run_id, status=status)
        else:
            # A run that was created while it ended has a later start.
            ended_ms = max(entry.ended_ms, run.info.start_time) if entry.ended_ms else None
            client.set_terminated(run_id, status, end_time=ended_ms)


def has(run: Run, last_step: int, wanted: Mapping[str, str]) -> bool:
    tags = run.data.tags
    mirrored = number_of(tags, content.MIRRORED_STEP)
    is_sent = mirrored is not None and mirrored >= last_step
    return is_sent and all(tags.get(key, "") == value for key, value in wanted.items())


def find_lacking(
    run: Run, tags: Mapping[str, str], params: Mapping[str, str]
) -> tuple[list[RunTag], list[Param]]:
    """Returns the tags and parameters that an MLflow run lacks.

    A tag with another value counts as lacking. Values of parameters are not compared.
    """
    data = run.data
    lacking = [RunTag(*tag) for tag in tags.items() if data.tags.get(tag[0], "") != tag[1]]
    return lacking, [Param(*param) for param in params.items() if param[0] not in data.params]


def _other_times(run: Run, entry: NodeEntry) -> dict[str, float]:
    """Returns those of `elapsed_s` and `tokens_per_second` whose values in MLflow differ.

    The values can differ if storages were merged. A value that only MLflow has becomes NaN.
    """
    known, sent = entry.result_metrics, run.data.metrics
    times = {key: known.get(key, math.nan) for key in TIMES if key in known or key in sent}
    return {key: time_s for key, time_s in times.items() if repr(sent.get(key)) != repr(time_s)}


def age(run: Run) -> tuple[int, str]:
    return run.info.start_time, run.info.run_id


def _step(tags: Mapping[str, str], key: str) -> int:
    step = number_of(tags, key)
    return -1 if step is None else step


def curve_tags(records: Iterable[Mapping], entry: NodeEntry) -> dict[str, str]:
    """Returns a complete run's validation curves as tags with values `<step>:<loss> <step>:...`.

    One request reads the tags of a thousand runs. Without the tags, each metric's history needs its
    own request, which takes 40 s for a study. A curve that is too long for a tag gets no tag.
    """
    curves = {}
    for record in records if entry.kind == "run" and entry.status == State.COMPLETE else ():
        for name, loss in record["metrics"].items():
            if name.startswith(VALIDATION):
                points = curves.setdefault(CURVE + metric_name(name.removeprefix(VALIDATION)), [])
                points.append(f"{record['step']}:{float(loss)!r}")
    texts = {key: " ".join(points) for key, points in curves.items()}
    return {
        key: text for key, text in texts.items() if len(text) <= LONGEST_TEXT and is_short_name(key)
    }
