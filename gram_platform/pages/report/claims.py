"""Shows the verdict on every claim at every size, and the measured differences behind it."""

import math
from collections import defaultdict
from collections.abc import Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.intervals import TAIL, Interval, widen
from gram_platform.analysis.tables import interval_text
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.style import (
    BLUE,
    GREY,
    INK,
    RATIO_END,
    VERMILION,
    cut_intervals,
    lay_out,
    pad_range,
    translucent,
    whiskers,
    with_table,
)
from gram_platform.pages.report.page import Section, render
from gram_platform.pages.results.record import Results
from gram_platform.paper.claims import ABOVE, BELOW
from gram_platform.paper.verdicts import (
    AGREE,
    CANNOT_TELL,
    CLAIM_NATS,
    DISAGREE,
    EXPLANATION,
    HOLM,
    NATS_VERDICT,
    NO_INTERVAL,
    NOT_MEASURABLE,
    POINTS,
    PROFILE,
    SAID,
    TOO_LITTLE,
    UNIT,
    UNIT_ERROR,
    UNJUDGED_PRESET,
    UNWRITTEN,
    WITHIN,
    in_family,
)

DIFFERENCES = """The mean difference of every claim, its first side minus its second, with its 90%
interval over seeds. Shaded: where the claim holds. A thin line: with the unit's error."""
MARKS = {AGREE: "\u2713", CANNOT_TELL: "?", DISAGREE: "\u2717", NOT_MEASURABLE: "\u2013"}
OVER_SIZES = "over sizes"
SHOWN_OF_CLAIMS = ("verdict", HOLM, "claim", PROFILE, VARIANT, "size", "difference", "detectable")
SHOWN_OF_CLAIMS += ("num_seeds", *CLAIM_NATS, "published", "paper", "source", EXPLANATION)
OPTIONAL_COLUMNS = [PROFILE, "size", VARIANT, UNIT_ERROR, "published", "paper", EXPLANATION]
OPTIONAL_COLUMNS += CLAIM_NATS


def claim_sections(study: Results) -> list[Section]:
    return verdict_sections(study.claims, "", study.record.preset)


def verdict_sections(claims: pd.DataFrame, note: str, preset: str = "") -> list[Section]:
    """Makes one section of verdicts and one of the differences behind them.

    A collapsed block above the verdicts shows `note` and how claims are judged. For
    UNJUDGED_PRESET, a single section says why there are no verdicts. If there are no claims,
    returns [].
    """
    if claims.empty:
        return []
    if preset == UNJUDGED_PRESET:
        return [Section("Claims", TOO_LITTLE)]
    if SAID in claims:
        claims = claims.assign(published=claims[SAID])
    number, about = in_family(claims).sum(), {"note": note, "columns": list(claims)}
    about |= {"number": number, "expected": number * (1.0 - TAIL), "below": BELOW, "above": ABOVE}
    markup, matrix = render("rule.html", **about), claims_matrix(claims)
    profiles, ratios = set(claims[PROFILE]), claims[claims[UNIT] == ""]
    profile = f"Profile {profiles.pop()}." if len(profiles) == 1 else ""
    figures = {} if ratios.empty else claims_figures(ratios)
    text, table = DIFFERENCES * bool(figures), readable_claims(claims)
    return [
        Section("Claims", profile, table=matrix, table_is_open=True, markup=markup),
        Section("Differences behind the claims", text, figures, table=table),
    ]


