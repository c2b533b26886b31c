"""Reads and writes the storage's folders, on this machine or in an object store through fsspec."""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

import fsspec

from gram_platform.config.crash_safe import make_folders, sync, temporary_beside, whole_file
from gram_platform.config.identity import hash_file, invalid
from gram_platform.store.files import Folder, Value, is_safe_name, is_transient, persistent, safe_name


def written_again(method: Callable) -> Callable:
    """Decorates a method that writes a file: once more, if another process removed it before it was whole.

    That process believed that this one had ended, since it had slept for long.
    """

    @functools.wraps(method)
    def writing(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except FileNotFoundError:
            return method(self, *args, **kwargs)

    return writing


class LocalFolder(Folder):
    """A directory of this machine or of a mounted file system; the first write creates it."""

    def child(self, *names: str) -> "LocalFolder":
        return LocalFolder(os.path.join(self.path, *(safe_name("folder", name) for name in names)), self.writable)

    @persistent
    def read(self, name: str) -> bytes:
        try:
            with self._look(lambda: open(self.file(name), "rb")) as file:
                return file.read()
        except NotADirectoryError as error:  # a file has the folder's name
            raise FileNotFoundError(self.file(name)) from error

    @persistent
    @written_again
    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        """Replaces the file atomically; a `durable` one survives a crash of the machine."""
        with whole_file(self._target(name, durable), durable) as temporary:
            Path(temporary).write_bytes(data)
        if durable:
            sync(self.path)

    @persistent
    @written_again
    def write_with(self, name: str, writer: Callable[[str], object]) -> str:
        """Lets `writer` fill a local path, publishes the file as `name` and returns its SHA-256.

        Until the next durable write to the same folder, a crash of the machine may lose the name.
        """
        with whole_file(self._target(name), durable=True) as temporary:
            writer(temporary)
            return hash_file(temporary)

    @persistent
    @written_again
    def create(self, name: str, data: bytes) -> bool:
        """Writes the file unless it exists; True for the one writer that created it.

        After a transient error that writer may get False too, although its bytes are in the file.
        """
        path = self._target(name)
        with temporary_beside(path) as temporary:
            Path(temporary).write_bytes(data)
            sync(temporary)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:  # no hard links here: of two first writers, the last one wins
                if is_transient(error):
                    raise
                if self.exists(name):
                    return False
                os.replace(temporary, path)
        sync(self.path)
        return True

    @persistent
    def size(self, name: str) -> int:
        return os.path.getsize(self.file(name))

    @persistent
    def exists(self, name: str) -> bool:
        """Tells whether the file exists. Raises where a mount fails; `os.path.exists` would say no."""
        try:
            self._look(lambda: os.stat(self.file(name)))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @persistent
    def list(self) -> list[str]:
        """Lists safe names of files and folders, sorted; empty when the folder does not exist."""
        try:
            return sorted(filter(is_safe_name, self._look(lambda: os.listdir(self.path))))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @persistent
    def remove(self, name: str) -> None:
        """Removes a file or a whole folder, if it exists."""
        self._check_writable()
        path = self.file(name)
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(path)
            except (IsADirectoryError, PermissionError):  # of a folder; a failing mount, asked first, would say no
                if not stat.S_ISDIR(os.stat(path).st_mode):
                    raise
                shutil.rmtree(path, ignore_errors=True)

    @persistent
    def remove_temporaries(self, older_than_s: float = 0.0) -> None:
        self._check_writable()
        for path in Path(self.path).glob(".*.tmp"):
            with contextlib.suppress(FileNotFoundError):  # its writer has just published it
                if time.time() - path.stat().st_mtime >= older_than_s:
                    path.unlink()

    @persistent
    def rename(self, old: str, new: str) -> None:
        self._check_writable()
        os.rename(self.file(old), self.file(new))

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[str]:
        """Yields a local path with the file's content."""
        yield self.file(name)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Keeps other processes of this machine out while the block runs. It saves work; correctness never needs it."""
        self._check_writable()
        with self._open_lock(safe_name("lock", name)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @persistent
    def _open_lock(self, name: str) -> IO:
        make_folders(self.path)
        return open(os.path.join(self.path, f".{name}.lock"), "w")

    def _look(self, work: Callable[[], Value]) -> Value:
        """Looks a second time for an absent name, after opening the folder that it is in.

        An NFS client answers from memory for up to a minute that a name is absent, until it opens the name's folder.
        """
        try:
            return work()
        except FileNotFoundError:
            with contextlib.suppress(PermissionError, NotADirectoryError):
                _open_folder(self.path)
            return work()

    def _target(self, name: str, durable: bool = True) -> str:
        """Returns the path of a file to be written; creates this folder."""
        self._check_writable()
        make_folders(self.path, durable)
        return self.file(name)


def _open_folder(path: str) -> None:
    """Opens and closes a folder, if it exists; one that seems to be absent after its parents."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        if path != os.path.dirname(path):
            _open_folder(os.path.dirname(path))
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(path, os.O_RDONLY))


