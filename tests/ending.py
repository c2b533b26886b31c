"""Waiting for a process that was asked to end, and what is known of it when it does not."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import psutil

END_TIMEOUT_S = 60.0
# In a process's environment: it writes its threads' stacks when it is aborted.
STACKS = {"PYTHONFAULTHANDLER": "1"}


def exit_code(process: subprocess.Popen, output: Path, timeout_s: float = END_TIMEOUT_S) -> int:
    """The exit code; AssertionError with the states and the stacks of what is still there after
    `timeout_s`.

    `output` is where its standard error goes; its environment holds `STACKS`.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(timeout_s)
    states = [
        state(each)
        for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(True))
    ]
    process.send_signal(signal.SIGABRT)
    time.sleep(2)
    raise AssertionError(
        "\n".join([f"it did not end within {timeout_s} s:", *states, output.read_text()[-8000:]])
    )


def state(process: psutil.Process) -> str:
    """Its number, state, the kernel's function that it waits in, its signals, and its command."""
    with contextlib.suppress(psutil.Error, OSError):
        folder = Path(f"/proc/{process.pid}")
        signals = [
            line
            for line in (folder / "status").read_text().splitlines()
            if line.startswith(("Sig", "Shd"))
        ]
        how = f"{process.status()} in {(folder / 'wchan').read_text()}, {' '.join(signals)}"
        return f"{process.pid} {how}: {' '.join(process.cmdline())[:100]}"
    return f"{process.pid} has ended"
