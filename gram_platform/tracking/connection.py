"""Connects to the platform's experiment on an MLflow server or database.

A server that is down must not slow training. Requests time out after 20 s and are retried once.
After a failure, all calls fail immediately for a minute. MLflow's environment variables override
the timeout and the retries.
"""

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException, RestException
from mlflow.tracking.context.registry import resolve_tags

from gram_platform.config.crash_safe import create_database, require_rights
from gram_platform.config.endings import explain_error
from gram_platform.config.identity import RAY_JOB_VARIABLE, invalid, mask_secrets
from gram_platform.config.provenance import STARTED, command_line
from gram_platform.store import Store
from gram_platform.store.folders import LocalFolder
from gram_platform.tracking import entry as content
from gram_platform.tracking.database import (
    ARTIFACTS,
    artifacts_location,
    correct_places,
    database_path,
    database_uri,
    require_driver,
    require_regular,
)
from gram_platform.tracking.values import LONGEST_NAME, text_for_people
from gram_platform.tracking.views import ABOUT, EXPERIMENT_NOTE, experiment_note

EXPERIMENT = "gram"
# Seconds after a failure in which every call fails at once.
QUIET_S = 60.0
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
PAGE = 1000
SERVERS = ("http", "https")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


class TrackingUnavailable(RuntimeError):
    """MLflow could not be reached, or rejected a call. A later `sync` sends what is missing."""

    def __init__(self, reason: str) -> None:
        super().__init__(mask_secrets(reason))


