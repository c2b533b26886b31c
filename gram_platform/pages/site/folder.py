"""Writes the pages of a site into its folder, each whole and only if its inputs have changed.

`manifest.json` has a hash of every page's inputs, and the page's summary for other pages.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import plotly

from gram_platform.config.identity import has_shape, invalid
from gram_platform.pages.report.page import ASSETS, asset
from gram_platform.store import Folder
from gram_platform.store.files import is_safe_name
from gram_platform.store.folders import LocalFolder

SITE_MANIFEST = "manifest.json"
UNWRITABLE = (PermissionError, FileExistsError, NotADirectoryError)
ROOMS = ("analysis", "pages", "paper", "tracking")  # a change of their code rewrites every page


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


class SiteFolder:
    """The pages by address, such as `index.html` or `studies/scaling.html`. Call `finish` after the last page."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.num_written = 0
        self._before = {k: v for k, v in folder.read_spare(SITE_MANIFEST).items() if _is_entry(k, v)}
        self._present = set(folder.list())
        self._present |= {f"studies/{name}" for name in folder.child("studies").list()}
        self._pages: dict[str, dict] = {}

    def page(self, address: str, inputs: object, render: Callable[[], tuple[str, object]], shape: Any = object) -> Any:
        """Writes the page unless it exists with equal `inputs`, JSON values; returns its summary for other pages.

        `render` returns the HTML and the summary; both must follow from `inputs`. `shape` is the summary's (see
        `has_shape`): a stored one of another shape is made again.
        """
        made_from = _hash([code_version(), inputs])
        before = self._before.get(address)
        is_known = before is not None and before["made_from"] == made_from and has_shape(before["leaves"], shape)
        if is_known and address in self._present:
            self._pages[address] = before
        else:
            text, summary = render()
            self._write(address, text.encode())
            self._pages[address] = {"made_from": made_from, "leaves": summary}
        return self._pages[address]["leaves"]

    def finish(self) -> None:
        """Writes the shared assets, removes the pages that are no longer written, and writes the manifest."""
        for name in ASSETS:
            data = asset(name).encode()
            if name not in self._present or self._before.get(name) != _hash(data.decode()):
                self._write(name, data)
            self._pages[name] = _hash(data.decode())
        for address in self._before.keys() - self._pages.keys():
            self._place(address).remove(address.rpartition("/")[2])
        if self._pages != self._before:
            self.folder.write_json(SITE_MANIFEST, self._pages, durable=False)

    def _write(self, address: str, data: bytes) -> None:
        self._place(address).write(address.rpartition("/")[2], data, durable=False)
        self.num_written += 1

    def _place(self, address: str) -> Folder:
        parent = address.rpartition("/")[0]
        return self.folder.child(parent) if parent else self.folder


def _is_entry(address: str, entry: object) -> bool:
    """Tells whether a stored manifest can say this of a page or an asset: it says nothing of other files."""
    if address in ASSETS:
        return isinstance(entry, str)
    folder, _, name = address.rpartition("/")
    is_page = (not folder or is_safe_name(folder)) and is_safe_name(name) and name.endswith(".html")
    return is_page and has_shape(entry, {"made_from": str, "leaves": lambda leaves: True})


@cache
def code_version() -> str:
    """Hashes the code of ROOMS and plotly's version."""
    package = Path(__file__).resolve().parents[2]
    files = sorted(path for room in ROOMS for path in (package / room).rglob("*.*") if path.suffix != ".pyc")
    return _hash([plotly.__version__, *(path.read_text(encoding="utf-8") for path in files)])


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
