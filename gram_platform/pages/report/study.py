"""Defines `Results`, the content of a study's page, and builds the section with six main numbers."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from gram_platform.analysis.ratios import ALL, MEAN, VARIANT
from gram_platform.analysis.tables import Analysis, interval_text, with_runs
from gram_platform.analysis.variants import by_number
from gram_platform.pages.figures.study import HIDDEN
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.page import Section, render
from gram_platform.pages.results.record import StudyRecord
from gram_platform.paper.verdicts import verdict_counts

SHOWN = ("core", "retain", "forget")
FIRST = ("gram", "filtering")  # the methods of the main numbers; others follow in the table's order


@dataclass(frozen=True)
class Results:
    """The analysed results of a study, complete or not: the content of its page.

    `runs` has one row for each run, evaluation or attack, under the study's names and in its order; attacks have a
    non-empty `elicited`. Shown are the present ones of the columns `run_id, kind, method, size, seed, profile, status,
    steps, num_tokens, elapsed_s, tokens_per_second, best_loss, error`, with `run_id_url` for links to MLflow.
    """

    record: StudyRecord
    analysis: Analysis
    curves: pd.DataFrame  # the points given to `analyse`
    runs: pd.DataFrame
    claims: pd.DataFrame  # of `claims_frame`
    source: str  # "MLflow", or the run directories with the reason
    absorption: pd.DataFrame | None = None  # of `load_shares`, in a study whose runs have probes
    # the published table of the same methods, in the columns of table.csv; the record then has its sizes' parameters
    published: pd.DataFrame | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """The analysis' table with the runs behind each row."""
        return with_runs(self.analysis.table, self.analysis.ratios)

    @cached_property
    def by_number(self) -> pd.DataFrame | None:
        """The values by the number of active modules, in a study about it."""
        if not self.record.by_modules:
            return None
        return by_number(self.analysis.per_seed, self.record.tags("evaluation") if self.record.entries else None)

    @property
    def shown_profile(self) -> str:
        """The profile of the figures against size or variant: the record's if the table has it."""
        profile = self.record.profile
        return profile if (self.table["profile"] == profile).any() else shared_profile(self.table)


def shared_profile(table: pd.DataFrame) -> str:
    """Returns the profile of most methods and sizes that retains a domain; `mean` if there is none."""
    rows = table[~table["profile"].isin([ALL, MEAN]) & table["retain"].notna() & ~table["method"].isin(HIDDEN)]
    counts = rows.drop_duplicates(["method", "size", "profile"]).groupby("profile", sort=True).size()
    return MEAN if counts.empty else str(counts.idxmax())


def with_verdicts(intro: str, claims: pd.DataFrame | None) -> str:
    """Puts a line that counts the verdicts above the intro of a page; returns the intro if there are no claims."""
    if claims is None or claims.empty:
        return intro
    return f"Claims: {verdict_counts(claims['verdict'])}.\n\n{intro}"


def headline_sections(study: Results) -> list[Section]:
    """Shows the six main numbers as tiles; [] while there are none."""
    rows = headline_rows(study)
    if rows.empty:
        return []
    first = rows.iloc[0]
    place = f" at {first['size']}, profile {first['profile']}"
    place += f", {study.record.varies.replace('_', ' ')} {first[VARIANT]}" if study.record.varies else ""
    text = f"{_methods(rows)}{place}: compute ratios with 90% intervals over seeds. Core and retain: higher is better; "
    text += "forget: lower is better."
    text += " Some results are missing: see Missing." if len(study.analysis.missing) else ""
    methods = [(method_style(row["method"]).colour, _tiles(row)) for row in rows.to_dict("records")]
    return [Section("At a glance", text, markup=render("tiles.html", methods=methods))]


def headline_rows(study: Results) -> pd.DataFrame:
    """Selects the table's rows of the two main methods at the shown profile and at one size and variant.

    It takes the largest size, and its last variant, among those with numbers of both methods and their intervals.
    """
    table = study.table if VARIANT in study.table else study.table.assign(**{VARIANT: ""})
    methods, variants = _chosen(table), list(dict.fromkeys(table[VARIANT]))
    rows = table[(table["profile"] == study.shown_profile) & table["method"].isin(methods)]
    rows = rows[rows[list(SHOWN)].notna().any(axis="columns")]
    places = dict(iter(rows.groupby(["size", VARIANT], sort=False)))

    def rank(place: tuple[str, str]) -> tuple:
        size, variant = place
        num_sure = places[place][[f"{name}_low" for name in SHOWN]].notna().any(axis="columns").sum()
        return len(places[place]), num_sure, study.record.parameters.get(size, 0), variants.index(variant)

    rows = places[max(places, key=rank)] if places else rows
    return rows.sort_values("method", key=lambda names: names.map(methods.index), kind="stable")


def _chosen(table: pd.DataFrame) -> list[str]:
    """Chooses at most two methods, those of FIRST first."""
    methods = [method for method in dict.fromkeys(table["method"]) if method not in HIDDEN]
    return sorted(methods, key=lambda method: FIRST.index(method) if method in FIRST else len(FIRST))[:2]


def _methods(rows: pd.DataFrame) -> str:
    """Writes "GRAM (3 seeds) and filtering (3 seeds)"."""
    pairs = zip(rows["method"], rows["num_seeds"], strict=True)
    return " and ".join(f"{method_style(name).label} ({n} seed{'s' if n != 1 else ''})" for name, n in pairs)


def _tiles(row: dict) -> list[tuple[str, str, str]]:
    """Returns (label, number, interval) as in the tables for each class with a value."""
    label, tiles = method_style(row["method"]).label, []
    for name in SHOWN:
        value, _, interval = interval_text(row[name], row[f"{name}_low"], row[f"{name}_high"]).partition(" ")
        if value:
            tiles.append((f"{label} {name}", value, interval))
    return tiles
