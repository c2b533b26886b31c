"""Draws the progress of a study or a search for a terminal of any width: nothing is cut, least of all the time left."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from gram_platform.analysis.tables import CLASSES
from gram_platform.config.identity import printable
from gram_platform.pages.results.results import Brief
from gram_platform.paper.verdicts import AGREE, CANNOT_TELL, DISAGREE, NO_INTERVAL, VERDICTS

# Letters of a terminal from which on bars are long.
WIDE = 110
# Lines of the panel beside the rows.
OTHER_LINES = 4
# Letters from which on a word in a table may be broken.
MAX_WORD_LETTERS = 24
# A cell that is never broken: a number with its interval, or no number.
WHOLE_CELL = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?%?( \u00b1[\d.]+| \[[^]]*\])?|nan|-?")


class Row(NamedTuple):
    """A line of the panel: what is done of it, from 0 to 1, and texts of its speed and of the time left."""

    name: str
    share: float
    rate: str
    left: str


def panel(console: Console, headline: str, total: Row, rows: Sequence[Row]) -> RenderableType:
    """Returns the headline, the bar of everything, then as many rows as the terminal has lines for."""
    # A long name takes two lines of a narrow terminal.
    num_shown = max((console.height - OTHER_LINES) // (1 if console.width >= WIDE else 2), 1)
    more = [Text(f"and {len(rows) - num_shown} more")] if len(rows) > num_shown else []
    return Group(Text(printable(headline)), _bars(console, (total,)), _bars(console, rows[:num_shown]), *more)


def _bars(console: Console, rows: Sequence[Row]) -> RenderableType:
    bars = Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold", ratio=1)),
        BarColumn(bar_width=40 if console.width >= WIDE else 12),
        TextColumn("{task.percentage:>3.0f}%", table_column=_whole()),
        TextColumn("{task.fields[rate]}", table_column=_whole()),
        TextColumn("{task.fields[left]}", style="bold", table_column=_whole()),
        console=console,
        expand=True,
    )
    for row in rows:
        bars.add_task(printable(row.name), total=1.0, completed=row.share, rate=row.rate, left=row.left)
    return bars.get_renderable()


def _whole() -> Column:
    """Returns a column that no narrow terminal makes narrower."""
    return Column(no_wrap=True, justify="right", min_width=4)


VERDICT_STYLES = {AGREE: "green", DISAGREE: "red", CANNOT_TELL: "yellow"}


def show_results(console: Console, text: str, brief: Callable[[bool], Brief] | None) -> None:
    """Prints the whole text; on a terminal the results in short, which fit its width, if there are any."""
    if brief is None or not console.is_terminal:
        console.print(Text(printable(text)), soft_wrap=True)
        return
    for renderable in _in_short(brief(console.width >= WIDE), console.width):
        console.print(renderable)


def _in_short(brief: Brief, width: int) -> Iterator[RenderableType]:
    """Yields the tables of results, their sentences, and one line of how many claims have each verdict."""
    for title, frame in brief.tables.items():
        yield Text()
        yield _table(title, frame, width)
    if brief.text:
        yield Text(f"\n{printable(brief.text)}")
    parts = [_counted(verdict, brief.verdicts[verdict]) for verdict in VERDICTS if brief.verdicts.get(verdict)]
    claims = Text("claims: ").append_text(Text(", ").join(parts)).append("; ") if parts else Text()
    yield Text("\n").append_text(claims).append("see the report" if parts else "see the report for the rest")
    if brief.warning:
        yield Text(f"\n{brief.warning}", "yellow")
    yield Text()


def _table(title: str, frame: pd.DataFrame, width: int) -> Table:
    """Draws the first columns that fit into `width` letters: words are wrapped, numbers are whole."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    texts, left = frame.map(lambda cell: printable(str(cell))), width
    for name, cells in texts.items():
        is_number = name in CLASSES or all(map(WHOLE_CELL.fullmatch, cells))
        words = [str(name), *cells] if is_number else " ".join([str(name), *cells]).split()
        least = min(max(map(len, words)), MAX_WORD_LETTERS)
        left -= least + 1
        if left < 0 and table.columns:
            break
        justify = "right" if is_number else "left"
        table.add_column(str(name), justify=justify, no_wrap=is_number, min_width=least, overflow="fold")
    for row in texts.iloc[:, : len(table.columns)].itertuples(index=False):
        table.add_row(*map(Text, row))
    return table


def _counted(verdict: str, number: int) -> Text:
    return Text(f"{number} {verdict}", VERDICT_STYLES[verdict.removesuffix(NO_INTERVAL)])


def clock(seconds: float | None) -> str:
    """Writes a duration, as 1:02:03 or 2:03; ? for an unknown one."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