def claims_matrix(claims: pd.DataFrame) -> pd.DataFrame:
    """Tabulates verdicts: a row per claim, profile and variant, and a column per size.

    Verdicts on claims that compare sizes are in the column OVER_SIZES. A study without sizes has
    one column `verdict`. If there are several profiles, their column is the last, because a phone
    shows only the first columns.
    """
    names = list(select_columns(claims, ("claim", PROFILE, VARIANT)))
    texts = list(select_columns(claims, ("published", EXPLANATION)))
    has_sizes = "size" in claims and (claims["size"] != "").any()
    sizes = (
        claims["size"].replace("", OVER_SIZES) if has_sizes else pd.Series("verdict", claims.index)
    )
    rows = []
    for key, group in claims.groupby(names, sort=False, dropna=False):
        marks = dict.fromkeys(sizes, "")
        for at, verdict in group["verdict"].items():
            corrected = group[HOLM][at] if HOLM in group else verdict
            text = f"{MARKS.get(verdict.removesuffix(NO_INTERVAL), '')} {verdict or 'no verdict'}"
            text += f" (Holm: {corrected})" * (corrected != verdict)
            nats = group[NATS_VERDICT][at] if NATS_VERDICT in group else ""
            marks[sizes[at]] = text + f" (in nats: {nats})" * bool(nats)
        said = {name: "; ".join(filter(None, dict.fromkeys(group[name]))) for name in texts}
        rows.append({**dict(zip(names, key, strict=True)), **marks, **said})
    matrix = pd.DataFrame(rows)
    profiles = matrix.pop(PROFILE) if PROFILE in matrix else pd.Series()
    return matrix.assign(profile=profiles) if profiles.nunique() > 1 else matrix


def readable_claims(claims: pd.DataFrame) -> pd.DataFrame:
    texts = map(interval_text, *(claims[n] for n in ("difference", "low", "high", POINTS)))
    units = ["" if pd.isna(n) else f", unit \u00b1{n:.3f}" for n in claims[UNIT_ERROR]]
    columns = {"difference": [text + unit for text, unit in zip(texts, units, strict=True)]}
    for name in claims.columns.intersection(["detectable", "paper"]):
        columns[name] = [interval_text(value, math.nan, math.nan) for value in claims[name]]
    return select_columns(claims.assign(**columns), SHOWN_OF_CLAIMS)


