"""The site's folder: a page is written when what it is made from has changed, each file as a whole.

`manifest.json` has, for every page, a hash of what it was made from, and what the page leaves for other pages.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import plotly

from gram_platform.pages.report.page import ASSETS, asset
from gram_platform.store import CorruptFile, Folder

MANIFEST = "manifest.json"
ROOMS = ("analysis", "pages", "paper", "tracking")  # whose code makes the pages


class SiteFolder:
    """Pages by address, such as `index.html` or `runs/0123456789ab.html`. `finish` ends a building of the site."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.num_written = 0
        try:
            self._before = folder.read_json(MANIFEST) or {}
        except CorruptFile:
            self._before = {}
        self._present = set(folder.list())
        self._present |= {f"{place}/{name}" for place in ("runs", "studies") for name in folder.child(place).list()}
        self._pages: dict[str, dict] = {}

    def page(self, address: str, inputs: object, render: Callable[[], tuple[str, object]]) -> object:
        """Writes the page unless it is there and made from equal `inputs`; returns what it leaves for other pages.

        `render` gives the HTML and that, both of which must follow from `inputs`, JSON values.
        """
        made_from = _hash([code_version(), inputs])
        before = self._before.get(address)
        if before and before["made_from"] == made_from and address in self._present:
            self._pages[address] = before
        else:
            text, leaves = render()
            self._write(address, text.encode())
            self._pages[address] = {"made_from": made_from, "leaves": leaves}
        return self._pages[address]["leaves"]

    def finish(self) -> None:
        """Writes what all pages share, removes pages of what is gone, and remembers what was built."""
        for name in ASSETS:
            data = asset(name).encode()
            if name not in self._present or self._before.get(name) != _hash(data.decode()):
                self._write(name, data)
            self._pages[name] = _hash(data.decode())
        for address in self._before.keys() - self._pages.keys():
            self._place(address).remove(address.rpartition("/")[2])
        if self._pages != self._before:
            self.folder.write_json(MANIFEST, self._pages, durable=False)

    def _write(self, address: str, data: bytes) -> None:
        self._place(address).write(address.rpartition("/")[2], data, durable=False)
        self.num_written += 1

    def _place(self, address: str) -> Folder:
        parent = address.rpartition("/")[0]
        return self.folder.child(parent) if parent else self.folder


@cache
def code_version() -> str:
    """A hash of the code that makes pages, so that a new version makes them again."""
    package = Path(__file__).resolve().parents[2]
    files = sorted(path for room in ROOMS for path in (package / room).rglob("*.*") if path.suffix != ".pyc")
    return _hash([plotly.__version__, *(path.read_text(encoding="utf-8") for path in files)])


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
