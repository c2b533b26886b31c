"""Writes the files of a site into its folder, each whole and only if it has changed."""

import contextlib
import os
from collections.abc import Iterator, Mapping

from gram_platform.config.identity import invalid
from gram_platform.store import Folder
from gram_platform.store.folders import LocalFolder

UNWRITABLE = (PermissionError, FileExistsError, NotADirectoryError)


@contextlib.contextmanager
def writing(folder: Folder) -> Iterator[None]:
    """Makes errors of a folder in which nothing can be written ValueErrors that name `out`."""
    if isinstance(folder, LocalFolder):
        make_folder(folder.path)
    try:
        yield
    except UNWRITABLE as error:
        raise _unwritable(folder.path, error) from error


def make_folder(path: str) -> None:
    """Makes a local folder if need be; ValueError that names `out`, if that fails or nothing can be written there."""
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError) -> ValueError:
    return invalid("out", path, f"a folder where files can be written ({error})")


def write_changed(folder: Folder, files: Mapping[str, bytes]) -> int:
    """Writes the files whose bytes differ from those that are there; returns their number."""
    present = set(folder.list())
    changed = [name for name, data in files.items() if name not in present or folder.read(name) != data]
    for name in changed:
        folder.write(name, files[name], durable=False)
    return len(changed)
