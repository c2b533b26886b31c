"""Checks how pages show claims: one row each, and a forest plot of the differences."""

import pytest

from gram_platform.analysis.intervals import Interval, widen
from gram_platform.pages.report.claims import MARKS, OVER_SIZES, claims_figures, claims_matrix
from gram_platform.pages.report.page import Page
from gram_platform.paper.verdicts import paper_claims, with_published
from tests.study_frames import SIZES, analysed


def test_claims_have_a_row_each_with_sizes_as_columns():
    per_seed = analysed().per_seed
    claims = paper_claims(per_seed, "scaling")
    matrix = claims_matrix(with_published(claims, "scaling"))
    # The verdicts stand beside the claims, where a phone shows them.
    assert list(matrix.columns) == ["claim", *SIZES, OVER_SIZES, "published"]
    several = claims_matrix(claims.assign(profile=["core", *["mean"] * (len(claims) - 1)]))
    assert several.columns[-1] == "profile"
    assert matrix["claim"].is_unique
    cells = matrix.set_index("claim")
    for claim, size, verdict in zip(
        claims["claim"], claims["size"], claims["verdict"], strict=True
    ):
        assert cells.loc[claim, size or OVER_SIZES] == f"{MARKS[verdict]} {verdict}"
    assert (cells[[*SIZES, OVER_SIZES]] != "").to_numpy().sum() == len(claims)


def test_a_forest_plot_has_every_difference_its_interval_and_its_margin():
    claims = paper_claims(analysed().per_seed, "scaling")
    long = claims.assign(low=-30.0, high=30.0)
    for figure in claims_figures(long).values():
        low, high = figure.layout.xaxis.range
        assert -1.5 < low < 0.0 < high < 1.5
        points = [t for t in figure.data if t.type == "scatter"]
        assert {"triangle-left", "triangle-right"} <= {t.marker.symbol for t in points}
    heights = [figure.layout.height for figure in claims_figures(claims).values()]
    assert max(heights) < 1.3 * min(heights)
    claims.loc[claims.index[0], "unit_error"] = 0.3
    figures = claims_figures(claims)
    traces = [trace for figure in figures.values() for trace in figure.data]
    points = [trace for trace in traces if trace.name in MARKS]
    assert sorted(x for trace in points for x in trace.x) == pytest.approx(
        sorted(claims["difference"])
    )
    highs = sorted(
        x + up for trace in points for x, up in zip(trace.x, trace.error_x.array, strict=True)
    )
    assert highs == pytest.approx(sorted(claims["high"]))
    (wide,) = (trace for trace in traces if trace.marker.opacity == 0)
    ends = widen(Interval(*claims.iloc[0][["difference", "low", "high"]]), 0.3)
    assert wide.x[0] + wide.error_x.array[0] == pytest.approx(ends.high)
    (span,) = {figure.layout.xaxis.range for figure in figures.values()}
    assert span[0] < claims["low"].min() <= claims["high"].max() < span[1]
    shaded = [base for trace in traces if trace.type == "bar" for base in trace.base]
    assert sorted(shaded) == pytest.approx(
        sorted(max(within.left, span[0]) for within in claims["within"])
    )
    texts = [
        note.text.replace("<br>", " ")
        for figure in figures.values()
        for note in figure.layout.annotations
    ]
    assert texts == list(dict.fromkeys(claims["claim"]))
    assert (
        "within" not in Page("", "", [], claims=claims).files["claims.csv"].decode().splitlines()[0]
    )
