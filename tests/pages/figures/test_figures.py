"""Figures draw exactly the numbers of their tables, and every series can be told apart without
colour."""

import io
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.tables import CLASSES, StudyLosses, analyse, domain_table
from gram_platform.methods import METHODS
from gram_platform.pages.figures.study import (
    aggregate_figure,
    learning_curve_figure,
    profile_bars_figure,
    scaling_figure,
)
from gram_platform.pages.figures.style import METHOD_STYLES, domain_styles, log_ticks, method_style
from gram_platform.paper.paper import read_printed
from tests import stories_frames
from tests.study_frames import DOMAINS, SIZES, analysed, curves, evaluations


@pytest.fixture(scope="module")
def analysis():
    return analysed()


def named(figure, name):
    found = [trace for trace in figure.data if trace.name == name]
    assert found, [trace.name for trace in figure.data]
    return found


def test_scaling_lines_are_the_table(analysis):
    figure = scaling_figure(analysis.table, SIZES, "core+biology", "forget")
    table = analysis.table
    rows = table[(table["method"] == "gram") & (table["profile"] == "core+biology")]
    (line,) = named(figure, "GRAM")
    assert list(line.x) == [1e6, 4e6, 16e6]
    assert list(line.y) == list(rows["forget"])
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert len(bands) == 2
    gram = next(band for band in bands if band.legendgroup == "GRAM")
    assert list(gram.y) == [*rows["forget_high"], *rows["forget_low"][::-1]]
    assert not [trace for trace in figure.data if trace.name == "baseline"]
    assert figure.layout.xaxis.type == "log"


def test_two_seeds_show_their_two_points_and_no_interval():
    seeds = ("0", "1")
    two = analyse(StudyLosses(evaluations(("tiny",), seeds), curves(("tiny",), seeds)))
    for figure, profile in (
        (scaling_figure(two.table, SIZES, "core", "core"), "core"),
        (aggregate_figure(two.table, "tiny", "core"), "mean"),
    ):
        assert all(trace.error_y.array is None for trace in figure.data)
        rows = two.per_seed[two.per_seed["profile"] == profile]
        points = [t for t in figure.data if t.type == "scatter" and t.mode == "markers"]
        shown = [y for trace in points for y in trace.y]
        assert sorted(shown) == sorted(rows.loc[rows["method"] != "baseline", "core"])


def test_scaling_with_one_size_has_error_bars_and_with_one_seed_has_neither():
    one_size = analyse(StudyLosses(evaluations(("tiny",)), curves(("tiny",)))).table
    (line,) = named(scaling_figure(one_size, SIZES, "core+biology", "core"), "GRAM")
    assert line.error_y.array[0] > 0
    one_seed = analyse(StudyLosses(evaluations(seeds=("0",)), curves(seeds=("0",)))).table
    figure = scaling_figure(one_seed, SIZES, "core+biology", "core")
    assert [trace.mode for trace in figure.data] == ["lines+markers"] * 2  # no bands
    assert [trace.error_y.array for trace in figure.data] == [None] * 2


def test_learning_curves_show_points_and_fits(analysis):
    figure = learning_curve_figure(curves(), analysis.fits, "small")
    for domain in DOMAINS:
        (points,) = named(figure, domain)
        assert len(points.x) == 25 * 3
        (fit,) = named(figure, f"{domain} fit")
        on_points = dict(zip(np.round(points.x, 6), points.y, strict=False))
        assert fit.y[0] == pytest.approx(on_points[np.round(fit.x[0], 6)], rel=1e-8)
        assert fit.y[-1] == pytest.approx(on_points[np.round(fit.x[-1], 6)], rel=1e-8)


def test_a_fit_at_its_bound_says_so(analysis):
    fits = analysis.fits.assign(at_bound=True)
    figure = learning_curve_figure(curves(), fits, "small")
    (bound,) = [trace for trace in figure.data if trace.name.startswith("core fit ")]
    assert bound.showlegend
    assert "bound" in bound.name
    both = learning_curve_figure(curves(), fits.assign(poor=True), "small")
    assert [
        trace.name.count("bound, poor") for trace in both.data if trace.name.startswith("core fit ")
    ] == [1]
    steps = pd.DataFrame(
        {"size": "s", "seed": "0", "step": [10, 40_000], "domain": "core", "loss": [5.0, 0.4]}
    )
    # No exponents.
    assert learning_curve_figure(steps, fits, "s").layout.xaxis.ticktext[-2:] == (
        "10,000",
        "20,000",
    )
    without = learning_curve_figure(curves(), fits[fits["domain"] != "core"], "small")
    assert [trace.name for trace in without.data if trace.name.startswith("core")] == ["core"]


