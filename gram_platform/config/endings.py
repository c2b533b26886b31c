"""Handles a command's exit codes, its signals, and output streams that fail.

Exit codes:

- 0: done.
- 1: something failed, or the work stopped.
- 2: nothing was started, because of bad input or missing permissions.
- 3: the time or money limit was reached before the work was finished.
- 130 and 143: Ctrl-C and SIGTERM.
"""

import atexit
import contextlib
import errno
import gc
import io
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gram_platform.config.crash_safe import missing_right
from gram_platform.config.identity import InvalidField, local_path
from gram_platform.config.terminal import say

DONE, FAILED, BAD_INPUT, TIME_IS_UP = 0, 1, 2, 3
DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
SUBMIT_AGAIN = (
    "Submit again: finished runs are kept, and the others continue from their last checkpoints."
)
# With fewer columns, tyro's help never finishes.
FEWEST_COLUMNS = 20
SIGNALLED = {128 + signal.SIGINT: "interrupted", 128 + signal.SIGTERM: "terminated"}

_has_begun = False


class Stopped(RuntimeError):
    """Raised if an external event stops the work. The command exits with one line and code 1."""


class Unavailable(Stopped):
    """Raised if a network service does not answer or is overloaded. A retry may succeed."""


def exit_with(work: Callable[[], int]) -> None:
    """Runs `work`, then exits with its return value. After an error, exits as in `exit_codes`."""
    # Garbage collection at shutdown would walk all objects of torch and Ray for .8 s of CPU.
    atexit.register(gc.freeze)
    outlive_output()
    with exit_codes(SUBMIT_AGAIN):
        code = work()
    raise SystemExit(code)


class _Ended(SystemExit):
    """Raised to end a command whose error is already printed."""


def begin_work() -> None:
    """Records that work has begun. Later errors exit with code 1, not 2."""
    global _has_begun
    _has_begun = True


@contextlib.contextmanager
def exit_codes(advice: str = "") -> Iterator[None]:
    """Context manager that exits with a message and an exit code if the block fails.

    Adds `advice` to the message after a signal, and to most errors after `begin_work`. Unexpected
    exceptions keep their traceback. SIGTERM is handled like Ctrl-C. Without a home directory, exits
    with code 2, because MLflow and Ray need one at import.
    """
    global _has_begun
    _has_begun = False
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        # Only this exception passes through the waits of Ray.
        raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if in_main_thread else None
    try:
        local_path("HOME", "~")
        yield
    except KeyboardInterrupt as error:
        _end(128 + (received or [signal.SIGINT])[0], advice, error)
    except SystemExit as error:
        if isinstance(error, _Ended) or error.code != 128 + signal.SIGTERM:
            raise
        # A run in this process has written its checkpoint.
        _end(error.code, advice, error)
    except Stopped as error:
        hint = f". {advice}" if _has_begun and isinstance(error, Unavailable) else ""
        _end(FAILED, f"error: {error}{hint}", error)
    except (ValueError, PermissionError) as error:
        text = f"error: {explain_error(error)}"
        code, text = (FAILED, f"{text}. {advice}") if _has_begun else (BAD_INPUT, text)
        _end(code, text, error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_REFUSES:
            _end(FAILED, f"error: a disk takes no more: {error}. {advice}", error)
        if _has_begun and advice:
            error.add_note(advice)
        raise
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _end(code: int, text: str, error: BaseException) -> None:
    if code in SIGNALLED:
        if threading.current_thread() is threading.main_thread():
            # Another Ctrl-C ends the process at once, without a message.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        text = f"{SIGNALLED[code]}. {text}"
    say(text.rstrip(), sys.stderr)
    raise _Ended(code) from error


# The fields that are flags of this process's command line.
flag_names: set[str] = set()


def explain_error(error: BaseException) -> str:
    """Returns an error's message, with details such as a flag or a missing permission."""
    if isinstance(error, InvalidField):
        return error.for_command(flag_names)
    if isinstance(error, PermissionError) and error.filename:
        return missing_right(os.path.abspath(str(error.filename))) or str(error)
    if not isinstance(error, UnicodeEncodeError) or error.encoding.startswith("utf"):
        return str(error)
    text = error.object if len(error.object) < 200 else error.object[error.start : error.end]
    problem = f"the encoding of this locale, {error.encoding}, cannot spell {text!a}"
    return f"{problem}: set PYTHONUTF8=1 or LC_ALL=C.UTF-8"


def worst(*codes: int) -> int:
    """Returns the most severe exit code: 2, then 1, then 3, then the largest of the others."""
    return next(
        (code for code in (BAD_INPUT, FAILED, TIME_IS_UP) if code in codes),
        max(codes, default=DONE),
    )


def escape_output() -> None:
    """Makes stdout and stderr escape characters that their encoding lacks.

    Also replaces closed streams, and increases $COLUMNS if the terminal is too narrow.
    """
    width = shutil.get_terminal_size().columns
    if "COLUMNS" in os.environ or width < FEWEST_COLUMNS:
        os.environ["COLUMNS"] = str(max(width, FEWEST_COLUMNS))
    # The next opened file would take the number of a closed one.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def outlive_output() -> None:
    """Keeps the process running if its output is closed (`... | head`) or the disk is full."""
    escape_output()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw = _Outlived(stream.fileno(), "w", closefd=False)
            text = io.TextIOWrapper(
                io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True
            )
            setattr(sys, name, text)


class _Outlived(io.FileIO):
    """A file that switches to the null device after its first failed write."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if self.fileno() == 1:
                with contextlib.suppress(OSError):
                    problem = f"standard output takes no more ({error.strerror})"
                    say(f"{problem}: continuing without it", sys.stderr)
            return memoryview(data).nbytes
