"""Runs a program in a pseudo-terminal of a given width, and returns what a person would read
there."""

import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from fcntl import ioctl

from rich.console import Console

from gram_platform.pages.results.results import Brief
from gram_platform.studies.live import show_results
from tests.conftest import ROOT

GRAM = "from gram_platform.cli import main; main()"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    *arguments: str,
    program: str = GRAM,
    columns: int = 80,
    rows: int = 40,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Returns (exit code, all that was printed, with its colours) of a Python program with
    arguments."""
    outside, inside = pty.openpty()
    ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    names = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    names |= {"TERM": "xterm-256color", "PYTHONUTF8": "1", **(environment or {})}
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=names, cwd=ROOT
    )
    os.close(inside)
    printed = b""
    try:
        while piece := os.read(outside, 65536):
            printed += piece
    except OSError:  # on Linux, when nobody writes any more
        pass
    finally:
        os.close(outside)
    return process.wait(), printed.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Returns a text without colours and movements of the cursor."""
    return ANSI.sub("", text)


def in_short(brief: Brief, columns: int = 80) -> list[str]:
    """Returns the lines that a terminal shows of results; they fit its width."""
    console = Console(file=io.StringIO(), force_terminal=True, width=columns)
    show_results(console, "the whole text", lambda _: brief)
    lines = [line.rstrip() for line in plain(console.file.getvalue()).splitlines()]
    assert max(map(len, lines)) <= columns
    assert "see the report" in " ".join(lines)
    assert all(title in lines for title in brief.tables)
    return lines
