"""Optuna's database: SQLite in the storage, made under another name until it is whole, or a server's."""

from pathlib import Path

import optuna
from sqlalchemy.exc import SQLAlchemyError

from gram_platform.config.crash_safe import create_database
from gram_platform.config.identity import invalid
from gram_platform.store.folders import LocalFolder
from gram_platform.tracking.connection import first_line

PREFIX = "sqlite:///"


def open_storage(uri: str) -> optuna.storages.RDBStorage:
    """The database at `uri`, made if need be; ValueError naming `optuna_uri` when it cannot be opened.

    It is not MLflow's: both keep their schema's version in a table of the same name.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if not uri.startswith(PREFIX):
            return optuna.storages.RDBStorage(uri)
        path = Path(uri.removeprefix(PREFIX))
        with LocalFolder(str(path.parent), writable=True).lock("optuna"):
            if not path.exists():
                create_database(path, lambda url: optuna.storages.RDBStorage(url).engine.dispose())
        # a driver and readers share the file: wait for each other's locks
        return optuna.storages.RDBStorage(uri, engine_kwargs={"connect_args": {"timeout": 60}})
    except (SQLAlchemyError, RuntimeError, OSError) as error:
        raise invalid("optuna_uri", uri, f"a database that Optuna can open ({first_line(error)})") from error
