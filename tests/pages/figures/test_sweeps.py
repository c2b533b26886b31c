"""The panels of a sweep draw the table's numbers over the paper's, and say which is which without
colour."""

import numpy as np
import pytest

from gram_platform.analysis.sweeps import analyse_sweeps
from gram_platform.analysis.tables import StudyLosses
from gram_platform.pages.figures.sweeps import CLASS_STYLES, IN_PAPER, sweep_figure, sweep_figures
from gram_platform.paper.sweeps import PAPER_SWEEPS
from tests.stories_frames import SIZE, curves
from tests.sweep_frames import POINTS, analysed, evaluations

PANELS = ("core", "retain", "forget", "elicited")


@pytest.fixture(scope="module")
def table():
    return analysed().table


def named(figure, name):
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


@pytest.mark.parametrize("knob", PAPER_SWEEPS)
def test_lines_and_bands_are_the_table_and_the_papers_dashed_below(table, knob):
    method, rows = PAPER_SWEEPS[knob].method, table[table["knob"] == knob]
    for value in ("retain", "forget", "elicited"):
        figure, label = sweep_figure(table, knob, method, SIZE, value), CLASS_STYLES[value].label
        ours, paper = named(figure, label), named(figure, f"{label}, {IN_PAPER}")
        assert list(ours.x) == list(rows["value"])
        assert list(ours.y) == list(rows[value])
        assert [point[3] for point in ours.customdata] == list(
            rows["runs"].str.replace(" ", "<br>")
        )
        assert ours.line.dash == "solid"
        given = PAPER_SWEEPS[knob].curves[value]
        assert list(paper.y) == list(given["mean"])
        assert paper.line.dash == "dash"
        assert paper.marker.symbol.endswith("-open")
        bands = {band.legendgroup: list(band.y) for band in figure.data if band.fill == "toself"}
        assert bands[label] == [*rows[f"{value}_high"], *rows[f"{value}_low"][::-1]]
        assert bands[label + IN_PAPER] == [*given["high"], *given["low"][::-1]]
    assert (figure.layout.xaxis.type == "log") == (knob == "p_ca")


def test_core_is_drawn_as_the_paper_draws_it(table):
    robust = sweep_figure(table, "p_cr", "gram", SIZE, "core")
    assert [t.name for t in robust.data if t.fill is None and IN_PAPER not in t.name] == [
        "Core-Partial",
        "Core-Full",
    ]
    spread = sweep_figure(table, "p_as", "gram", SIZE, "core")
    assert [t.name for t in spread.data if t.fill is None] == [f"Core, {IN_PAPER}", "Core"]


def test_the_panels_of_a_knob_share_a_scale_that_holds_every_interval(table):
    ranges = {
        tuple(sweep_figure(table, "p_cr", "gram", SIZE, value).layout.yaxis.range)
        for value in PANELS
    }
    ((low, high),) = ranges
    drawn = [
        y
        for value in PANELS
        for t in sweep_figure(table, "p_cr", "gram", SIZE, value).data
        for y in t.y
    ]
    assert low < min(drawn)
    assert max(drawn) < high


def test_one_seed_has_no_band_and_one_point_has_error_bars():
    spread = [point for point in POINTS if point[0] == "p_as"]
    one_seed = analyse_sweeps(
        StudyLosses(evaluations(spread, seeds=("0",)), curves(seeds=("0",)))
    ).table
    figure = sweep_figure(one_seed, "p_as", "gram", SIZE, "forget")
    assert [t.legendgroup for t in figure.data if t.fill == "toself"] == [f"Forget{IN_PAPER}"]
    one_point = analyse_sweeps(StudyLosses(evaluations(POINTS[:1]), curves())).table
    (forget,) = one_point["forget_high"] - one_point["forget"]
    assert (
        named(sweep_figure(one_point, "p_cr", "gram", SIZE, "forget"), "Forget").error_y.array[0]
        == forget
    )


def test_every_panel_by_name_and_none_that_is_empty(table):
    figures = sweep_figures(table)
    assert len(figures) == len(PAPER_SWEEPS) * len(PANELS)
    assert list(figures)[:2] == ["p_cr-gram-26M-core", "p_cr-gram-26M-retain"]
    blank = {f"elicited{end}": np.nan for end in ("", "_low", "_high")}
    assert not [name for name in sweep_figures(table.assign(**blank)) if name.endswith("elicited")]
    assert sweep_figures(table.iloc[:0]) == {}
    assert len(sweep_figure(table, "p_cr", "gram", "5B", "core").data) == 0
