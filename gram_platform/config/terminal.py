"""Prints and warns, which nothing else of the package does.

Text of corpora, models and storages may hold anything.
"""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TextIO

from gram_platform.config.identity import masked, printable

# In letters.
LONGEST_CELL = 500


def say(text: object = "", file: TextIO | None = None) -> None:
    """Prints lines to a file (default: standard output) at once.

    Characters that command a terminal are escaped, and secrets left out.
    """
    print(printable(str(text)), file=file, flush=True)


def say_progress(text: str) -> None:
    """Replaces the line of standard error where it is a terminal; prints nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r{one_line(printable(text))}   ", end="", file=sys.stderr, flush=True)


def say_bytes() -> Callable[[str, int, int | None], None]:
    """Returns a function that prints how much of something is read or packed, every few seconds."""
    last = time.monotonic()

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > 5.0:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            say(f"{what}:{share} {done / 1e6:,.1f} MB")

    return report


def warn(text: str, stacklevel: int = 1) -> None:
    """Gives a RuntimeWarning at the caller (1), or at a caller further up."""
    warnings.warn(printable(text), RuntimeWarning, stacklevel=stacklevel + 1)


def one_line(text: object) -> str:
    """Puts a text into a line of a list: without line breaks and secrets, and cut if it is long."""
    line = " ".join(masked(str(text)).split())
    return line if len(line) <= LONGEST_CELL else f"{line[:LONGEST_CELL]}..."


def aligned(lines: Sequence[Sequence[str]], num_texts: int | None = None) -> str:
    """Joins lines of cells to text, every column as wide as its widest cell.

    The first `num_texts` columns (default: all) are aligned to the left, the others to the right.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    sides = [
        str.ljust if num_texts is None or place < num_texts else str.rjust
        for place in range(len(widths))
    ]
    padded = [
        "  ".join(side(c, w) for side, c, w in zip(sides, line, widths, strict=True))
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in padded)
