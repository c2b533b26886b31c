"""Defines flags that several commands share, and opens existing storages."""

import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gram_platform.config.crash_safe import require_rights
from gram_platform.config.identity import InvalidField, find_id, invalid
from gram_platform.config.terminal import say_progress
from gram_platform.methods.nodes import node_name
from gram_platform.planner import MACHINES
from gram_platform.store import Store
from gram_platform.store.root import storage_place
from gram_platform.studies.flags import Place, Switch, show_as

Storage = Annotated[
    Place, tyro.conf.arg(help="folder or URL of the storage; default $GRAM_STORAGE, or ~/.gram")
]
TrackingUri = Annotated[
    show_as(str, "URL"),
    tyro.conf.arg(help="MLflow server or database; default SQLite in the storage"),
]
AsJson = Annotated[Switch, tyro.conf.arg(name="json", help="print JSON, for scripts")]
MachineName = Literal[*MACHINES]
Positional = tyro.conf.Positional
RunText = Positional[show_as(str, "RUN")]


def open_existing(storage: str) -> Store:
    """Opens a storage for reading. Raises ValueError if it is missing or its layout is unknown."""
    place = storage_place(storage)
    store = Store(place)
    if store.is_local and not Path(store.root).is_dir():
        raise invalid("storage", place, "a folder that exists")
    store.require_known_layout()
    return store


def find_run(store: Store, text: str) -> str:
    """Returns the id of the run or import that `text` identifies.

    Tries `text` as the beginning of an id, as a name in `gram status` and as the beginning of a
    name, in this order. Raises ValueError if `text` matches nothing or is ambiguous.
    """
    try:
        return store.find_run(text)
    except InvalidField as error:
        run_ids = store.list_runs()
        tags = store.concurrently(lambda run_id: store.run(run_id).tags(), run_ids)
        nodes = zip(run_ids, tags, strict=True)
        names = {f"{node_name('run', *node)} ({node[0]})": node[0] for node in nodes}
        whole = [name for name in names if name.startswith(f"{text} (")]
        if not (known := whole or [name for name in sorted(names) if name.startswith(text)]):
            raise
        return names[find_id(error.field, text, known, error.expected)]


def make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
        require_rights(path)
    except OSError as error:
        raise invalid("out", path, f"a folder where files can be written ({error})") from error


def report_progress(what: str, done: int, total: int | None) -> None:
    share = f" {done / total:.0%}" if total else ""
    say_progress(f"{what}:{share} {done / 1e6:,.1f} MB")
