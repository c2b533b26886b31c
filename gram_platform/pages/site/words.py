"""How the site writes things: times, money, names of nodes, and tables of two columns."""

import datetime
from collections.abc import Iterable, Mapping, Sequence

from gram_platform.tracking.entry import node_name

GIB = 2**30


def moment(seconds: float) -> str:
    """Seconds of the epoch as a UTC time; nothing for 0."""
    if not seconds:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def hours(value: float) -> str:
    return f"{value:.3g}" if value == value else ""


def dollars(value: float | None) -> str:
    """Cents, or two significant digits of less; nothing where the price is not known."""
    if value is None:
        return ""
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.2g}"


def name_of(kind: str, node_id: str, tags: Mapping[str, str]) -> str:
    """As MLflow calls it."""
    return node_name(kind, node_id, tags)


def columns_of(rows: Sequence[Mapping]) -> dict[str, list]:
    """Rows of equal keys as columns; no rows are no columns."""
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def fact_table(rows: Iterable[tuple[str, object, str]]) -> dict[str, list]:
    """(what, its value, the address that the value links to or ""), rows without a value left out."""
    kept = [(what, str(value), url) for what, value, url in rows if value not in ("", None)]
    return dict(zip(("what", "value", "value_url"), map(list, zip(*kept, strict=True)), strict=True)) if kept else {}