def select_columns(claims: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Selects the existing columns in `order`. Omits OPTIONAL_COLUMNS that are empty."""
    columns = claims.filter(list(order))
    is_empty = (columns.isna() | (columns == "")).all() & columns.columns.isin(OPTIONAL_COLUMNS)
    return columns.loc[:, ~is_empty]


LOOKS = {
    AGREE: (BLUE, "circle"),
    CANNOT_TELL: (GREY, "square-open"),
    DISAGREE: (VERMILION, "x"),
    NOT_MEASURABLE: (GREY, "diamond-open"),
    "": (GREY, "circle-open"),
}
# Lines of text and differences in a figure that fits a printed page.
MOST_LINES = 30
# Letters in a line of a claim's text that fits a phone.
MOST_LETTERS = 54
# The heights of a line, and of title, axis and legend, in pixels.
LINE_HEIGHT, FRAME_HEIGHT = 18, 150


def claims_figures(claims: pd.DataFrame) -> dict[str, go.Figure]:
    """Draws the differences of compute ratios that each claim is about, below the claim's text.

    A figure has about MOST_LINES lines. `claims` has the columns of `claims_frame` and optionally
    `profile`, `size` and `variant`. All figures have the same horizontal axis. The range where a
    claim holds is shaded. Thin lines are intervals that include the error of the unit.
    """
    rows = claims.assign(**{name: "" for name in (PROFILE, VARIANT, "size") if name not in claims})
    numbers = rows[["difference", "low", "high", UNIT_ERROR]].values
    ends = [widen(Interval(*row), error) for *row, error in numbers]
    rows = rows.assign(wide_low=[end.low for end in ends], wide_high=[end.high for end in ends])
    margins = [end for within in rows[WITHIN] for end in (within.left, within.right)]
    means = rows[["difference", "wide_low", "wide_high"]].to_numpy().ravel()
    near = np.clip([0.0, *filter(np.isfinite, margins), *means], -RATIO_END, RATIO_END)
    span, title = pad_range([*near, *rows["difference"]]), "difference"
    if rows[PROFILE].nunique() > 1:
        rows["claim"] += ", profile " + rows[PROFILE]
    else:
        title += f", profile {rows[PROFILE].iloc[0]}"
    by_claim = rows.groupby(["claim", PROFILE, VARIANT], sort=False, dropna=False)
    groups = [of_claim for _, of_claim in by_claim]
    lines = np.array([*map(_count_lines, groups)])
    total, parts = lines.sum(), defaultdict(list)
    # The middle of a group selects its figure, so that figures have similar numbers of lines.
    places = (lines.cumsum() - lines / 2.0) * math.ceil(total / MOST_LINES) // total
    for of_claim, place in zip(groups, places, strict=True):
        parts[place].append(of_claim)
    return {
        f"claims-{i}": _draw_claims(part, span, title) for i, part in enumerate(parts.values(), 1)
    }


def _wrap_claim(rows: pd.DataFrame) -> list[str]:
    first = rows.iloc[0]
    return wrap(", ".join(filter(None, [first["claim"], first[VARIANT]])), MOST_LETTERS)


def _count_lines(rows: pd.DataFrame) -> int:
    return len(_wrap_claim(rows)) + len(rows)


def _draw_claims(groups: Sequence[pd.DataFrame], span: Sequence[float], about: str) -> go.Figure:
    figure, line, ticks, placed = go.Figure(), 0, {}, []
    for rows in groups:
        text = _wrap_claim(rows)
        figure.add_annotation(
            text="<br>".join(text),
            x=0,
            y=line - 0.4,
            xref="paper",
            xanchor="left",
            yanchor="top",
            align="left",
            showarrow=False,
            borderpad=0,
            font={"size": 11},
        )
        lines = np.arange(len(rows)) + line + len(text)
        ticks |= dict(zip(lines, rows["size"], strict=True))
        placed.append(rows.assign(line=lines))
        line += _count_lines(rows)
    shown = pd.concat(placed)
    left, right = np.clip([(w.left, w.right) for w in shown[WITHIN]], *span).T
    figure.add_bar(
        x=right - left,
        base=left,
        y=shown["line"],
        width=1.0,
        orientation="h",
        name="where the claim holds",
        marker={"color": translucent(BLUE, 0.14), "line": {"width": 0}},
        hoverinfo="skip",
    )
    _add_differences(figure, shown)
    lay_out(figure, "Differences of compute ratios", about, "")
    figure.add_vline(x=0.0, line={"color": GREY, "dash": "dot", "width": 1.5})
    cut_intervals(figure, "x", span)
    figure.update_xaxes(range=span)
    figure.update_yaxes(
        range=[line - 0.5, -0.7],
        tickvals=list(ticks),
        ticktext=list(ticks.values()),
        showgrid=False,
        zeroline=False,
    )
    figure.update_layout(height=FRAME_HEIGHT + LINE_HEIGHT * line, bargap=0)
    return with_table(figure, shown.drop(columns=[*UNWRITTEN, "line"], errors="ignore"))


def _add_differences(figure: go.Figure, rows: pd.DataFrame) -> None:
    for verdict, (colour, symbol) in LOOKS.items():
        mine = rows[rows["verdict"].str.removesuffix(NO_INTERVAL) == verdict]
        if mine.empty:
            continue
        x, y = mine["difference"], mine["line"]
        if mine[UNIT_ERROR].notna().any():
            figure.add_scatter(
                x=x,
                y=y,
                mode="markers",
                legendgroup=verdict,
                marker={"opacity": 0},
                error_x=whiskers(mine, "difference", INK, 1, 0, prefix="wide_"),
                showlegend=False,
                hoverinfo="skip",
            )
        texts = ["claim", "size", "low", "high", "detectable", "num_seeds", "verdict"]
        figure.add_scatter(
            x=x,
            y=y,
            mode="markers",
            legendgroup=verdict,
            marker={
                "symbol": symbol,
                "size": 9,
                "color": colour,
                "line": {"width": 2, "color": colour},
            },
            name=verdict or "no verdict",
            error_x=whiskers(mine, "difference", colour, 2, 4, prefix=""),
            customdata=mine[texts].to_numpy(object),
            hovertemplate=(
                "<b>%{customdata[0]}</b> %{customdata[1]}<br>%{customdata[6]}: %{x:.3f} "
                "[%{customdata[2]:.3f}, %{customdata[3]:.3f}], detectable %{customdata[4]:.3f}, "
                "%{customdata[5]} seeds<extra></extra>"
            ),
        )