def test_the_bars_of_all_methods_at_a_size_have_the_same_axes(analysis):
    domains = domain_table(analysis.ratios)
    fewer = domains[(domains["method"] == "gram") | (domains["profile"] == "core+biology")]
    panels = [profile_bars_figure(fewer, method, "tiny").layout for method in ("gram", "filtering")]
    assert panels[0].yaxis.range == panels[1].yaxis.range
    assert panels[0].xaxis.categoryarray == panels[1].xaxis.categoryarray
    assert panels[0].xaxis.type == "category"
    legends = [
        [t.name for t in profile_bars_figure(fewer, m, "tiny").data if t.showlegend is not False]
        for m in ("gram", "filtering")
    ]
    assert sorted(legends[0]) == sorted(DOMAINS)
    assert legends[0] == legends[1]


def test_a_ratio_has_an_axis_of_its_means_and_long_intervals_end_in_arrows(analysis):
    """Two seeds far apart, or a poor fit, make an interval of many times the means."""
    long = analysis.table.assign(forget_low=-20.0, forget_high=22.0)
    bars = aggregate_figure(long, "tiny", "forget")
    lines = scaling_figure(long, SIZES, "core+biology", "forget")
    domains = domain_table(analysis.ratios)
    of_domains = profile_bars_figure(domains.assign(low=-20.0, high=22.0), "gram", "tiny")
    for figure in (bars, lines, of_domains):
        assert figure.layout.yaxis.range == (0.0, 1.2)
        points = [t for t in figure.data if t.type == "scatter"]
        arrows = [t for t in points if str(t.marker.symbol).startswith("triangle-")]
        ends = {
            (y, text.rpartition(" ")[2])
            for t in arrows
            for y, text in zip(t.y, t.text, strict=True)
        }
        assert ends == {(0.0, "-20.000"), (1.2, "22.000")}
        for trace in figure.data:
            if trace.error_y.array is not None:
                middle = np.array(trace.y, float)
                assert middle + trace.error_y.array == pytest.approx(1.2)
                assert middle - trace.error_y.arrayminus == pytest.approx(0.0)
    higher = scaling_figure(long.assign(forget=1.6), SIZES, "core+biology", "forget")
    assert 1.6 < higher.layout.yaxis.range[1] < 1.8
    assert not [t for t in scaling_figure(analysis.table, SIZES, "core", "core").data if t.text]


def test_the_baseline_is_named_in_the_legend_where_it_covers_no_point(analysis):
    for figure in (
        scaling_figure(analysis.table, SIZES, "core+biology", "core"),
        profile_bars_figure(domain_table(analysis.ratios), "gram", "tiny"),
    ):
        (line,) = figure.layout.shapes
        assert (line.y0, line.name, line.showlegend) == (1.0, "baseline", True)
        assert not figure.layout.annotations


def table_of(figure):
    return pd.read_csv(io.StringIO(unquote(figure.layout.meta["csv"])))


def test_the_table_of_a_figure_has_the_intervals_and_seeds_that_it_draws(analysis):
    table = analysis.table
    figure = scaling_figure(table, SIZES, "core+biology", "forget")
    rows = table_of(figure)
    columns = [
        "method",
        "size",
        "parameters",
        "profile",
        "forget",
        "forget_low",
        "forget_high",
        "num_seeds",
    ]
    assert list(rows.columns) == columns
    drawn = table[(table["profile"] == "core+biology") & (table["method"] != "baseline")]
    merged = rows.merge(drawn, on=["method", "size"])
    assert len(merged) == len(rows) == len(drawn)
    for name in columns[4:]:
        assert np.allclose(merged[f"{name}_x"], merged[f"{name}_y"], atol=1e-6)
    assert set(rows["size"].map(SIZES)) == set(rows["parameters"])


