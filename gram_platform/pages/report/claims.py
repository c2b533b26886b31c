"""Shows claims: a row for each with its verdict at every size, and the differences behind them."""

import math
from collections.abc import Sequence

import pandas as pd

from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.tables import interval_text
from gram_platform.pages.figures.claims import claims_figures
from gram_platform.pages.report.page import Section, render
from gram_platform.pages.results.record import Results
from gram_platform.paper.claims import ABOVE, BELOW
from gram_platform.paper.verdicts import (
    AGREE,
    CANNOT_TELL,
    DISAGREE,
    EXPLANATION,
    NO_INTERVAL,
    PROFILE,
    UNIT_ERROR,
    WITHIN,
)

JUDGED = f"""Each claim is a difference between runs of the same seed, left minus right, at the profile beside it, which
was fixed before there were data; mean is over the profiles of core with at most one auxiliary domain. It lies above
zero if the claim names no margin. "{AGREE}": the 90% t-interval of the mean difference over seeds lies wholly on the
claim's side; "{DISAGREE}": wholly on the other side; "{CANNOT_TELL}": it crosses. One seed has no interval:
"{AGREE}{NO_INTERVAL}" and "{DISAGREE}{NO_INTERVAL}" name only the side of the difference. "Unit": the unit's error,
that of a curve which no seed fits, measured on baselines of known length; the verdict adds it in quadrature to the
interval's half-width. Detectable: the smallest true difference that as many seeds with this spread would show four
times in five."""
MARGINS_TEXT = f"""The margins are the same in every study: core and retain no more than {BELOW:.2f} below, forget and
elicited no more than {ABOVE:.2f} above, in compute ratio."""
DIFFERENCES = """The mean difference of every claim, left minus right, with its 90% interval over seeds. Shaded: where
the claim holds. A thin line: with the unit's error, where that is known."""
MARKS = {AGREE: "\u2713", CANNOT_TELL: "?", DISAGREE: "\u2717"}
OVER_SIZES = "over sizes"  # the column of a claim that compares sizes
SHOWN_OF_CLAIMS = ("verdict", "claim", PROFILE, VARIANT, "size", "difference", "detectable", "num_seeds")
SHOWN_OF_CLAIMS += ("published", "paper", "source", EXPLANATION)
PARTIAL = (PROFILE, "size", VARIANT, UNIT_ERROR, "published", "paper", EXPLANATION)  # columns that may be empty


def claim_sections(study: Results) -> list[Section]:
    """Shows a study's verdicts, and the differences behind them; [] without claims."""
    text = JUDGED
    if "paper" in study.claims:
        text += f" {MARGINS_TEXT} Published: the same on the authors' published per-seed numbers, at their size or "
        text += "sizes. Paper: where these are not public, the difference in the paper's table, at the paper's scale."
    return judged_sections(study.claims, text)


def judged_sections(claims: pd.DataFrame, rule: str) -> list[Section]:
    """Shows the verdicts below the folded rule that decides them, then the differences; [] without claims."""
    if claims.empty:
        return []
    markup, figures = render("rule.html", rule=rule), claims_figures(claims) if WITHIN in claims else {}
    return [
        Section("Claims", table=claims_matrix(claims), table_is_open=True, markup=markup),
        Section("Differences behind the claims", DIFFERENCES * bool(figures), figures, table=readable_claims(claims)),
    ]


def claims_matrix(claims: pd.DataFrame) -> pd.DataFrame:
    """Makes a row for each claim, profile and variant: its verdict at every size, those published, an explanation.

    A claim that compares sizes is judged in the column OVER_SIZES; claims without sizes have a column `verdict`.
    """
    names = list(shown_columns(claims, ("claim", PROFILE, VARIANT)))
    texts = list(shown_columns(claims, ("published", EXPLANATION)))
    has_sizes = "size" in claims and (claims["size"] != "").any()
    sizes = claims["size"].replace("", OVER_SIZES) if has_sizes else pd.Series("verdict", claims.index)
    rows = []
    for key, group in claims.groupby(names, sort=False, dropna=False):
        marks = dict.fromkeys(dict.fromkeys(sizes), "")
        marks |= {sizes[at]: _marked(verdict) for at, verdict in group["verdict"].items()}
        said = {name: "; ".join(filter(None, dict.fromkeys(group[name]))) for name in texts}
        rows.append({**dict(zip(names, key, strict=True)), **marks, **said})
    return pd.DataFrame(rows)


def _marked(verdict: str) -> str:
    return f"{MARKS.get(verdict.removesuffix(NO_INTERVAL), '')} {verdict}".strip()


def readable_claims(claims: pd.DataFrame) -> pd.DataFrame:
    """Puts the verdict first and writes numbers with three decimals.

    The difference has its interval over seeds and the unit's error, where that is known.
    """
    readable = claims.copy()
    if "difference" in claims:
        texts = map(interval_text, claims["difference"], claims["low"], claims["high"])
        readable["difference"] = [text + unit for text, unit in zip(texts, _unit_texts(claims), strict=True)]
    for name in ("detectable", "paper"):
        if name in claims:
            readable[name] = [interval_text(value, math.nan, math.nan) for value in claims[name]]
    return shown_columns(readable, SHOWN_OF_CLAIMS)


def _unit_texts(claims: pd.DataFrame) -> list[str]:
    errors = claims[UNIT_ERROR] if UNIT_ERROR in claims else [math.nan] * len(claims)
    return ["" if pd.isna(error) else f", unit \u00b1{error:.3f}" for error in errors]


def shown_columns(claims: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Selects the present ones of these columns, without the empty ones of PARTIAL."""
    is_empty = {name: (claims[name].isna() | (claims[name] == "")).all() for name in PARTIAL if name in claims}
    return claims[[name for name in order if name in claims and not is_empty.get(name, False)]]
