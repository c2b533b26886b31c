"""An object store with machines that use it."""

from pathlib import Path

import fsspec
import pytest

from gram_platform.store import files
from tests.shelf.shelf import Shelf

SHA256_DIGITS = 64


class Place:
    """An object store, and the machines that use it: each has a cache of its own."""

    def __init__(self, root: Path, monkeypatch):
        self.root, self.monkeypatch = root, monkeypatch
        self.folder = root / "bucket"
        self.url = f"shelf://{self.folder}"
        Path(f"{self.folder}.log").touch()
        self.move_to("driver")

    def move_to(self, machine: str) -> None:
        self.monkeypatch.setenv("GRAM_CACHE", str(self.root / machine))

    def calls(self, name: str) -> list[str]:
        lines = Path(f"{self.folder}.log").read_text().splitlines()
        return [line.split("/")[-1] for line in lines if line.startswith(name + " ")]

    def fetched(self) -> list[str]:
        """The files of packed data that were read, in pieces of a download."""
        return [name for name in self.calls("cat_file") if len(name) == SHA256_DIGITS]

    def fail(self, num_calls: int) -> None:
        Path(f"{self.folder}.failures").write_text(str(num_calls))


@pytest.fixture
def place(tmp_path, monkeypatch):
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    monkeypatch.setattr(files, "FIRST_DELAY_S", 0.01)
    return Place(tmp_path, monkeypatch)
