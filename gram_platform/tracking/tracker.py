"""Sends the storage to MLflow: one MLflow run for each node, found by a tag, and nothing sent twice.

Any call may fail with TrackingUnavailable, and nothing is lost: the next `mirror_*` or `sync` compares MLflow with the
storage and sends the difference. An interrupted send leaves the tag `gram.sending_step`; then whole histories are
compared. Processes of one machine lock a node. Machines share no lock: after a collision the sender looks again and
sends the rest.
"""

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from gram_platform.config.identity import invalid, short_hash
from gram_platform.store import EvaluationDirectory, RunDirectory, Store
from gram_platform.tracking import entry as content
from gram_platform.tracking.connection import Connection, collector_paused, require_database
from gram_platform.tracking.entry import Entry
from gram_platform.tracking.views import LINE, TRAINING_RUNS, VIEW, SavedView, experiment_note, saved_views

METRICS_PER_REQUEST = 1000  # MLflow's own limit
NUM_TRIES, LONGEST_PAUSE_S = 8, 0.25  # for a node that other machines send too


@dataclass(frozen=True)
class Line:
    """One line of a study's figures, which MLflow draws as a run: its metrics have model sizes for steps."""

    name: str
    tags: Mapping[str, str]
    points: Mapping[int, Mapping[str, float]]  # number of parameters -> metric -> value

    @property
    def digest(self) -> str:
        points = {str(step): dict(values) for step, values in self.points.items()}
        return short_hash({"name": self.name, "tags": dict(self.tags), "points": points})


def study_id(name: str, params: Mapping[str, str]) -> str:
    """Identifies a study with its parameters, for which MLflow has one run."""
    return short_hash({"study": name, "params": dict(params)})