class Connection:
    """The platform's experiment on an MLflow server or database. Connects on first use.

    Raises ValueError for a URI that `require_tracking_uri` rejects.
    """

    def __init__(self, tracking_uri: str) -> None:
        require_tracking_uri(tracking_uri)
        self.tracking_uri = tracking_uri
        self.database = database_path(tracking_uri)
        self._client: MlflowClient | None = None
        self.experiment_id = ""
        self._quiet_until, self._reason = 0.0, ""
        self._has_right_places = False

    def ask_again(self) -> None:
        self._quiet_until = 0.0

    @contextlib.contextmanager
    def reaching(self) -> Iterator[MlflowClient]:
        """Context manager that yields an MlflowClient.

        Raises TrackingUnavailable if MLflow fails.
        """
        if time.monotonic() < self._quiet_until:
            raise TrackingUnavailable(self._reason)
        try:
            if self._client is None:
                self._connect()
            yield self._client
        except (MlflowException, OSError) as error:
            self._reason = f"MLflow at {self.tracking_uri} is not available: {first_line(error)}"
            self._quiet_until = time.monotonic() + QUIET_S
            raise TrackingUnavailable(self._reason) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[MlflowClient]:
        """Context manager that yields an MlflowClient for calls that write.

        If the database was moved, first corrects the artifact paths in it. Raises
        TrackingUnavailable if MLflow fails, or if an artifact path is not in an `mlartifacts`
        folder.
        """
        with self.reaching() as client:
            if self.database is not None and not self._has_right_places:
                require_rights(self.database)
                try:
                    correct_places(self.database, self.experiment_id)
                except ValueError as error:
                    raise TrackingUnavailable(
                        f"MLflow at {self.tracking_uri} is not used: {error}"
                    ) from error
                self._has_right_places = True
            yield client

    @property
    def client(self) -> MlflowClient:
        assert self._client is not None, "only within `reaching`"
        return self._client

    def has_refused(self, error: MlflowException) -> bool:
        """Returns True if MLflow answered and rejected the call."""
        answered = isinstance(error, RestException) or not self.tracking_uri.startswith("http")
        # With this code, MLflow could not reach its database.
        return answered and error.error_code != "TEMPORARILY_UNAVAILABLE"

    def search(self, filter_string: str) -> list[Run]:
        runs, token = [], None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], filter_string, max_results=PAGE, page_token=token
            )
            runs += page
            token = page.token
            if not token:
                return runs

    def experiment_tags(self) -> dict[str, str]:
        return self.client.get_experiment(self.experiment_id).tags

    def set_experiment_tags(self, tags: Mapping[str, str]) -> None:
        present = self.experiment_tags()
        for key, value in tags.items():
            if present.get(key) != value:
                self.client.set_experiment_tag(self.experiment_id, key, value)

    def describe(self) -> None:
        """Adds links to saved views to the experiment's description. Keeps a user's own text."""
        tags = self.experiment_tags()
        if ABOUT in tags.get(content.NOTE, ABOUT):
            self.set_experiment_tags({content.NOTE: experiment_note(tags, self.experiment_id)})

    def create(self, name: str, tags: Mapping[str, str], start_ms: float) -> Run:
        """Creates a run with `tags` and MLflow's own tags, such as the user and the commit."""
        tags = {key: text_for_people(value) for key, value in {**context_tags(), **tags}.items()}
        # Cut as MLflow cuts the end, because a rounded start could be later.
        start, name = int(start_ms), text_for_people(name, LONGEST_NAME)
        return self.client.create_run(
            self.experiment_id, start_time=start, tags=tags, run_name=name
        )

    def write_artifacts(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Writes `files` ({path: UTF-8 content}) as a run's artifacts.

        For an SQLite database, writes to the `mlartifacts` folder next to the database, even if the
        database names another folder. Raises TrackingUnavailable for an unsafe run id or path, or
        if a file would replace a folder.
        """
        for file, data in files.items():
            if self.database is None:
                self.client.log_text(run_id, data.decode(), file)
                continue
            with self._beside_database(run_id, file, writable=True) as (folder, name):
                folder.write(name, data, durable=False)

    def copy_artifacts(self, run_id: str, place: str, source: Path) -> str:
        """Copies the folder `source` to a run's artifacts at `place`. Returns the copy's URI."""
        if self.database is None:
            self.client.log_artifacts(run_id, str(source), place)
        else:
            for path in sorted(filter(Path.is_file, source.rglob("*"))):
                file = f"{place}/{path.relative_to(source).as_posix()}"
                with self._beside_database(run_id, file, writable=True) as (folder, name):
                    folder.write_with(name, partial(shutil.copyfile, path))
        return f"{self.client.get_run(run_id).info.artifact_uri}/{place}"

    def read_artifact(self, run_id: str, file: str) -> str | None:
        """Reads an artifact of a run, or returns None if it is missing or not UTF-8."""
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            if self.database is not None:
                with self._beside_database(run_id, file, writable=False) as (folder, name):
                    return folder.read(name).decode()
            if any(artifact.path == file for artifact in self.client.list_artifacts(run_id)):
                with tempfile.TemporaryDirectory() as folder:
                    path = self.client.download_artifacts(run_id, file, folder)
                    return Path(path).read_text(encoding="utf-8")
        return None

    @contextlib.contextmanager
    def _beside_database(
        self, run_id: str, file: str, writable: bool
    ) -> Iterator[tuple[LocalFolder, str]]:
        *folders, name = file.split("/")
        place = LocalFolder(str(self.database.parent), writable)
        try:
            yield place.child(ARTIFACTS, run_id, "artifacts", *folders), name
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            raise TrackingUnavailable(
                f"artifacts of MLflow at {self.tracking_uri}: {error}"
            ) from error

    def _connect(self) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        for name in ("mlflow.store.db.utils", "psycopg"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        location, lock = None, contextlib.nullcontext()
        if self.database is None:
            # MLflow would retry for minutes if the database server did not answer.
            parts = urlsplit(self.tracking_uri)
            scheme = parts.scheme.partition("+")[0]
            port = parts.port or {"postgresql": 5432, "mysql": 3306}.get(scheme)
            if parts.hostname and port and scheme not in SERVERS:
                socket.create_connection((parts.hostname, port), timeout=3.0).close()
        else:
            require_regular(self.database)
            location = artifacts_location(self.database)
            # Only one of several processes could create the database at once.
            lock = LocalFolder(str(self.database.parent), writable=True).lock("mlflow")
        with lock:
            try:
                if self.database is not None and not self.database.exists():
                    create_database(self.database, lambda path: MlflowClient(database_uri(path)))
                client = MlflowClient(self.tracking_uri)
                self.experiment_id = _ensure_experiment(client, location)
            except MlflowException:
                raise
            except Exception as error:
                # It comes from the database's driver, which need not be installed.
                raise ConnectionError(f"{type(error).__name__}: {error}") from error
        self._client = client


@cache
def context_tags() -> dict[str, str]:
    tags = {**resolve_tags(), "gram.command": command_line(), "gram.submission": STARTED}
    job = json.loads(os.environ.get(RAY_JOB_VARIABLE) or "{}").get("metadata", {})
    if "job_submission_id" in job:
        tags["gram.ray_job_id"] = job["job_submission_id"]
    return tags


def web_address(uri: str) -> str:
    parts = urlsplit(uri)
    return mask_secrets(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())


def explain_opening(uri: str) -> str:
    """Returns an MLflow server's address, or a command that serves a database. Hides passwords."""
    if uri.startswith("http"):
        return web_address(uri)
    database = database_path(uri)
    if database is not None and database.with_name("store.json").exists():
        return f"gram ui --storage {shlex.quote(str(database.parent))}"
    return f"mlflow ui --backend-store-uri {mask_secrets(shlex.quote(uri))}"


def require_tracking_uri(uri: str) -> None:
    scheme, separator, _ = uri.partition("://")
    if not separator or (scheme not in SERVERS and scheme.partition("+")[0] not in DATABASES):
        raise invalid(
            "tracking_uri",
            uri,
            "a URI such as http://host:5000 or sqlite:////path/mlflow.db, of"
            f" {', '.join(SERVERS + DATABASES)}; a database also with its driver, as"
            " postgresql+psycopg",
        )
    try:
        host, _ = urlsplit(uri).hostname, urlsplit(uri).port
    except ValueError as error:
        # Its text may have a part of the password.
        raise invalid("tracking_uri", uri, "a URI with a port from 0 to 65535") from error
    if scheme in SERVERS and not host:
        raise invalid("tracking_uri", uri, "a URI with a host, such as http://host:5000")
    if scheme not in SERVERS:
        require_driver("tracking_uri", uri)


def default_tracking_uri(storage: str) -> str:
    """Returns the URI of a local storage's MLflow database. Raises ValueError for object stores."""
    store = Store(storage)
    if not store.is_local:
        raise invalid(
            "tracking_uri",
            None,
            f"the address of an MLflow server or database, because {storage} cannot hold one",
        )
    return database_uri(Path(store.root) / "mlflow.db")


def require_database(uri: str) -> None:
    """Raises TrackingUnavailable if the database file is missing. MLflow would create one."""
    database = database_path(uri)
    if database is not None and not database.exists():
        raise TrackingUnavailable(f"MLflow at {uri} is not available: there is no {database}")


EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    content.NOTE: EXPERIMENT_NOTE,
}


def _ensure_experiment(client: MlflowClient, artifact_location: str | None) -> str:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        try:
            return client.create_experiment(EXPERIMENT, artifact_location, tags=EXPERIMENT_TAGS)
        except MlflowException:
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        client.restore_experiment(experiment.experiment_id)
    for key, value in EXPERIMENT_TAGS.items():
        if key not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, key, value)
    return experiment.experiment_id


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, cut at 300 characters.

    If the text is empty, returns the name of the error's class. Leaves out SQLAlchemy's prefix
    `(raised as a result of ...)`.
    """
    text = re.sub(r"^\(raised as a result of [^)]*\)", "", explain_error(error).strip())
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