CHUNK_BYTES = 16 * 2**20  # of a download: a lost connection repeats one chunk
CONNECTIONS = 8  # of a download: one alone leaves most of a machine's network unused


class RemoteFolder(Folder):
    """A prefix of an fsspec file system: every write is one put, and there are no locks."""

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

    def write_with(self, name: str, writer: Callable[[str], object]) -> str:
        self._check_writable()
        with tempfile.TemporaryDirectory(prefix="gram-") as scratch:
            path = os.path.join(scratch, name)
            writer(path)
            self.upload(name, path)
            return hash_file(path)

    @persistent
    def upload(self, name: str, path: str) -> None:
        """Puts the local file at `path` under `name`."""
        self._check_writable()
        self._put(lambda: self.filesystem.put_file(path, self.file(name)))

    def download(self, name: str, path: str) -> None:
        """Copies the file to the local `path` in a folder; continues a partial copy."""
        num_bytes = self.size(name)
        with open(path, "ab") as file, ThreadPoolExecutor(CONNECTIONS) as connections:
            while (done := file.tell()) < num_bytes:
                starts = range(done, num_bytes, CHUNK_BYTES)[:CONNECTIONS]
                stops = (min(start + CHUNK_BYTES, num_bytes) for start in starts)
                for chunk in connections.map(partial(self.read_range, name), starts, stops):
                    file.write(chunk)

    @persistent
    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Reads the bytes from `start` to `end`, excluded."""
        return self.filesystem.cat_file(self.file(name), start=start, end=end)

    @persistent
    def create(self, name: str, data: bytes) -> bool:
        """Writes the file unless it exists, atomically where the fsspec driver supports it (S3, GCS)."""
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
    def versions(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Lists {folder: {file: version}} of the files with these names in the folders here, in one paged listing.

        A file that is written again has another version. A folder without these files is listed too, if it has others.
        """
        self.filesystem.invalidate_cache()
        found: dict[str, dict[str, str]] = {}
        for path, info in self.filesystem.find(self.path, detail=True).items():
            folder, _, file = path.removeprefix(self.path).strip("/").partition("/")
            if is_safe_name(folder) and file:
                versions = found.setdefault(folder, {})
                if file in names:
                    versions[file] = hashlib.sha256(str(info).encode()).hexdigest()[:16]
        return found

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
        """Retries after creating the directory: object stores need none, file systems behind a URL do."""
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
    """Opens a local path (`~` expanded) or an fsspec URL; ValueError naming `storage` for an unknown URL."""
    protocol, separator, _ = str(root).partition("://")
    if not separator or protocol in ("file", "local"):
        path = str(root).removeprefix(f"{protocol}://") if separator else str(root)
        return LocalFolder(os.path.abspath(os.path.expanduser(path)), writable)
    try:
        filesystem, path = fsspec.core.url_to_fs(root)
    except (ValueError, ImportError) as error:
        raise invalid("storage", root, f"a local path or an fsspec URL ({error})") from error
    return RemoteFolder(filesystem, path.rstrip("/"), writable)
