"""Builds the URI of an SQLite database, and corrects the paths of artifacts in it.

MLflow stores the absolute path of every run's artifacts in its database. If the database is copied,
the paths in the copy lead to the original's artifacts. A person can also enter any path into the
database. So this package reads and writes artifacts only in the `mlartifacts` folder next to the
database. The stored paths, which MLflow's pages use, are corrected before anything is sent.
"""

import contextlib
import re
import sqlite3
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import ArgumentError

from gram_platform.config.crash_safe import A_FILE, kind_of
from gram_platform.config.identity import absolute_place, invalid

ARTIFACTS = "mlartifacts"
LOCK_TIMEOUT_S = 30.0
JOURNALS = ("-journal", "-wal", "-shm")
# The scheme of a URI with `%`. MLflow would make a folder of an encoded path after `sqlite:///`.
ENCODED = "sqlite+pysqlite"
OTHER_PLACES = (
    ("experiments", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
REMEDY = "move the database away and call `gram sync`, which fills a new one"


def database_uri(path: str | Path) -> str:
    """Returns the URI of an SQLite file. Raises ValueError if no URI can express the path."""
    plain, encoded = f"sqlite:///{path}", URL.create(ENCODED, database=str(path)).render_as_string()
    for uri in (plain, encoded):
        if make_url(uri).database == str(path) and not make_url(uri).query:
            return uri
    raise invalid(
        "storage",
        str(path),
        "a path without `?` and `%`, which mean something in the URI of a database",
    )


def database_path(uri: str) -> Path | None:
    """Returns the absolute path of the SQLite file in a URI, or None for another URI."""
    prefix, separator, _ = uri.partition(":///")
    if not separator or not prefix.startswith("sqlite"):
        return None
    return Path(make_url(uri).database or "").absolute()


def with_absolute_path(field: str, uri: str) -> str:
    """Returns an SQLite URI with an absolute path and unchanged options.

    Raises ValueError for an unknown home directory, or a relative path in a Ray job.
    """
    url = make_url(uri)
    path = absolute_place(field, url.database or "")
    return url.set(database=path).render_as_string() if url.query else database_uri(path)


def require_driver(field: str, uri: str) -> None:
    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ImportError, ArgumentError) as error:
        raise invalid(field, uri, f"a database whose driver is installed ({error})") from error


def require_regular(database: Path) -> None:
    """Raises OSError if the database or one of its journals exists but is not a regular file."""
    for suffix in ("", *JOURNALS):
        path = database.with_name(database.name + suffix)
        if (kind := kind_of(path)) not in (A_FILE, ""):
            raise OSError(f"{path} is {kind}, and not a file: remove it, or name another database")


def artifacts_location(database: Path) -> str:
    return (database.parent.resolve() / ARTIFACTS).as_uri()


def correct_places(database: Path, experiment_id: str) -> None:
    """Corrects the paths of artifacts in a database that was moved or copied.

    Several processes may call it at once. If a path is not in an `mlartifacts` folder, changes
    nothing and raises ValueError. Raises OSError if the database cannot be read or written.
    """
    here = artifacts_location(database)
    try:
        with contextlib.closing(
            sqlite3.connect(database, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        ) as connection:
            if _find_moved(connection, experiment_id, here):
                connection.execute("BEGIN IMMEDIATE")
                _correct(connection, experiment_id, here)
                connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise OSError(f"{database}: {error}") from error


def _find_moved(connection: sqlite3.Connection, experiment_id: str, here: str) -> dict[str, str]:
    places = connection.execute(
        "SELECT '', artifact_location FROM experiments WHERE experiment_id = :experiment "
        "UNION ALL SELECT run_uuid, artifact_uri FROM runs WHERE experiment_id = :experiment",
        {"experiment": experiment_id},
    ).fetchall()
    moved = {}
    for run_id, place in places:
        rest = f"/{run_id}/artifacts" if run_id else ""
        if place == here + rest:
            continue
        pattern = rf"(file://)?/([^?#]*/)?{ARTIFACTS}{re.escape(rest)}"
        if not (isinstance(place, str) and re.fullmatch(pattern, place)):
            earlier = f"or {ARTIFACTS}{rest} in a folder that had the database before: {REMEDY}"
            raise invalid(
                "artifact_uri" if run_id else "artifact_location", place, f"{here}{rest}, {earlier}"
            )
        moved[run_id] = here + rest
    return moved


def _correct(connection: sqlite3.Connection, experiment_id: str, here: str) -> None:
    moved = _find_moved(connection, experiment_id, here)
    if "" in moved:
        select = "SELECT artifact_location FROM experiments WHERE experiment_id = ?"
        ((old,),) = connection.execute(select, (experiment_id,))
        for table, column in OTHER_PLACES:
            begins = f"{column} = :old OR substr({column}, 1, length(:old) + 1) = :old || '/'"
            changed = f"{column} = :here || substr({column}, length(:old) + 1)"
            connection.execute(
                f"UPDATE {table} SET {changed} WHERE {begins}", {"old": old, "here": here}
            )
    runs = [(place, run_id) for run_id, place in moved.items() if run_id]
    connection.executemany("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", runs)
