"""A folder of an object store through fsspec, and the choice between local and remote from a root's spelling."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

import fsspec

from gram_platform.config.identity import invalid
from gram_platform.store.files import Folder, hash_file, is_safe_name, safe_name
from gram_platform.store.local import LocalFolder
from gram_platform.store.retries import persistent

CHUNK_BYTES = 64 * 2**20  # of a download: what a lost connection costs


class RemoteFolder(Folder):
    """A prefix of an fsspec file system: every write is one put, there are no locks."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem, path: str, writable: bool) -> None:
        super().__init__(path, writable)
        self.filesystem = filesystem

    def child(self, *names: str) -> "RemoteFolder":
        path = "/".join([self.path, *(safe_name("folder", name) for name in names)])
        return RemoteFolder(self.filesystem, path, self.writable)

    @persistent
    def read(self, name: str) -> bytes:
        return self.filesystem.cat_file(self.file(name))

    @persistent
    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        self._check_writable()
        self._put(lambda: self.filesystem.pipe_file(self.file(name), data))

    def write_with(self, name: str, writer: Callable[[str], None]) -> str:
        self._check_writable()
        with tempfile.TemporaryDirectory(prefix="gram-") as scratch:
            path = os.path.join(scratch, name)
            writer(path)
            self.upload(name, path)
            return hash_file(path)

    @persistent
    def upload(self, name: str, path: str) -> None:
        """Put the local file at `path` under `name`."""
        self._check_writable()
        self._put(lambda: self.filesystem.put_file(path, self.file(name)))

    def download(self, name: str, path: str) -> None:
        """Copy the file to the local `path`, whose folder exists; a part of it that is there is continued."""
        num_bytes = self.size(name)
        with open(path, "ab") as file:
            while (done := file.tell()) < num_bytes:
                file.write(self._read_range(name, done, min(done + CHUNK_BYTES, num_bytes)))

    @persistent
    def _read_range(self, name: str, start: int, end: int) -> bytes:
        return self.filesystem.cat_file(self.file(name), start=start, end=end)

    @persistent
    def create(self, name: str, data: bytes) -> bool:
        """As locally; "if it does not exist" is the store's own where its fsspec driver offers it (S3, GCS)."""
        self._check_writable()
        try:
            self._put(lambda: self.filesystem.pipe_file(self.file(name), data, mode="create"))
        except FileExistsError:
            return False
        return True

    @persistent
    def size(self, name: str) -> int:
        return self.filesystem.size(self.file(name))

    @persistent
    def exists(self, name: str) -> bool:
        self.filesystem.invalidate_cache()
        return self.filesystem.exists(self.file(name))

    @persistent
    def list(self) -> list[str]:
        self.filesystem.invalidate_cache()
        try:
            paths = self.filesystem.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(filter(is_safe_name, (path.rstrip("/").rsplit("/", 1)[-1] for path in paths)))

    @persistent
    def remove(self, name: str) -> None:
        self._check_writable()
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm(self.file(name), recursive=True)

    @persistent
    def rename(self, old: str, new: str) -> None:
        self._check_writable()
        self.filesystem.mv(self.file(old), self.file(new), recursive=True)

    def _put(self, put: Callable[[], None]) -> None:
        """Object stores have no directories to make; file systems behind a URL do."""
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


def open_folder(root: str, writable: bool = False) -> Folder:
    """The folder at a local path (`~` expanded) or an fsspec URL; ValueError naming `storage` for an unknown URL."""
    protocol, separator, _ = str(root).partition("://")
    if not separator or protocol in ("file", "local"):
        path = str(root).removeprefix(f"{protocol}://") if separator else str(root)
        return LocalFolder(os.path.abspath(os.path.expanduser(path)), writable)
    try:
        filesystem, path = fsspec.core.url_to_fs(root)
    except (ValueError, ImportError) as error:
        raise invalid("storage", root, f"a local path or an fsspec URL ({error})") from error
    return RemoteFolder(filesystem, path.rstrip("/"), writable)
