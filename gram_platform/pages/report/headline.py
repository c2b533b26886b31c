"""What a reader of a study sees first: how its claims came out, and six numbers."""

import html

import pandas as pd

from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.text import interval_text
from gram_platform.pages.figures.scaling import HIDDEN
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.study import StudyReport
from gram_platform.paper.verdicts import verdict_counts

SHOWN = ("core", "retain", "forget")
FIRST = ("gram", "filtering")  # the method that a study is about, and its reference; else the table's first two


def with_verdicts(intro: str, claims: pd.DataFrame | None) -> str:
    """The intro of a page under one line that counts the verdicts; the intro alone where there are no claims."""
    if claims is None or claims.empty:
        return intro
    return f"Claims: {verdict_counts(claims['verdict'])}.\n\n{intro}"


def headline_sections(study: StudyReport) -> list[Section]:
    """The six numbers as tiles; [] while the study has none of them."""
    rows = headline_rows(study)
    if rows.empty:
        return []
    first = rows.iloc[0]
    place = f" at {first['size']}, profile {first['profile']}"
    place += f", {study.varies.replace('_', ' ')} {first[VARIANT]}" if study.varies else ""
    text = f"{_methods(rows)}{place}: compute ratios with 90% intervals over seeds. Core and retain: higher is better; "
    text += "forget: lower is better."
    text += " Not everything is there: see Missing." if len(study.analysis.missing) else ""
    tiles = "".join(_tiles(row) for row in rows.to_dict("records"))
    return [Section("At a glance", text, markup=f'<div class="tiles">{tiles}</div>')]


def headline_rows(study: StudyReport) -> pd.DataFrame:
    """The table's row of GRAM and of its reference, of the shown profile, at one size and variant.

    The largest size, and of it the last variant, among those at which both methods have numbers and these intervals.
    """
    table = study.table if VARIANT in study.table else study.table.assign(**{VARIANT: ""})
    methods, variants = _chosen(table), list(dict.fromkeys(table[VARIANT]))
    own = table[(table["profile"] == study.shown_profile) & table["method"].isin(methods)]
    own = own[own[list(SHOWN)].notna().any(axis="columns")]
    places = dict(iter(own.groupby(["size", VARIANT], sort=False)))

    def rank(place: tuple[str, str]) -> tuple:
        size, variant = place
        num_sure = places[place][[f"{name}_low" for name in SHOWN]].notna().any(axis="columns").sum()
        return len(places[place]), num_sure, study.parameters.get(size, 0), variants.index(variant)

    rows = places[max(places, key=rank)] if places else own
    return rows.sort_values("method", key=lambda names: names.map(methods.index), kind="stable")


def _chosen(table: pd.DataFrame) -> list[str]:
    """At most two methods, the one that the study is about first."""
    methods = [method for method in dict.fromkeys(table["method"]) if method not in HIDDEN]
    return sorted(methods, key=lambda method: FIRST.index(method) if method in FIRST else len(FIRST))[:2]


def _methods(rows: pd.DataFrame) -> str:
    """ "GRAM (3 seeds) and filtering (3 seeds)"."""
    pairs = zip(rows["method"], rows["num_seeds"], strict=True)
    return " and ".join(f"{method_style(name).label} ({n} seed{'s' if n != 1 else ''})" for name, n in pairs)


def _tiles(row: dict) -> str:
    """A method's tiles: label, number and interval as the tables write them; classes without a value are left out."""
    style, tiles = method_style(row["method"]), []
    for name in SHOWN:
        value, _, interval = interval_text(row[name], row[f"{name}_low"], row[f"{name}_high"]).partition(" ")
        if value:
            label = html.escape(f"{style.label} {name}")
            tiles.append(f"<div><dt>{label}</dt> <dd>{value} <small>{interval or 'no interval'}</small></dd></div>")
    return f'<dl style="border-color: {style.colour}">{" ".join(tiles)}</dl> '
