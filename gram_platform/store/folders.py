"""Reads and writes local folders of a storage, and opens a folder from its path or URL.

A storage has only files and folders. Links are not followed, because they could lead anywhere. Only
the storage's root may be a link. Links in place of folders are treated as absent folders. Links and
pipes in place of files are treated as damaged files.
"""

import contextlib
import errno
import fcntl
import functools
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import fsspec

from gram_platform.config.crash_safe import (
    A_FILE,
    A_FOLDER,
    kind_of,
    make_folders,
    remove_whole,
    require_rights,
    sync,
    temporary_beside,
    unplain,
    whole_file,
)
from gram_platform.config.identity import hash_file, invalid, is_url
from gram_platform.config.terminal import warn
from gram_platform.store.files import (
    CorruptFile,
    Folder,
    Value,
    is_safe_name,
    is_transient,
    safe_name,
    with_retries,
)
from gram_platform.store.remote_folder import RemoteFolder


def retry_if_removed(method: Callable) -> Callable:
    """Decorator that calls a file-writing method again if its temporary file was removed.

    Other processes remove temporary files of a process that seems dead, such as a suspended one.
    """

    @functools.wraps(method)
    def retry(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except FileNotFoundError:
            return method(self, *args, **kwargs)

    return retry


@dataclass(frozen=True)
class LocalFolder(Folder):
    """A directory on this machine or on a mounted file system. The first write creates it."""

    path: str
    writable: bool
    # The folders from the storage's root (exclusive) to this one (inclusive).
    below: tuple[str, ...] = ()

    def child(self, *names: str) -> "LocalFolder":
        path, below = self.path, self.below
        for name in names:
            path = os.path.join(path, safe_name("folder", name))
            below = (*below, path)
        return LocalFolder(path, self.writable, below)

    @with_retries
    def read(self, name: str, most: int = -1) -> bytes:
        self._require_here(name)
        with self._look(lambda: open(self._plain(name), "rb")) as file:
            return file.read(most)

    @with_retries
    @retry_if_removed
    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        """Replaces the file atomically. If `durable`, the new content survives a system crash."""
        with whole_file(self._target(name, durable), durable) as temporary:
            Path(temporary).write_bytes(data)
        if durable:
            sync(self.path)

    @with_retries
    @retry_if_removed
    def write_with(self, name: str, writer: Callable[[str], object]) -> str:
        """Writes a file by calling `writer` with a temporary path. Returns the file's SHA-256.

        Then renames the file to `name`. A system crash before the folder's next durable write may
        lose it.
        """
        with whole_file(self._target(name), durable=True) as temporary:
            writer(temporary)
            return hash_file(temporary)

    @with_retries
    @retry_if_removed
    def create(self, name: str, data: bytes) -> bool:
        """Writes the file if `name` does not exist. Returns True if this call created the file.

        A retry after a transient error may return False although the first try created the file.
        """
        path = self._target(name)
        with temporary_beside(path) as temporary:
            Path(temporary).write_bytes(data)
            sync(temporary)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                # Without hard links the last of two simultaneous writers wins.
                if is_transient(error):
                    raise
                if self.exists(name):
                    return False
                os.replace(temporary, path)
        sync(self.path)
        return True

    @with_retries
    def size(self, name: str) -> int:
        self._require_here(name)
        return os.stat(self.file(name), follow_symlinks=False).st_size

    @with_retries
    def exists(self, name: str) -> bool:
        """Returns True if an entry `name` exists. Raises OSError if a mounted file system fails."""
        if not self._is_here():
            return False
        try:
            self._look(lambda: os.stat(self.file(name), follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @with_retries
    def list(self) -> list[str]:
        """Returns the sorted safe names of files and folders. Warns about links and pipes."""
        if not self._is_here():
            return []
        try:
            return self._look(lambda: _plain_names(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @with_retries
    def require_plain_entries(self) -> None:
        """Raises ValueError if this folder contains anything but files and folders."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                if not _is_plain(entry):
                    raise unplain(entry.path, kind_of(entry.path), f"{A_FILE} or {A_FOLDER}")

    def require_rights(self) -> None:
        require_rights(self.path)

    def require_folders(self) -> None:
        """Raises ValueError if this folder or a parent in the storage is a link or a file."""
        if obstacle := self._obstacle():
            raise unplain(obstacle, kind_of(obstacle), A_FOLDER)

    @with_retries
    def remove(self, name: str) -> None:
        """Removes a file, a link, or a folder with its contents. Keeps the targets of links."""
        self._check_writable()
        path = self.file(name)
        if not self._is_here():
            return
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(path)
            except (IsADirectoryError, PermissionError) as error:
                # Checked only now, because a failing mount may report a folder as absent.
                if not stat.S_ISDIR(os.stat(path, follow_symlinks=False).st_mode):
                    raise
                remove_whole(path)
                if isinstance(error, PermissionError) and os.path.lexists(path):
                    raise

    @with_retries
    def remove_temporaries(self, older_than_s: float = 0.0) -> None:
        self._check_writable()
        if not self._is_here():
            return
        # Older versions wrote `.NAME.tmp`, and the safetensors library `.tmp` and letters.
        for path in Path(self.path).glob(".*tmp*"):
            # The writer may have just renamed the file.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                if time.time() - os.stat(path, follow_symlinks=False).st_mtime >= older_than_s:
                    path.unlink()

    @with_retries
    def rename(self, old: str, new: str) -> None:
        self._check_writable()
        self.require_folders()
        os.rename(self.file(old), self.file(new))

    @with_retries
    def plain_file(self, name: str) -> str:
        """Returns the path of a file. Raises CorruptFile if it is a link, pipe or folder."""
        self._require_here(name)
        return self._plain(name)

    def _plain(self, name: str) -> str:
        path = self.file(name)
        if (kind := kind_of(path)) not in (A_FILE, ""):
            raise CorruptFile(f"{path} is {kind}, not a file")
        return path

    @contextlib.contextmanager
    def local_copy(self, name: str) -> Iterator[str]:
        yield self.plain_file(name)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Context manager that holds a lock against other processes on this machine.

        If the file system has no locks, or the lock file is a link, warns and runs the block
        without a lock. This is safe, because locks only avoid duplicate work.
        """
        self._check_writable()
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self._open_lock(safe_name("lock", name)))
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                warn(f"{self.path}: no lock of {name} ({error}), so work may be done twice", 4)
            yield

    @with_retries
    def _open_lock(self, name: str) -> IO:
        self.require_folders()
        make_folders(self.path)
        return open(os.path.join(self.path, f".{name}.lock"), "a", opener=_open_without_link)

    def _look(self, work: Callable[[], Value]) -> Value:
        """Calls `work`. After a FileNotFoundError, opens the folder and calls `work` again.

        Opening the folder refreshes an NFS client, which may miss a new file for up to a minute.
        """
        try:
            return work()
        except FileNotFoundError:
            with contextlib.suppress(PermissionError, NotADirectoryError):
                _open_folder(self.path)
            return work()

    def _target(self, name: str, durable: bool = True) -> str:
        self._check_writable()
        self.require_folders()
        make_folders(self.path, durable)
        return self.file(name)

    def _obstacle(self) -> str:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in self.below:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    return path
        return ""

    def _is_here(self) -> bool:
        if obstacle := self._obstacle():
            _warn_of(obstacle)
        return not obstacle

    def _require_here(self, name: str) -> None:
        if not self._is_here():
            raise FileNotFoundError(errno.ENOENT, "No such file in the storage", self.file(name))


def _open_without_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _is_plain(entry: os.DirEntry) -> bool:
    return entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)


def _plain_names(folder: str) -> list[str]:
    names = []
    with os.scandir(folder) as entries:
        for entry in filter(lambda entry: is_safe_name(entry.name), entries):
            if _is_plain(entry):
                names.append(entry.name)
            else:
                _warn_of(entry.path)
    return sorted(names)


def _warn_of(path: str) -> None:
    if (kind := kind_of(path)) not in (A_FILE, ""):
        warn(f"{path} is {kind}: left out, because a storage has only files and folders", 5)


def _open_folder(path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    except FileNotFoundError:
        if path != os.path.dirname(path):
            _open_folder(os.path.dirname(path))
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))


def open_folder(root: str, writable: bool = False) -> Folder:
    """Opens the folder at a path (`~` expanded) or fsspec URL. Raises ValueError for bad URLs."""
    protocol, _, path = root.partition("://") if is_url(root) else ("file", "", root)
    if protocol in ("file", "local"):
        return LocalFolder(os.path.abspath(os.path.expanduser(path)), writable)
    try:
        filesystem, path = fsspec.core.url_to_fs(root)
    except (ValueError, ImportError, OSError) as error:
        raise invalid("storage", root, f"a local path or an fsspec URL ({error})") from error
    return RemoteFolder(path.rstrip("/"), writable, filesystem)
