"""Writes files atomically, detects links and special files, and checks if processes are alive."""

import contextlib
import errno
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from gram_platform.config.identity import invalid

A_FILE, A_FOLDER, A_LINK = "a file", "a folder", "a link"
KIND_OF_MODE = {
    stat.S_IFREG: A_FILE,
    stat.S_IFDIR: A_FOLDER,
    stat.S_IFLNK: A_LINK,
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
# Errors of file systems that cannot flush folders.
UNSYNCED = {errno.EINVAL, errno.ENOTSUP}


@contextlib.contextmanager
def whole_file(path: str | Path, durable: bool = False) -> Iterator[str]:
    """Context manager that yields a temporary path and renames it to `path` on success.

    Readers see either the old or the new file. If `durable`, flushes the content to disk before the
    rename. To flush the rename too, call `sync` on the folder.
    """
    with temporary_beside(path) as temporary:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def temporary_beside(path: str | Path) -> Iterator[str]:
    """Context manager that yields a hidden path beside `path`, and deletes that file on exit."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".tmp-{os.getpid()}-{secrets.token_hex(4)}.{name}")
    try:
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def sync(path: str) -> None:
    """Flushes a file's content, or a folder's directory entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise
    finally:
        os.close(descriptor)


def kind_of(path: str | Path) -> str:
    """Returns a path's kind, such as "a link", without following links.

    Returns "" if the path does not exist.
    """
    try:
        return KIND_OF_MODE[stat.S_IFMT(os.lstat(path).st_mode)]
    except (FileNotFoundError, NotADirectoryError):
        return ""


def special_entries(folder: str | Path) -> Iterator[tuple[str, str]]:
    """Yields (path, kind) of each link, pipe, socket and device below a folder."""
    folders = [os.fspath(folder)]
    while folders:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(folders.pop()) as entries,
        ):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    yield entry.path, kind_of(entry.path)


def remove_whole(path: str | Path) -> None:
    """Removes a folder and its contents, or a file, link or pipe. Ignores errors."""
    # `rmtree` opens what it is given, and would wait for a pipe.
    if kind_of(path) == A_FOLDER:
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def require_plain(folder: str | Path) -> None:
    """Raises ValueError if a storage folder is, or contains, a link, pipe, socket or device.

    Through a link, this process could read or write outside the storage.
    """
    if (kind := kind_of(folder)) not in (A_FOLDER, ""):
        raise unplain(folder, kind, A_FOLDER)
    for path, kind in special_entries(folder):
        raise unplain(path, kind, f"{A_FILE} or {A_FOLDER}")


def unplain(path: str | Path, kind: str, expected: str) -> ValueError:
    """Returns the error for a storage path of the wrong kind, such as a link."""
    remedy = "remove it; to use another disk, mount it there or name a folder on it by --storage"
    return invalid("storage", str(path), f"{expected}, found {kind}: {remedy}")


def missing_right(path: str | Path) -> str:
    """Returns a message if this user lacks read or write permission for an absolute path.

    Otherwise returns "". If the path does not exist, checks its nearest existing parent.
    """
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    rights = {"read": os.R_OK, "write": os.W_OK}
    lacking = [name for name in rights if not os.access(path, rights[name], effective_ids=True)]
    mode = stat.filemode(os.lstat(path).st_mode)
    return f"{path}: no permission to {' or '.join(lacking)} ({mode})" if lacking else ""


def require_rights(path: str | Path) -> None:
    if missing_right(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def make_folders(path: str, durable: bool = False) -> None:
    """Creates a folder and its missing parents. If `durable`, flushes them to disk."""
    path = os.path.abspath(path)
    try:
        os.mkdir(path)
    except FileNotFoundError:
        # The parent exists, but accepts no entries.
        if os.path.isdir(os.path.dirname(path)):
            raise
        make_folders(os.path.dirname(path), durable)
        make_folders(path, durable)
        return
    except FileExistsError:
        # `os.path.isdir` would return False for a failed mount.
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise
    if durable:
        sync(os.path.dirname(path))


def create_database(path: Path, make: Callable[[Path], object]) -> None:
    """Calls `make` to create an SQLite database under a temporary name, then renames it to `path`.

    A killed process thus leaves no partial database. The file's mode follows the umask. Only one
    process at a time may call this, because each call first deletes the temporary file.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    for name in (unfinished.name, f"{unfinished.name}-journal"):
        remove_whole(path.with_name(name))
    # SQLite would choose another mode. A journal gets the mode of its database.
    unfinished.touch()
    make(unfinished)
    os.replace(unfinished, path)


def this_place() -> str:
    """Returns the host name, boot id and pid namespace as one string.

    Processes with equal strings see the same pids. Containers of one machine may differ only
    in the namespace.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def process_is_alive(pid: int, start: int | None = None) -> bool:
    """Returns True if a process in this process's pid namespace has this pid.

    If `start` is given, the process must also have started then, which rules out reused pids.
    """
    try:
        # PermissionError means another user's process.
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return start is None or process_start(pid) == start


def process_start(pid: int) -> int:
    """Returns a process's start time in clock ticks since boot (/proc/PID/stat, field 22).

    Returns 0 for a zombie or a missing process, and on systems without /proc.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0