def test_bars_are_the_domain_table(analysis):
    domains = domain_table(analysis.ratios)
    figure = profile_bars_figure(domains, "gram", "tiny")
    rows = domains[
        (domains["method"] == "gram")
        & (domains["size"] == "tiny")
        & (domains["domain"] == "biology")
    ]
    drawn = {
        x: y
        for trace in named(figure, "biology")
        for x, y in zip(trace.x, trace.y, strict=True)
        if x is not None
    }
    assert drawn == dict(zip(rows["profile"], rows["compute_ratio"], strict=True))
    hatched = [x for trace in figure.data if trace.marker.pattern.shape == "/" for x in trace.x]
    assert sorted(hatched) == ["core", "core", "core+biology", "core+chemistry"]
    assert sum(bool(trace.showlegend is not False) for trace in figure.data) == len(DOMAINS)
    assert "run-gram-tiny-0" in figure.data[1].customdata[0][4]
    assert len(profile_bars_figure(domains, "gram", "no such size").data) == 0


@pytest.fixture(scope="module")
def stories():
    frames = stories_frames.evaluations(), stories_frames.curves()
    return analyse(StudyLosses(*frames, attacks=stories_frames.attacks()))


def test_aggregate_bars_are_the_means_with_the_papers_beside(stories):
    figure = aggregate_figure(stories.table, "26M", "elicited", read_printed("stories"))
    bars, diamonds = figure.data
    assert list(bars.y) == pytest.approx(
        [planted[3] for planted in stories_frames.PLANTED.values()]
    )
    assert [point[0] for point in bars.customdata][:3] == ["filtering", "GRAM", "GRAM (LoRA)"]
    assert list(bars.error_y.array) == pytest.approx(list(bars.error_y.arrayminus))
    assert list(diamonds.y) == [0.870, 0.855, 0.806, 0.774, 0.983, 0.302]
    assert list(diamonds.error_y.array)[:2] == pytest.approx([0.012, 0.024])
    assert len(figure.layout.xaxis.ticktext) == len(bars.x) == 8
    scales = {
        tuple(aggregate_figure(stories.table, "26M", c, read_printed("stories")).layout.yaxis.range)
        for c in CLASSES
    }
    assert len(scales) == 1


def test_aggregate_bars_without_the_paper_or_without_values(stories):
    (bars,) = aggregate_figure(stories.table, "26M", "core").data  # without the paper
    assert list(bars.x) == list(range(8))
    assert len(aggregate_figure(stories.table, "5B", "core").data) == 0
    unattacked = stories.table.assign(elicited=np.nan, elicited_low=np.nan, elicited_high=np.nan)
    assert len(aggregate_figure(unattacked, "26M", "elicited", read_printed("stories")).data) == 0


def test_the_attack_is_an_outline_around_the_forgotten_bar(stories):
    figure = profile_bars_figure(domain_table(stories.ratios), "maxent", "26M")
    outlines = [trace for trace in figure.data if trace.marker.color == "rgba(0,0,0,0)"]
    assert len(outlines) == 4
    assert {round(y, 6) for trace in outlines for y in trace.y} == {0.983}
    ratios = stories.ratios
    one_seed = domain_table(ratios[ratios["seed"] == ratios["seed"].iloc[0]])
    sure, unsure = (
        [
            t.error_y.array
            for t in profile_bars_figure(rows, "maxent", "26M").data
            if t.marker.color == "rgba(0,0,0,0)"
        ]
        for rows in (domain_table(ratios), one_seed)
    )
    assert all(np.isfinite(bars).all() for bars in sure)
    assert unsure == [None] * 4
    assert "core<br>+ Cultural<br>Traditions" in figure.layout.xaxis.ticktext


def test_methods_and_domains_differ_in_more_than_colour():
    assert set(METHOD_STYLES) == set(METHODS)
    assert len({(s.symbol, s.dash) for s in METHOD_STYLES.values()}) == len(METHODS)
    styles = domain_styles(["core", *(f"topic{i:02d}" for i in range(20))])
    assert next(iter(styles)) == "core"
    assert len({(s.colour, s.symbol, s.dash) for s in styles.values()}) == 21
    assert method_style("new_method").label == "new_method"


def test_log_ticks():
    assert log_ticks(15, 600) == [20, 50, 100, 200, 500]
    assert log_ticks(1, 10) == [1, 2, 5, 10]
    assert log_ticks(2.6, 3.3) == pytest.approx([2.6, 2.8, 3.0, 3.2])
    assert log_ticks(1, 1000, (1,)) == [1, 10, 100, 1000]
