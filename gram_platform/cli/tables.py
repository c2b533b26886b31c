"""Prints lists: on a terminal in columns within its width, elsewhere one line a row."""

import sys
from collections.abc import Sequence

from gram_platform.config.identity import printable
from gram_platform.config.terminal import aligned, one_line, say


def say_rows(rows: Sequence[Sequence[str]], has_head: bool = False) -> None:
    """Prints rows of equal length; under a head, the first row, always in columns."""
    if not sys.stdout.isatty():
        say(aligned(rows) if has_head else "\n".join(one_line("  ".join(row)) for row in rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for place, row in enumerate(rows):
        style = "bold" if has_head and not place else ""
        table.add_row(*(Text(printable(one_line(cell))) for cell in row), style=style)
    Console().print(table)
