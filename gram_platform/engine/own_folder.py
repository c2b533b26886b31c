"""Makes a folder for the files of a Ray, and removes it however this process ends.

When a process is killed, the Ray that it has started ends too, except two of Ray's processes, which
stay for a minute. Nothing removes Ray's files. So a second process waits at a pipe for the end of
the first one, ends what is left of Ray and removes the folder. It executes this file, which is why
nothing here needs more than the standard library.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KEEP = b"keep\n"
# Begins the command lines of the processes that Ray's process on a machine has started.
TITLE = b"ray::"
# After this time the folder is removed even if somebody has a file of it open.
CLEARING_S = 10.0


class OwnFolder:
    """A new folder that only this user can enter.

    `path` is the folder inside that Ray opens to everybody.
    """

    def __init__(self, place: Path) -> None:
        outer = Path(tempfile.mkdtemp(prefix="ray-", dir=place))
        self.path = outer / "r"
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, outer],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Otherwise Ctrl-C in the terminal would end it too.
            start_new_session=True,
        )

    def keep(self) -> None:
        """Leaves the folder where it is."""
        self._remover.communicate(KEEP)

    def remove(self) -> None:
        """Removes the folder now, once Ray's processes have ended."""
        self._remover.communicate()


def remove_at_end(folder: Path) -> None:
    """Waits for a word at standard input, or for its end.

    Then ends Ray's processes and removes the folder.
    """
    if sys.stdin.buffer.readline() == KEEP:
        return
    deadline = time.monotonic() + CLEARING_S
    while time.monotonic() < deadline and (users := set(users_of(folder)) - {os.getppid()}):
        for process in users:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(TITLE):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def users_of(folder: Path) -> Iterator[int]:
    """Yields the ids of the processes that have a file of the folder open, if Linux tells them."""
    for process in Path("/proc").glob("[0-9]*"):
        # Processes of other users cannot be seen, and some end meanwhile.
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(file).startswith(f"{folder}/"):
                        yield int(process.name)
                        break


if __name__ == "__main__":
    remove_at_end(Path(sys.argv[1]))
