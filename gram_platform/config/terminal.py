"""Prints text and warnings, with control characters escaped and secrets masked."""

import sys
import time
import warnings
from collections.abc import Callable
from typing import TextIO

from gram_platform.config.identity import mask_secrets, printable

# In characters.
LONGEST_CELL = 500


def say(text: object = "", file: TextIO | None = None) -> None:
    """Escapes text with `printable`, prints it to a file (default: stdout), and flushes."""
    print(printable(str(text)), file=file, flush=True)


def say_progress(text: str) -> None:
    """If standard error is a terminal, overwrites its current line. Otherwise prints nothing."""
    if sys.stderr.isatty():
        print(f"\r{one_line(printable(text))}   ", end="", file=sys.stderr, flush=True)


def say_bytes() -> Callable[[str, int, int | None], None]:
    """Returns a function that prints how many MB are done, at most every 5 s."""
    last = time.monotonic()

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > 5.0:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            say(f"{what}:{share} {done / 1e6:,.1f} MB")

    return report


def warn(text: str, stacklevel: int = 1) -> None:
    warnings.warn(printable(text), RuntimeWarning, stacklevel=stacklevel + 1)


def one_line(text: object) -> str:
    """Joins a text's lines into one, masks secrets, and truncates it to `LONGEST_CELL`."""
    line = " ".join(mask_secrets(str(text)).split())
    return line if len(line) <= LONGEST_CELL else f"{line[:LONGEST_CELL]}..."
