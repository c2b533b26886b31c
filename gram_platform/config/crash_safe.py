"""Writes files whole or not at all, and tells whether a process is still alive."""

import contextlib
import os


def process_is_alive(pid: int, start: int | None = None) -> bool:
    """Tells whether a process of this machine and pid namespace runs; with its `process_start`, the very same one.

    Pids are reused: without `start` another process may have the pid. With it, a zombie is not alive.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        pass
    return start is None or process_start(pid) == start


def process_start(pid: int) -> int:
    """Clock ticks from boot to the start of a process (proc(5), stat, field 22); 0 for zombies and without /proc."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0
