"""Reads and writes folders in object stores and other fsspec file systems."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import fsspec

from gram_platform.config.identity import hash_file
from gram_platform.store.files import Folder, is_safe_name, safe_name, with_retries

# Bytes per read, which a lost connection repeats.
CHUNK_BYTES = 16 * 2**20
# Connections per download. One leaves most of the bandwidth unused.
CONNECTIONS = 8


@dataclass(frozen=True)
class RemoteFolder(Folder):
    """A folder in an fsspec file system. Every write is a single put, and `lock` does nothing."""

    path: str
    writable: bool
    filesystem: fsspec.AbstractFileSystem

    def child(self, *names: str) -> "RemoteFolder":
        path = "/".join([self.path, *(safe_name("folder", name) for name in names)])
        return RemoteFolder(path, self.writable, self.filesystem)

    def address(self, name: str) -> str:
        return self.filesystem.unstrip_protocol(self.file(name))

    @with_retries
    def read(self, name: str, most: int = -1) -> bytes:
        return self.filesystem.cat_file(self.file(name))

    @with_retries
    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        self._put(lambda: self.filesystem.pipe_file(self.file(name), data))

    def write_with(self, name: str, writer: Callable[[str], object]) -> str:
        self._check_writable()
        with tempfile.TemporaryDirectory(prefix="gram-") as scratch:
            path = os.path.join(scratch, name)
            writer(path)
            self.upload(name, path)
            return hash_file(path)

    @with_retries
    def upload(self, name: str, path: str) -> None:
        self._put(lambda: self.filesystem.put_file(path, self.file(name)))

    def download(self, name: str, path: str) -> None:
        """Downloads the file to the local `path`, or continues a partial download there."""
        num_bytes = self.size(name)
        with open(path, "ab") as file, ThreadPoolExecutor(CONNECTIONS) as connections:
            while (done := file.tell()) < num_bytes:
                starts = range(done, num_bytes, CHUNK_BYTES)[:CONNECTIONS]
                stops = (min(start + CHUNK_BYTES, num_bytes) for start in starts)
                for chunk in connections.map(partial(self.read_range, name), starts, stops):
                    file.write(chunk)

    @with_retries
    def read_range(self, name: str, start: int, end: int) -> bytes:
        return self.filesystem.cat_file(self.file(name), start=start, end=end)

    @with_retries
    def create(self, name: str, data: bytes) -> bool:
        """Writes the file if it does not exist. Returns True if written. Atomic on S3 and GCS."""
        try:
            self._put(lambda: self.filesystem.pipe_file(self.file(name), data, mode="create"))
        except FileExistsError:
            return False
        return True

    @with_retries
    def size(self, name: str) -> int:
        return self.filesystem.size(self.file(name))

    @with_retries
    def exists(self, name: str) -> bool:
        self.filesystem.invalidate_cache()
        return self.filesystem.exists(self.file(name))

    @with_retries
    def list(self) -> list[str]:
        self.filesystem.invalidate_cache()
        try:
            paths = self.filesystem.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(filter(is_safe_name, (path.rstrip("/").rsplit("/", 1)[-1] for path in paths)))

    @with_retries
    def versions(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Returns {subfolder: {file: version}} for files in `names`. A version is a hash.

        A subfolder that has only files with other names maps to {}. Lists this folder only once.
        """
        self.filesystem.invalidate_cache()
        versions: dict[str, dict[str, str]] = {}
        for path, info in self.filesystem.find(self.path, detail=True).items():
            folder, _, file = path.removeprefix(self.path).strip("/").partition("/")
            if is_safe_name(folder) and file:
                files = versions.setdefault(folder, {})
                if file in names:
                    files[file] = hashlib.sha256(str(info).encode()).hexdigest()[:16]
        return versions

    @with_retries
    def remove(self, name: str) -> None:
        self._check_writable()
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm(self.file(name), recursive=True)

    @with_retries
    def rename(self, old: str, new: str) -> None:
        self._check_writable()
        self.filesystem.mv(self.file(old), self.file(new), recursive=True)

    def _put(self, put: Callable[[], None]) -> None:
        self._check_writable()
        try:
            put()
        except FileNotFoundError:
            self.filesystem.makedirs(self.path, exist_ok=True)
            put()

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="gram-") as scratch:
            path = os.path.join(scratch, name)
            self.download(name, path)
            yield path

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self._check_writable()
        yield
