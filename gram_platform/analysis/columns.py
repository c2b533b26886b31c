"""Formats rows of cells as aligned columns for terminals and logs."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gram_platform.config.identity import printable

ENDLESS = 100_000


def align_columns(
    rows: Sequence[Sequence[object]], num_texts: int | None = None, width: int = ENDLESS
) -> str:
    """Formats rows of equal length as lines, with at least two spaces between columns.

    The first `num_texts` columns (default: all) are left-aligned, the others right-aligned. If the
    table is wider than `width` characters, long cells are wrapped.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    for place in range(len(rows[0])):
        is_text = num_texts is None or place < num_texts
        table.add_column(overflow="fold", justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
