"""Prints tables, and values as JSON."""

import json
import shutil
import sys
from collections.abc import Iterable, Sequence

from gram_platform.analysis.columns import ENDLESS, align_columns
from gram_platform.config.terminal import one_line, say


def say_rows(rows: Iterable[Sequence[object]]) -> None:
    """Prints the rows of a table in aligned columns. Wraps cells to fit a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else ENDLESS
    say(align_columns([list(map(one_line, row)) for row in rows], width=width))


def say_json(value: object) -> None:
    """Prints a value as JSON. Numbers that JSON cannot express, such as NaN, become null."""
    plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
    say(json.dumps(plain, indent=1))