class Tracker:
    """Writes to one experiment of one MLflow. It connects at the first call; `connection.py` describes failures."""

    def __init__(self, tracking_uri: str, experiment: str = "gram") -> None:
        self.tracking_uri = tracking_uri
        self._connection = Connection(tracking_uri, experiment)
        self._known: dict[tuple[str, str], str] = {}  # (kind, node_id) -> MLflow's run id

    def prepare_database(self) -> str:
        """Creates the database and the experiment if need be, before workers start; returns the experiment's id."""
        with self._connection.reaching():
            return self._connection.experiment_id

    def mirror_run(self, run: RunDirectory) -> str | None:
        """Sends what MLflow lacks of a run; returns the MLflow run id, None for a run that was never attempted."""
        return self._mirror(run, content.run_entry(run))

    def mirror_evaluation(self, evaluation: EvaluationDirectory) -> str | None:
        """Sends an evaluation; None before the result."""
        return self._mirror(evaluation, content.evaluation_entry(evaluation))

    def mark_killed(self, run_ids: Iterable[str]) -> None:
        """Gives MLflow's status KILLED to runs that were sent while they trained, and that now lose their driver."""
        sent = [self._known[key] for run_id in run_ids if (key := ("run", run_id)) in self._known]
        with self._connection.reaching() as client:
            for mlflow_id in sent:
                client.set_terminated(mlflow_id, "KILLED")

    def sync(self, store: Store, ids: Iterable[str] | None = None) -> dict[str, int]:
        """Mirrors all runs and evaluations, or those of the given ids; counts them as {"sent", "unchanged"}."""
        wanted = None if ids is None else set(ids)
        entries = [(node, content.run_entry(node)) for node in map(store.run, _chosen(store.list_runs(), wanted))]
        chosen = _chosen(store.list_evaluations(), wanted)
        entries += [(node, content.evaluation_entry(node)) for node in map(store.evaluation, chosen)]
        mirrored = self.runs()
        self._known |= {key: run.info.run_id for key, run in mirrored.items()}
        entries.sort(key=lambda pair: pair[1] is not None and pair[1].parent != "")  # parents first
        counts = {"sent": 0, "unchanged": 0}
        for node, entry in entries:
            known = entry and mirrored.get((entry.kind, entry.node_id))
            unchanged = entry is None or (known is not None and self._is_mirrored(known, entry))
            counts["unchanged" if unchanged else "sent"] += entry is not None
            if not unchanged:
                self._mirror(node, entry)
        return counts

    @collector_paused()
    def runs(self) -> dict[tuple[str, str], Run]:
        """Reads {(kind, node_id): MLflow run} of the whole experiment, a thousand runs a request."""
        with self._connection.reaching():
            found = self._connection.search("")
        oldest: dict[tuple[str, str], Run] = {}
        for run in sorted(found, key=_age):
            kind = run.data.tags.get(content.KIND, "")
            node_id = run.data.tags.get(content.ID_TAGS.get(kind, ""))
            if node_id is not None:
                oldest.setdefault((kind, node_id), run)
        return oldest

    def log_study(
        self,
        name: str,
        files: Mapping[str, bytes],
        figures: Mapping[str, object],
        params: Mapping[str, object],
        lines: Sequence[Line] = (),
        node_tags: Mapping[str, Mapping[str, str]] | None = None,
        views: Sequence[SavedView] = (),
    ) -> str:
        """Logs a study's files (UTF-8) and plotly figures as artifacts of one MLflow run; returns the MLflow run id.

        The run belongs to the study's name and parameters: logging them again replaces the artifacts, and the runs
        that hold its lines. The nodes in `node_tags` get these tags and `gram.study.NAME`. The experiment gets
        the views, and its description links to them unless people have written another.
        """
        params = {key: str(value) for key, value in params.items()}
        identity = study_id(name, params)
        tags = {content.KIND: "study", content.STUDY: name, content.STUDY_ID: identity}
        facts = ", ".join(f"{key} {value}" for key, value in params.items())
        note = f"{name}: {facts}. Among the artifacts: the table, the report (one page) and every figure."
        with self._connection.reaching() as client:
            of_study = self._connection.search(f"tags.`{content.STUDY_ID}` = '{identity}'")
            found = [run for run in of_study if run.data.tags.get(content.KIND) == "study"]
            run = min(found, key=_age) if found else self._connection.create(f"study {name}", tags, time.time() * 1000)
            missing = [Param(key, value) for key, value in params.items() if key not in run.data.params]
            client.log_batch(run.info.run_id, params=missing, tags=[RunTag(content.NOTE, note)])
            for file, content_bytes in files.items():
                client.log_text(run.info.run_id, content_bytes.decode(), file)
            for figure_name, figure in figures.items():
                client.log_figure(run.info.run_id, figure, f"figures/{figure_name}.html")
            self._replace_lines(run, [other for other in of_study if other not in found], lines)
            client.set_terminated(run.info.run_id, "FINISHED")
            self._connection.set_experiment_tags({VIEW + view.key: view.to_tag() for view in views})
            self._connection.describe(experiment_note)
        of_study = {f"{content.STUDY}.{name}": identity}
        self._tag_nodes({node_id: {**tags, **of_study} for node_id, tags in (node_tags or {}).items()})
        return run.info.run_id

    def study_file(self, study: str, file: str) -> str | None:
        """Reads a file of the MLflow run of a study that was written last; None without one."""
        require_database(self.tracking_uri)
        with self._connection.reaching() as client:
            found = self._connection.search(f"tags.`{content.STUDY}` = '{study}'")
            runs = [run for run in found if run.data.tags[content.KIND] == "study"]
            for run in sorted(runs, key=lambda run: run.info.end_time or 0, reverse=True):
                if any(artifact.path == file for artifact in client.list_artifacts(run.info.run_id)):
                    with tempfile.TemporaryDirectory() as folder:
                        path = client.download_artifacts(run.info.run_id, file, folder)
                        return Path(path).read_text(encoding="utf-8")
        return None

    def _replace_lines(self, study: Run, present: Sequence[Run], lines: Sequence[Line]) -> None:
        """Makes a run for each line; keeps equal ones, deletes those of other content.

        They are no children of the study's run: MLflow's charts leave out the runs below a folded one.
        """
        client = self._connection.client
        wanted = {line.digest: line for line in lines}
        for run in present:
            if wanted.pop(run.data.tags.get(content.RESULT, ""), None) is None:
                client.delete_run(run.info.run_id)
        of_study = {key: study.data.tags[key] for key in (content.STUDY, content.STUDY_ID)}
        now = round(time.time() * 1000)
        for digest, line in wanted.items():
            tags = {content.KIND: LINE, content.RESULT: digest, **of_study}
            run = self._connection.create(line.name, {**line.tags, **tags}, now)
            points = [Metric(key, value, now, step) for step, at in line.points.items() for key, value in at.items()]
            client.log_batch(run.info.run_id, metrics=points)
            client.set_terminated(run.info.run_id, "FINISHED")

    def _tag_nodes(self, tags: Mapping[str, Mapping[str, str]]) -> None:
        """Sets the tags that the nodes' MLflow runs lack, so that one filter lists the runs of a study or a trial."""
        runs = self.runs() if tags else {}
        with self._connection.reaching() as client:
            for (_, node_id), run in runs.items():
                wanted = tags.get(node_id, {}).items()
                if missing := [RunTag(key, value) for key, value in wanted if run.data.tags.get(key) != value]:
                    client.log_batch(run.info.run_id, tags=missing)

    def view_urls(self, study: str, ui_url: str | None = None) -> dict[str, str]:
        """Gives {what it shows: address} of a study's saved views at `ui_url`, as `run_url`; {} for a mere database."""
        base = self._base(ui_url)
        if base is None:
            return {}
        with self._connection.reaching():
            found = saved_views(self._connection.experiment_tags(), self._connection.experiment_id)
        prefix = f"gram.{study}."
        return {key[len(prefix) :]: f"{base}/{page}" for key, (_, page) in found.items() if key.startswith(prefix)}

    def run_url(self, mlflow_run_id: str, ui_url: str | None = None) -> str | None:
        """Gives the address of a run's page at `ui_url` (default: the tracking server); None for a mere database."""
        base = self._base(ui_url)
        if base is None:
            return None
        with self._connection.reaching():
            experiment_id = self._connection.experiment_id
        return f"{base}/#/experiments/{experiment_id}/runs/{mlflow_run_id}?{TRAINING_RUNS}"

    def _base(self, ui_url: str | None) -> str | None:
        base = ui_url or (self.tracking_uri if self.tracking_uri.startswith("http") else None)
        return base and base.rstrip("/")

    # ------------------------------------------------------------------------------------------------- sending

    def _mirror(self, node: RunDirectory | EvaluationDirectory, entry: Entry | None) -> str | None:
        if entry is None:
            return None
        records = node.records() if entry.kind == "run" else []
        lock = node.folder.lock("mlflow") if node.folder.writable else contextlib.nullcontext()
        with lock, self._connection.reaching():
            run = self._bring_up(entry, records)
        self._known[entry.kind, entry.node_id] = run.info.run_id
        return run.info.run_id

    def _bring_up(self, entry: Entry, records: Sequence[Mapping]) -> Run:
        """Finds or makes the node's MLflow run and sends the difference; retries when another machine interferes.

        That machine may have deleted our duplicate, or written the same values first.
        """
        for num_left in reversed(range(NUM_TRIES)):
            try:
                run = self._find(entry) or self._create(entry, records)
                if not self._is_mirrored(run, entry):
                    self._send(run, entry, records)
                return run
            except MlflowException as error:
                if not num_left or not self._connection.has_refused(error):
                    raise
            time.sleep(random.uniform(0.0, LONGEST_PAUSE_S))
        raise AssertionError("the last try returns or raises")

    def _is_mirrored(self, run: Run, entry: Entry) -> bool:
        """Tells whether MLflow has all that the storage has of the node."""
        tags = run.data.tags
        up_to_date = int(tags.get(content.MIRRORED_STEP, -2)) >= entry.last_step
        same_tags = all(tags.get(key, "") == value for key, value in (entry.tags | self._parent_tag(entry)).items())
        return up_to_date and same_tags and run.info.status == content.MLFLOW_STATUS[entry.status]

    def _parent_tag(self, entry: Entry) -> dict[str, str]:
        """Returns the tag by which MLflow folds a node below the run that it measures or attacks, if that is known."""
        parent = self._known.get(("run", entry.parent))
        return {content.PARENT: parent} if parent else {}

    def _find(self, entry: Entry) -> Run | None:
        """Finds the node's MLflow run; deletes all but the oldest where several machines made one at once."""
        known = self._known.get((entry.kind, entry.node_id))
        if known is not None:
            with contextlib.suppress(MlflowException):  # deleted by hand: look for it again
                run = self._connection.client.get_run(known)
                if run.info.lifecycle_stage == "active":
                    return run
        id_tag = content.ID_TAGS[entry.kind]
        of_kind = f"tags.`{content.KIND}` = '{entry.kind}'"
        found = sorted(self._connection.search(f"{of_kind} and tags.`{id_tag}` = '{entry.node_id}'"), key=_age)
        for duplicate in found[1:]:
            self._connection.client.delete_run(duplicate.info.run_id)
        return found[0] if found else None

    def _create(self, entry: Entry, records: Sequence[Mapping]) -> Run:
        tags = {content.KIND: entry.kind, content.ID_TAGS[entry.kind]: entry.node_id}
        run = self._connection.create(entry.name, tags, content.start_ms(records, entry, time.time()))
        data_id = entry.params["data_id"]
        dataset = Dataset(f"packed {data_id}", data_id, "gram", json.dumps({"data_id": data_id}))
        context = InputTag("mlflow.data.context", "training" if entry.kind == "run" else "evaluation")
        self._connection.client.log_inputs(run.info.run_id, [DatasetInput(dataset, [context])])
        return self._find(entry) or run

    def _send(self, run: Run, entry: Entry, records: Sequence[Mapping]) -> None:
        """Sends curves and results, then tags (`gram.mirrored_step` among them), then the status."""
        client, run_id, tags = self._connection.client, run.info.run_id, run.data.tags
        mirrored = int(tags.get(content.MIRRORED_STEP, -1))
        metrics = content.curve_metrics(records, entry, mirrored)
        if metrics and int(tags.get(content.SENDING_STEP, -1)) > mirrored:
            metrics = list(self._unsent(run_id, metrics))
        if tags.get(content.RESULT, "") != entry.tags[content.RESULT]:
            metrics += content.result_metrics(entry, records)
        if entry.last_step > mirrored:
            client.set_tag(run_id, content.SENDING_STEP, entry.last_step)
        while len(metrics) > METRICS_PER_REQUEST:
            client.log_batch(run_id, metrics=metrics[:METRICS_PER_REQUEST])
            metrics = metrics[METRICS_PER_REQUEST:]
        wanted = {
            **entry.tags,
            **self._parent_tag(entry),
            content.MIRRORED_STEP: str(max(entry.last_step, mirrored)),
            "mlflow.runName": entry.name,
        }
        changed = [RunTag(key, value) for key, value in wanted.items() if tags.get(key, "") != value]
        missing = [Param(key, value) for key, value in entry.params.items() if key not in run.data.params]
        client.log_batch(run_id, metrics=metrics, params=missing, tags=changed)  # MLflow writes the tags last
        self._set_status(run, entry)

    def _unsent(self, run_id: str, metrics: Sequence[Metric]) -> Iterator[Metric]:
        """Yields the metrics that MLflow lacks at their step."""
        client = self._connection.client
        keys = sorted({metric.key for metric in metrics})
        present = {key: {metric.step for metric in client.get_metric_history(run_id, key)} for key in keys}
        return (metric for metric in metrics if metric.step not in present[metric.key])

    def _set_status(self, run: Run, entry: Entry) -> None:
        client, status = self._connection.client, content.MLFLOW_STATUS[entry.status]
        if run.info.status == status:
            return
        if status == "RUNNING":
            client.update_run(run.info.run_id, status=status)
        else:
            client.set_terminated(run.info.run_id, status, end_time=entry.ended_ms or None)


def default_tracking_uri(storage: str) -> str:
    """Names an SQLite database in a local storage; ValueError for an object store, which needs a server."""
    store = Store(storage)
    if not store.is_local:
        raise invalid(
            "tracking_uri", None, f"the address of an MLflow server or database, because {storage} cannot hold one"
        )
    return f"sqlite:///{store.root}/mlflow.db"


def _age(run: Run) -> tuple[int, str]:
    return run.info.start_time, run.info.run_id


def _chosen(node_ids: Sequence[str], wanted: set[str] | None) -> list[str]:
    return [node_id for node_id in node_ids if wanted is None or node_id in wanted]
