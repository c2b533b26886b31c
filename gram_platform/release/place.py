"""Where an export appears: a folder of its own, which comes into being as a whole."""

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
# what the user's folder or disk is the cause of; EBUSY and EXDEV: something was mounted there meanwhile
ABOUT_OUT = (errno.ENOSPC, errno.EDQUOT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY, errno.EXDEV)


def followed(out: Path) -> Path:
    """The folder that a path leads to through symbolic links. ValueError when they lead in a circle."""
    try:
        return out.resolve()
    except (OSError, RuntimeError) as error:
        raise invalid("out", str(out), f"a path that leads to a folder ({error})") from None


def require_no_mount(out: Path) -> None:
    """ValueError for a mount point: no folder can be moved onto it."""
    if os.path.ismount(out) or str(out) in _listed_mounts():
        raise invalid("out", str(out), f"a folder that is no mount point, such as a new one in it: {out / 'model'}")


def _listed_mounts() -> set[str]:
    """Linux's mount points; parts of the same disk that are mounted again are among them, unlike in `ismount`."""
    if not MOUNTS.is_file():
        return set()
    fields = (line.split()[4] for line in MOUNTS.read_text(errors="surrogateescape").splitlines())
    return {re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in fields}


def require_room(out: Path, num_bytes: int) -> None:
    """ValueError when the disk of a folder, which need not exist, has less room."""
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise invalid("out", str(out), f"a place with {num_bytes / 1e9:,.2f} GB free, found {free / 1e9:,.2f} GB")


@contextlib.contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` that becomes `out` when the block ends, and goes away when it fails.

    What a process that was killed has left is removed by the next export to `out`.
    """
    partial = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for stale in out.parent.glob(f".{out.name}.*.part"):
            with contextlib.suppress(OSError), held(stale):
                shutil.rmtree(stale)
        partial.mkdir()
    except OSError as error:
        raise invalid("out", str(out), f"a place where files can be written ({error})") from error
    try:
        with held(partial):
            yield partial
            os.rename(partial, out)  # onto an empty folder too; anything that came meanwhile is kept
    except OSError as error:
        if error.errno not in ABOUT_OUT:
            raise
        raise invalid("out", str(out), f"a place where the export can be written ({error.strerror})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """BlockingIOError (an OSError) while another process holds the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
