"""A folder on this machine: a temporary file in the same directory, fsync, then `os.replace` or `os.link`."""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from gram_platform.store.files import Folder, hash_file, is_safe_name, safe_name
from gram_platform.store.retries import is_transient, persistent


class LocalFolder(Folder):
    """A directory of this machine or of a file system mounted on it; made by the first write."""

    def child(self, *names: str) -> "LocalFolder":
        return LocalFolder(os.path.join(self.path, *(safe_name("folder", name) for name in names)), self.writable)

    @persistent
    def read(self, name: str) -> bytes:
        try:
            with open(self.file(name), "rb") as file:
                return file.read()
        except NotADirectoryError as error:  # a strange file has the folder's name
            raise FileNotFoundError(self.file(name)) from error

    @persistent
    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        """Replace the file atomically; `durable` also survives a crash of the machine."""
        with self._temporary(name) as temporary:
            _write_bytes(temporary, data, durable)
            os.replace(temporary, self.file(name))
        if durable:
            _sync_directory(self.path)

    @persistent
    def write_with(self, name: str, writer: Callable[[str], None]) -> str:
        """Let `writer` fill a local path, publish it as `name`, return its SHA-256.

        A crash of the machine may lose the name, until a durable write to the same folder.
        """
        with self._temporary(name) as temporary:
            writer(temporary)
            digest = hash_file(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, self.file(name))
        return digest

    @persistent
    def create(self, name: str, data: bytes) -> bool:
        """Write the file unless it exists; True for the one writer that made it.

        After a transient error it may be False for the writer that made it: equal bytes are then there.
        """
        with self._temporary(name) as temporary:
            _write_bytes(temporary, data, durable=True)
            try:
                os.link(temporary, self.file(name))
            except FileExistsError:
                return False
            except OSError as error:  # without hard links the race of two first writers stays open
                if is_transient(error):
                    raise
                if self.exists(name):
                    return False
                os.replace(temporary, self.file(name))
        _sync_directory(self.path)
        return True

    @persistent
    def size(self, name: str) -> int:
        return os.path.getsize(self.file(name))

    @persistent
    def exists(self, name: str) -> bool:
        """As `os.path.exists`, which also calls absent what a failing mount cannot show."""
        try:
            os.stat(self.file(name))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @persistent
    def list(self) -> list[str]:
        """Sorted names of files and folders that can be ours; empty when the folder does not exist."""
        try:
            return sorted(filter(is_safe_name, os.listdir(self.path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @persistent
    def remove(self, name: str) -> None:
        """Remove a file or a whole folder; one that is absent is fine."""
        self._check_writable()
        path = self.file(name)
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

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
        """A local path with the file's content."""
        yield self.file(name)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Exclude other processes of this machine while the block runs; it saves work, correctness never needs it."""
        self._check_writable()
        with self._open_lock(safe_name("lock", name)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @persistent
    def _open_lock(self, name: str) -> IO:
        os.makedirs(self.path, exist_ok=True)
        return open(os.path.join(self.path, f".{name}.lock"), "w")

    @contextlib.contextmanager
    def _temporary(self, name: str) -> Iterator[str]:
        self._check_writable()
        os.makedirs(self.path, exist_ok=True)
        path = os.path.join(self.path, f".{safe_name('file', name)}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _write_bytes(path: str, data: bytes, durable: bool) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
