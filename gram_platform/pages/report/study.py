"""What the page of a study is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from gram_platform.analysis.ratios import ALL, MEAN, VARIANT
from gram_platform.analysis.tables import Analysis, interval_text, with_runs
from gram_platform.pages.figures.ratios import HIDDEN
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.page import Section, render
from gram_platform.paper.verdicts import verdict_counts


@dataclass(frozen=True)
class StudyReport:
    """The frames of a study, complete or not, and how they are to be shown.

    `runs` has one row a run, evaluation or attack (those with a non-empty `elicited`) and is shown as far as it has the
    columns `run_id, kind, method, size, seed, profile, status, steps, num_tokens, elapsed_s, tokens_per_second,
    best_loss, error`, with `run_id_url` for links to MLflow.
    """

    analysis: Analysis
    curves: pd.DataFrame  # the points given to `analyse`
    runs: pd.DataFrame
    parameters: Mapping[str, float]  # the count of each size, of published ones too
    profile: str = ""  # what the figures against size or variant show; "": the `shared_profile`
    claims: pd.DataFrame | None = None  # of `claims_frame`
    costs: Sequence[Mapping] = field(default=())  # rows of `size, method` and `method_costs`
    compare_with: str = ""  # the study beside whose numbers in the paper ours stand
    varies: str = ""  # the name of what the frames' column `variant` holds
    published: pd.DataFrame | None = None  # the published table of the same methods, in the columns of table.csv
    absorption: pd.DataFrame | None = None  # of `absorption.load_shares`, of a study whose runs have probes
    by_number: pd.DataFrame | None = None  # of `composing.by_number`, of a study about how many modules are on

    @cached_property
    def table(self) -> pd.DataFrame:
        """The analysis' table with the runs that each row rests on."""
        return with_runs(self.analysis.table, self.analysis.ratios)

    @property
    def shown_profile(self) -> str:
        return self.profile or shared_profile(self.table)


def shared_profile(table: pd.DataFrame) -> str:
    """The profile that most methods have, at most sizes, and that retains something; `mean` if there is none."""
    rows = table[~table["profile"].isin([ALL, MEAN]) & table["retain"].notna() & ~table["method"].isin(HIDDEN)]
    counts = rows.drop_duplicates(["method", "size", "profile"]).groupby("profile", sort=True).size()
    return MEAN if counts.empty else str(counts.idxmax())


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
    methods = [(method_style(row["method"]).colour, _tiles(row)) for row in rows.to_dict("records")]
    return [Section("At a glance", text, markup=render("tiles.html", methods=methods))]


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


def _tiles(row: dict) -> list[tuple[str, str, str]]:
    """A method's (label, number, interval) as the tables write them; classes without a value are left out."""
    label, tiles = method_style(row["method"]).label, []
    for name in SHOWN:
        value, _, interval = interval_text(row[name], row[f"{name}_low"], row[f"{name}_high"]).partition(" ")
        if value:
            tiles.append((f"{label} {name}", value, interval))
    return tiles
