"""Writes and reads artifacts of MLflow's runs: those of an SQLite database are beside it, whatever places it names."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gram_platform.store.folders import LocalFolder
from gram_platform.tracking.connection import Connection, TrackingUnavailable
from gram_platform.tracking.database import ARTIFACTS


class Artifacts:
    """The artifacts of the runs of one MLflow, by the run's id and a path such as `figures/curves.html`.

    Used only within the connection's `reaching` or `writing`. TrackingUnavailable also for an id or a path that is no
    safe name, and where something else than a folder has a folder's place.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._database = connection.database

    def write(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Writes files, whose texts are UTF-8, as artifacts of a run."""
        for file, data in files.items():
            if self._database is None:
                self._connection.client.log_text(run_id, data.decode(), file)
                continue
            with self._place(self._database, run_id, file, writable=True) as (folder, name):
                folder.write(name, data, durable=False)

    def copy(self, run_id: str, place: str, source: Path) -> str:
        """Copies all files below a folder to the path `place` of a run; returns their URI."""
        client = self._connection.client
        if self._database is None:
            client.log_artifacts(run_id, str(source), place)
        for path in sorted(source.rglob("*")) if self._database is not None else ():
            if path.is_file():
                file = f"{place}/{path.relative_to(source).as_posix()}"
                with self._place(self._database, run_id, file, writable=True) as (folder, name):
                    folder.write_with(name, lambda target, path=path: shutil.copyfile(path, target))
        return f"{client.get_run(run_id).info.artifact_uri}/{place}"

    def read(self, run_id: str, file: str) -> str | None:
        """Reads an artifact of a run; None if it is absent, or no text."""
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            if self._database is not None:
                with self._place(self._database, run_id, file, writable=False) as (folder, name):
                    return folder.read(name).decode()
            client = self._connection.client
            if any(artifact.path == file for artifact in client.list_artifacts(run_id)):
                with tempfile.TemporaryDirectory() as folder:
                    return Path(client.download_artifacts(run_id, file, folder)).read_text(encoding="utf-8")
        return None

    @contextlib.contextmanager
    def _place(self, database: Path, run_id: str, file: str, writable: bool) -> Iterator[tuple[LocalFolder, str]]:
        """Yields the folder of an artifact beside a database, and its name there."""
        *folders, name = file.split("/")
        try:
            yield LocalFolder(str(database.parent), writable).child(ARTIFACTS, run_id, "artifacts", *folders), name
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            raise TrackingUnavailable(f"artifacts of MLflow at {self._connection.tracking_uri}: {error}") from error
