"""Formats times, prices and tables of two columns for the site."""

import datetime
from collections.abc import Iterable, Mapping, Sequence

GIB = 2**30


def moment(seconds: float) -> str:
    """Writes seconds of the epoch as a UTC time; "" for 0."""
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def hours(value: float) -> str:
    return f"{value:.3g}" if value == value else ""


def dollars(value: float | None) -> str:
    """Writes whole cents, or two significant digits below a dollar; "" for an unknown price."""
    if value is None:
        return ""
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.2g}"


def columns_of(rows: Sequence[Mapping]) -> dict[str, list]:
    """Turns rows of equal keys into columns; {} for no rows."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def fact_table(rows: Iterable[tuple[str, object, str]]) -> dict[str, list]:
    """Makes a table of (name, value, address that the value links to or ""); leaves out rows without a value."""
    kept = [(what, str(value), url) for what, value, url in rows if value not in ("", None)]
    return dict(zip(("what", "value", "value_url"), map(list, zip(*kept, strict=True)), strict=True)) if kept else {}
