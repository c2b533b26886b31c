"""Sends the storage to MLflow, as one MLflow run for each node.

Any call may raise TrackingUnavailable. Nothing is lost, because the next `mirror` or `sync`
compares MLflow with the storage and sends the difference. An interrupted call leaves the tag
`gram.sending_step`. The next call then compares every point of the curves. While a process sends a
node of a writable local storage, it holds a lock, so that no other process on the machine sends the
node. `sender.py` handles nodes that several machines send.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlflow.entities import Metric, Run

from gram_platform.config import View
from gram_platform.config.identity import hash_file, require_choice, short_hash
from gram_platform.store import EvaluationDirectory, RunDirectory, Store
from gram_platform.store.files import is_safe_name
from gram_platform.store.root import Finished
from gram_platform.tracking import entry as content
from gram_platform.tracking.connection import Connection, require_database, web_address
from gram_platform.tracking.sender import Sender, age, find_lacking, has
from gram_platform.tracking.values import milliseconds, number_of, text_for_people
from gram_platform.tracking.views import (
    LINE,
    TRAINING_RUNS,
    TRIAL_KIND,
    Line,
    StudyLog,
    read_views,
    trials_filter,
)

NUM_SENDERS = 8
LOCAL_UI = "http://127.0.0.1:5000/"
NODES_AT_ONCE = 1000
# The tag of a model version with the hash of its export's record.
EXPORT = "gram.export"
TRIAL_ID = "gram.trial_id"
Runs = Mapping[tuple[str, str], Run]


class Tracker:
    """Reads from and writes to an MLflow server or database.

    `connection.py` describes what happens if MLflow fails.
    """

    def __init__(self, tracking_uri: str) -> None:
        self.tracking_uri = tracking_uri
        self._mlflow = Connection(tracking_uri)
        # SQLite has one writer.
        self.num_senders = 1 if tracking_uri.startswith("sqlite") else NUM_SENDERS
        self._sender = Sender(self._mlflow)
        self.has_sent_all = False

    def prepare_database(self) -> None:
        with self._mlflow.writing():
            pass

    def ask_again(self) -> None:
        """Ends the pause after a failure, so that the next call tries to reach MLflow."""
        self._mlflow.ask_again()

    def mirror(self, node: RunDirectory | EvaluationDirectory) -> str | None:
        """Sends a node's data that MLflow lacks. Returns the MLflow run's id.

        Returns None if `node_entry` returns None.
        """
        return self._sender.mirror(node, content.node_entry(node))

    def mark_killed(self, run_ids: Iterable[str]) -> None:
        """Sets the status KILLED for runs whose driver died. Ignores runs that MLflow lacks."""
        sent = filter(None, [self._sender.known.get(("run", run_id)) for run_id in run_ids])
        with self._mlflow.writing() as client:
            for mlflow_id in sent:
                client.set_terminated(mlflow_id, "KILLED")

    def sync(self, store: Store, ids: Iterable[str] | None = None) -> dict[str, int]:
        """Mirrors all nodes, or only the nodes with these ids. Returns {"sent": n, "unchanged": n}.

        In an object store, nodes in `ids` are not read if MLflow already has their results and
        tags.
        """
        self.has_sent_all = False
        self._sender.incomplete.clear()
        copies = self._copies()
        mirrored = {key: oldest for key, (oldest, *_) in copies.items()}
        # A sender or server that was killed may have left a copy.
        with self._mlflow.writing():
            self._sender.delete([copy for _, *later in copies.values() for copy in later])
        self._sender.known |= {key: run.info.run_id for key, run in mirrored.items()}
        nodes = store.nodes()
        counts = Counter(sent=0, unchanged=0)
        if ids is not None:
            wanted = set(ids)
            nodes = [node for node in nodes if node.node_id in wanted]
            keys = [] if store.is_local else [(node.kind, node.node_id) for node in nodes]
            finished = store.read_finished(keys).items()
            same = {i for i, end in finished if end and self._has_finished(i, end, mirrored)}
            counts["unchanged"] = len(same)
            nodes = [node for node in nodes if node.node_id not in same]
        orphans = []
        for kind in content.ID_TAGS:
            of_kind = [node for node in nodes if node.kind == kind]
            orphans += self._send_changed(of_kind, store, mirrored, counts)
        self._send_changed(orphans, store, mirrored, counts, are_orphans=True)
        self.has_sent_all = not self._sender.incomplete
        return dict(counts)

    def _send_changed(
        self,
        nodes: Sequence,
        store: Store,
        mirrored: Mapping,
        counts: Counter[str],
        are_orphans: bool = False,
    ) -> list:
        """Sends new and changed nodes. Adds the numbers of sent and unchanged nodes to `counts`.

        If `are_orphans` is false, skips and returns the nodes whose parent has no MLflow run.
        """
        orphans = []
        with ThreadPoolExecutor(self.num_senders) as threads:
            for start in range(0, len(nodes), NODES_AT_ONCE):
                part, changed = nodes[start : start + NODES_AT_ONCE], []
                entries = store.concurrently(content.node_entry, part)
                for node, entry in zip(part, entries, strict=True):
                    if entry is None:
                        continue
                    run = mirrored.get((entry.kind, entry.node_id))
                    has_parent = not entry.parent or ("run", entry.parent) in self._sender.known
                    if not has_parent and not are_orphans:
                        orphans.append(node)
                    elif run is not None and self._sender.is_mirrored(run, entry):
                        counts["unchanged"] += 1
                    else:
                        changed.append((node, entry))
                sent = threads.map(lambda pair: self._sender.mirror(*pair), changed)
                counts["sent"] += len(list(sent))
        return orphans

    def _has_finished(self, node_id: str, finished: Finished, mirrored: Mapping) -> bool:
        kind = next((kind for kind in content.ID_TAGS if (kind, node_id) in mirrored), "")
        run = mirrored.get((kind, node_id))
        if run is None or run.info.status != "FINISHED":
            return False
        parent = content.read_parent(run.data.tags, run.data.params)
        if parent is None:
            return False
        wanted = content.study_tags(finished.tags, finished.sha256)
        wanted |= self._sender.parent_tag(parent)
        wanted |= {content.NAME: content.run_name(kind, node_id, finished.tags)}
        last_step = number_of(run.data.params, "num_steps") if kind == "run" else -1
        return last_step is not None and has(run, last_step, wanted)

    def runs(self) -> Runs:
        """Reads the MLflow runs of all nodes as {(kind, node id): run}.

        Raises TrackingUnavailable if MLflow cannot be read or the database file is missing.
        """
        require_database(self.tracking_uri)
        return {key: oldest for key, (oldest, *_) in self._copies().items()}

    def study_nodes(self, study: str) -> Runs:
        """Reads the nodes of a study or search. Raises ValueError if MLflow has no such study."""
        nodes = self.runs()
        with self._mlflow.reaching():
            tags = [run.data.tags for run in self._study_runs("tags.`gram.kind` = 'study'")]
        identities = {of.get(content.STUDY, ""): of.get(content.STUDY_ID) for of in tags}
        require_choice("study", study, identities)
        wanted = f"{content.STUDY}.{study}", identities[study]
        return {key: run for key, run in nodes.items() if wanted in run.data.tags.items()}

    def _study_runs(self, filter_string: str) -> list[Run]:
        runs = self._mlflow.search(filter_string)
        runs = [run for run in runs if run.data.tags.get(content.KIND) == "study"]
        return sorted(runs, key=lambda run: run.info.end_time or 0)

    def history(self, run: Run, key: str) -> list[tuple[int, float]]:
        with self._mlflow.reaching() as client:
            points = client.get_metric_history(run.info.run_id, key)
        return [(point.step, point.value) for point in points]

    def _copies(self) -> dict[tuple[str, str], list[Run]]:
        with self._mlflow.reaching():
            runs = self._mlflow.search("")
        copies = {}
        for run in sorted(runs, key=age):
            kind = run.data.tags.get(content.KIND, "")
            node_id = run.data.tags.get(content.ID_TAGS.get(kind, ""))
            if node_id is not None:
                copies.setdefault((kind, node_id), []).append(run)
        return copies

    def log_study(self, study: StudyLog) -> str:
        """Logs a study's files and figures as artifacts of one MLflow run. Returns the run's id.

        Replaces the artifacts and chart lines that an earlier call logged for this study. Also
        sends the study's saved views.
        """
        of_study = {content.STUDY: study.name, content.STUDY_ID: study.identity}
        pages = {
            f"figures/{file_name(key)}.html": figure.to_html(include_plotlyjs="cdn").encode()
            for key, figure in study.figures.items()
        }
        facts = ", ".join(f"{key} {value}" for key, value in study.params.items())
        note = f"{study.name}: {facts}. "
        note += "Among the artifacts: the table, the report (one page) and every figure."
        note = "\n\n".join([note, *study.answers])
        tags = {content.KIND: "study", **of_study}
        with self._mlflow.writing() as client:
            present = self._mlflow.search(f"tags.`{content.STUDY_ID}` = '{study.identity}'")
            studies = [run for run in present if run.data.tags.get(content.KIND) == "study"]
            run = min(studies, key=age, default=None) or self._mlflow.create(
                f"study {study.name}", tags, time.time() * 1000
            )
            tags |= {**content.code_tags(study.code), content.NOTE: note}
            self._log_missing(run, tags, study.params, {})
            self._mlflow.write_artifacts(run.info.run_id, {**study.files, **pages})
            lines = [run for run in present if run.data.tags.get(content.KIND) == LINE]
            self._replace_lines(of_study, lines, study.lines)
            client.set_terminated(run.info.run_id, "FINISHED")
        self.log_views(study)
        return run.info.run_id

    def log_views(self, study: StudyLog) -> None:
        """Sends a study's saved views, and the trials, tags and metrics that these views show."""
        with self._mlflow.writing():
            self._mlflow.set_experiment_tags(study.views)
            self._mlflow.describe()
        runs = self.runs()
        self._mark_nodes(study, runs)
        self._send_trials(study, runs)

    def study_file(self, study: str, file: str) -> str | None:
        """Reads `file` from the newest of a study's MLflow runs that contain it.

        Returns None if there is no such run.
        """
        require_database(self.tracking_uri)
        if not is_safe_name(study):
            return None
        with self._mlflow.reaching():
            runs = reversed(self._study_runs(f"tags.`{content.STUDY}` = '{study}'"))
            read = (self._mlflow.read_artifact(run.info.run_id, file) for run in runs)
            return next((text for text in read if text is not None), None)

    def _replace_lines(
        self, of_study: Mapping[str, str], present: Sequence[Run], lines: Sequence[Line]
    ) -> None:
        """Creates an MLflow run for each new chart line, with the tags in `of_study`.

        Deletes the runs of former lines. The new runs are not children of the study's run, because
        MLflow's charts omit the children of a collapsed run.
        """
        client = self._mlflow.client
        wanted = {line.digest: line for line in lines}
        for run in present:
            if wanted.pop(run.data.tags.get(content.RESULT, ""), None) is None:
                client.delete_run(run.info.run_id)
        now = round(time.time() * 1000)
        for digest, line in wanted.items():
            tags = {content.KIND: LINE, content.RESULT: digest, **of_study}
            run = self._mlflow.create(line.name, {**line.tags, **tags}, now)
            points = [
                Metric(key, value, now, step)
                for step, at in line.points.items()
                for key, value in at.items()
            ]
            client.log_batch(run.info.run_id, metrics=points)
            client.set_terminated(run.info.run_id, "FINISHED")

    def _mark_nodes(self, study: StudyLog, runs: Runs) -> None:
        with self._mlflow.writing():
            for (_, node_id), run in runs.items():
                tags = dict(study.node_tags.get(node_id, {}))
                if node_id in study.node_tags:
                    tags[f"{content.STUDY}.{study.name}"] = study.identity
                if colour := study.colours.get(run.data.tags.get("method", "")):
                    tags[content.RUN_COLOUR] = colour
                self._log_missing(run, tags, {}, study.node_metrics.get(node_id, {}))

    def _send_trials(self, study: StudyLog, runs: Runs) -> None:
        with self._mlflow.writing() as client:
            present = {}
            for run in sorted(self._mlflow.search(trials_filter(study.identity)), key=age):
                if present.setdefault(run.data.tags.get(TRIAL_ID, ""), run) is not run:
                    self._sender.delete([run])
            for trial in study.trials:
                tags = {content.KIND: TRIAL_KIND, content.STUDY_ID: study.identity}
                tags[TRIAL_ID], elapsed_ms = trial.trial_id, milliseconds(trial.elapsed_s)
                run = present.get(trial.trial_id) or self._mlflow.create(
                    trial.name, tags, time.time() * 1000 - elapsed_ms
                )
                nodes = [runs[key].info for i in trial.run_ids if (key := ("run", i)) in runs]
                pages = [f"[{node.run_name}]({self.run_url(node.run_id, '')})" for node in nodes]
                about = {
                    content.NAME: trial.name,
                    content.NOTE: f"Runs: {', '.join(pages)}",
                    content.STATUS: trial.status,
                    content.STUDY: study.name,
                    content.SEARCH: trial.search,
                    "gram.trial": trial.trial,
                    "gram.runs": " ".join(trial.run_ids),
                }
                self._log_missing(run, about, trial.params, trial.metrics)
                status = content.MLFLOW_STATUS.get(trial.status, "FAILED")
                if run.info.status != status:
                    end_ms = run.info.start_time + elapsed_ms
                    client.set_terminated(run.info.run_id, status, end_time=end_ms)

    def _log_missing(
        self,
        run: Run,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        metrics: Mapping[str, float],
    ) -> None:
        texts = ({key: text_for_people(text) for key, text in of.items()} for of in (tags, params))
        new_tags, new_params = find_lacking(run, *texts)
        known, now = run.data.metrics, int(time.time() * 1000)
        new_metrics = [
            Metric(key, value, now, 0) for key, value in metrics.items() if known.get(key) != value
        ]
        if new_tags or new_params or new_metrics:
            self._mlflow.client.log_batch(run.info.run_id, new_metrics, new_params, new_tags)

    def register_export(
        self, run: RunDirectory, view: View, name: str, record: Path, tags: Mapping[str, str]
    ) -> str:
        """Registers an export as a new version of the model `name`. Returns the version number.

        `record` is the path of export.json. Sends the view's `run` to MLflow first. If the export
        already has a version, sets the version's tags. Otherwise logs the exported files as
        artifacts of the run.
        """
        digest, mlflow_run_id = hash_file(record), self.mirror(run)
        assert mlflow_run_id is not None, "an exported run was attempted"
        active = " ".join(f"{domain}={weight:g}" for domain, weight in view.weights) or "none"
        ids = {content.RUN_ID: view.run_id, content.VIEW_ID: view.view_id}
        tags = {**ids, "gram.modules": active, **tags}
        note = f"View of run `{view.run_id}`; modules switched on: {active}. "
        note += "The files' README says how it was verified."
        with self._mlflow.writing() as client:
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name)
            for version in client.search_model_versions(f"name = '{name}'"):
                if version.tags.get(EXPORT) == digest:
                    for key, value in tags.items():
                        client.set_model_version_tag(name, version.version, key, value)
                    return str(version.version)
            source = self._mlflow.copy_artifacts(
                mlflow_run_id, f"exports/{digest[:16]}", record.parent
            )
            tags |= {EXPORT: digest, content.KIND: "export"}
            made = client.create_model_version(
                name, source, mlflow_run_id, tags, description=note, await_creation_for=0
            )
            return str(made.version)

    def view_urls(self, study: str, pages: str = LOCAL_UI) -> dict[str, str]:
        """Returns {key: URL} of a study's saved views.

        `pages` is the base URL if MLflow has no server.
        """
        with self._mlflow.reaching():
            views = read_views(self._mlflow.experiment_tags(), self._mlflow.experiment_id)
        prefix, base = f"gram.{study}.", self._base(pages)
        return {
            key.removeprefix(prefix): f"{base}{page}"
            for key, (_, page) in views.items()
            if key.startswith(prefix)
        }

    def run_url(self, mlflow_run_id: str, pages: str = LOCAL_UI) -> str:
        """Returns the URL of a run's page. `pages` is the base URL if MLflow has no server."""
        with self._mlflow.reaching():
            experiment_id = self._mlflow.experiment_id
        return (
            f"{self._base(pages)}#/experiments/{experiment_id}/runs/{mlflow_run_id}?{TRAINING_RUNS}"
        )

    def _base(self, pages: str) -> str:
        return (
            f"{web_address(self.tracking_uri).rstrip('/')}/"
            if self.tracking_uri.startswith("http")
            else pages
        )


def file_name(name: str) -> str:
    """Returns a safe file name. Different names give different file names."""
    return (
        name
        if is_safe_name(name)
        else f"{re.sub('[^A-Za-z0-9-]', '_', name)[:100]}-{short_hash(name)}"
    )
