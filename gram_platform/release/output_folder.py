"""Checks an export's target folder and creates it atomically."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gram_platform.config.identity import invalid

MOUNTS = Path("/proc/self/mountinfo")  # proc(5): the fifth field is the mount point, blanks in it as \040
# errors caused by the user's folder or disk; EBUSY and EXDEV: something was mounted there meanwhile
USER_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY, errno.EXDEV)


def resolved(out: Path) -> Path:
    """Resolves symbolic links. ValueError if they form a circle."""
    try:
        return out.resolve()
    except (OSError, RuntimeError) as error:
        raise invalid("out", str(out), f"a path that leads to a folder ({error})") from None


def require_no_mount(out: Path) -> None:
    """ValueError for a mount point: no folder can be moved onto it."""
    if os.path.ismount(out) or str(out) in _listed_mounts():
        raise invalid("out", str(out), f"a folder that is no mount point, such as a new one in it: {out / 'model'}")


def _listed_mounts() -> set[str]:
    """Lists Linux's mount points, including bind mounts, which `ismount` does not see."""
    if not MOUNTS.is_file():
        return set()
    fields = (line.split()[4] for line in MOUNTS.read_text(errors="surrogateescape").splitlines())
    return {re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in fields}


def require_room(out: Path, num_bytes: int) -> None:
    """ValueError if the disk of a folder, which need not exist yet, has less than `num_bytes` free."""
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise invalid("out", str(out), f"a disk with {num_bytes / 1e9:,.2f} GB free, found {free / 1e9:,.2f} GB")


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `out`; renames it to `out` when the block ends, removes it if the block fails.

    Also removes temporary folders of killed processes.
    """
    partial = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for stale in out.parent.glob(f".{out.name}.*.part"):
            with contextlib.suppress(OSError), folder_lock(stale):
                shutil.rmtree(stale)
        partial.mkdir()
    except OSError as error:
        raise invalid("out", str(out), f"a writable folder ({error})") from error
    try:
        with folder_lock(partial):
            yield partial
            os.rename(partial, out)  # replaces an empty folder; fails if files have appeared there meanwhile
    except OSError as error:
        if error.errno not in USER_ERRNOS:
            raise
        raise invalid("out", str(out), f"a folder that accepts the export ({error.strerror})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Locks the folder while the block runs; BlockingIOError (an OSError) if another process holds the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
