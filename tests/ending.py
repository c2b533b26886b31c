"""Waiting for a process that was told to end, and what is known of it when it does not."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import psutil

END_TIMEOUT_S = 180.0  # a disk that stalls holds up processes that have been killed, too
STACKS = {"PYTHONFAULTHANDLER": "1"}  # in a process's environment: it writes its threads' stacks when it is aborted


def exit_code(process: subprocess.Popen, output: Path, timeout_s: float = END_TIMEOUT_S) -> int:
    """The exit code; AssertionError with the states and the stacks of what is still there after `timeout_s`.

    `output` is where its standard error goes; its environment holds `STACKS`.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(timeout_s)
    states = [state(each) for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(True))]
    process.send_signal(signal.SIGABRT)
    time.sleep(2)
    raise AssertionError("\n".join([f"it did not end within {timeout_s} s:", *states, output.read_text()[-8000:]]))


def state(process: psutil.Process) -> str:
    """Its number, state, the kernel's function that it waits in, and its command."""
    with contextlib.suppress(psutil.Error, OSError):
        waits_in = Path(f"/proc/{process.pid}/wchan").read_text()
        return f"{process.pid} {process.status()} in {waits_in}: {' '.join(process.cmdline())[:100]}"
    return f"{process.pid} has ended"
