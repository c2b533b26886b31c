"""Writes the files of a site into its folder, each whole and only if it has changed."""

import contextlib
import os
from collections.abc import Iterator, Mapping

from gram_platform.config.identity import has_shape, invalid
from gram_platform.store import CorruptFile, Folder
from gram_platform.store.files import is_safe_name
from gram_platform.store.folders import LocalFolder

FORMER_MANIFEST = "manifest.json"  # of a site that an earlier version has built
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
    changed = [name for name, data in files.items() if _differs(folder, name, data)]
    for name in changed:
        folder.write(name, files[name], durable=False)
    return len(changed)


def _differs(folder: Folder, name: str, data: bytes) -> bool:
    try:
        return folder.read(name) != data
    except (FileNotFoundError, CorruptFile):  # something that is no file has its name: a write sets it aside
        return True


def remove_former(folder: Folder) -> None:
    """Removes the pages that an earlier version has built here, as its manifest lists them: nobody updates them."""
    former = folder.read_spare(
        FORMER_MANIFEST, {str: lambda made: isinstance(made, str) or has_shape(made, {"made_from": str})}
    )
    if "index.html" not in former:  # the manifest of something else
        return
    for address in former:
        *folders, name = address.split("/")
        if all(map(is_safe_name, (*folders, name))):
            folder.child(*folders).remove(name)
    folder.remove(FORMER_MANIFEST)
