"""Figures of LR/batch grids draw the numbers of their frames, and say what is wrong with a
surface."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.lr_grid import POOLED
from gram_platform.analysis.lr_laws import analyse_grid
from gram_platform.pages.figures.lr_batch import law_figure, surface_figure
from gram_platform.pages.figures.style import TITLE_LETTERS
from tests.analysis.test_lr_grid import LRS, diverge, laddered, planted


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


@pytest.fixture(scope="module")
def analysis():
    trials = laddered(noise=0.001, s16M={"lr": 9e-3}, s1M={"bend": -0.1})
    hot = (
        (trials["size"] == "4M")
        & (trials["lr"] == LRS[-1])
        & (trials["batch"] == 16)
        & (trials["seed"] == "0")
    )
    return analyse_grid(diverge(trials, hot), seq_len=64, num_resamples=10)


def surface(analysis, size, cells=None):
    return surface_figure(
        analysis.cells if cells is None else cells, analysis.optima, analysis.surfaces, size
    )


def test_cells_contours_and_minima_are_those_of_the_frames(analysis):
    figure = surface(analysis, "4M")
    cells = analysis.cells[(analysis.cells["size"] == "4M") & analysis.cells["used"]]
    dots = named(figure, "cell")
    assert sorted(zip(dots.x, dots.y, strict=True)) == sorted(
        zip(cells["lr"], cells["batch"], strict=True)
    )
    assert [facts[0] for facts in dots.customdata] == cells["loss"].tolist()
    assert "4M-0-" in dots.customdata[0][5]
    crosses = named(figure, "diverged")
    assert (list(crosses.x), list(crosses.y), crosses.marker.symbol) == ([LRS[-1]], [16], "x")
    optima = analysis.optima[analysis.optima["size"] == "4M"].set_index("seed")
    star = named(figure, "minimum")
    assert (star.x[0], star.y[0]) == tuple(optima.loc[POOLED, ["lr", "batch"]])
    assert star.x[0] + star.error_x.array[0] == pytest.approx(optima.loc[POOLED, "lr_high"])
    assert star.y[0] - star.error_y.arrayminus[0] == pytest.approx(optima.loc[POOLED, "batch_low"])
    assert [named(figure, f"seed {seed}").x[0] for seed in "012"] == optima.loc[
        list("012"), "lr"
    ].tolist()
    mesh = analysis.surfaces[analysis.surfaces["size"] == "4M"]
    contour = named(figure, "fit")
    assert np.sort(np.asarray(contour.z).ravel()) == pytest.approx(np.sort(mesh["loss"]))
    at = mesh[(mesh["lr"] == contour.x[3]) & (mesh["batch"] == contour.y[7])]["loss"].iloc[0]
    assert contour.z[7][3] == at
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert list(figure.layout.xaxis.tickvals) == list(LRS)


def test_titles_say_what_is_wrong(analysis):
    assert "lr high" in surface(analysis, "16M").layout.title.text
    flat = surface(analysis, "1M")
    assert "not convex" in flat.layout.title.text
    assert not [trace for trace in flat.data if trace.name == "minimum"]
    row = analysis.optima[
        (analysis.optima["size"] == "1M") & (analysis.optima["seed"] == POOLED)
    ].iloc[0]
    ring = named(flat, "best cell")
    assert (ring.x[0], ring.y[0]) == (row["best_lr"], row["best_batch"])
    assert named(surface(analysis, "4M"), "minimum").marker.symbol == "star"


def test_a_size_without_a_fit_shows_its_cells():
    trials = planted("4M", lrs=LRS[:2])
    trials = trials.assign(state=np.where(trials["batch"] == 64, "failed", "complete"))
    few = analyse_grid(trials, seq_len=64)
    figure = surface(few, "4M")
    assert {trace.name for trace in figure.data} == {"cell", "no result", "best cell"}


def test_clicks_open_the_cells_page(analysis):
    cells = analysis.cells.assign(url=[f"http://mlflow/{i}" for i in range(len(analysis.cells))])
    dots = named(surface(analysis, "4M", cells), "cell")
    expected = cells[(cells["size"] == "4M") & cells["used"]]["url"].tolist()
    assert [facts[dots.meta["url"]] for facts in dots.customdata] == expected


@pytest.fixture(scope="module")
def with_an_edge():
    weak = planted("1M", lr=9e-3, batch=200.0, noise=0.001).assign(size="64M", parameters=64e6)
    return analyse_grid(pd.concat([laddered(noise=0.001), weak]), seq_len=64, num_resamples=10)


@pytest.mark.parametrize("quantity", ["lr", "batch"])
def test_laws_with_their_band_the_papers_law_and_hollow_edges(with_an_edge, quantity):
    analysis = with_an_edge
    figure = law_figure(analysis.lines, analysis.optima, analysis.laws, quantity)
    lines = analysis.lines[analysis.lines["quantity"] == quantity]
    assert list(named(figure, "our law").y) == lines["value"].tolist()
    assert list(named(figure, "the paper's law").y) == lines["paper"].dropna().tolist()
    assert min(named(figure, "the paper's law").x) >= 50e6 / 10
    assert named(figure, "the paper's law").line.dash == "dash"
    band = named(figure, "90% over seeds")
    assert list(band.y) == [*lines["high"], *lines["low"][::-1]]
    pooled = analysis.optima[analysis.optima["seed"] == POOLED]
    points = named(figure, "optimum (hollow: at the edge)")
    assert list(points.y) == pooled[quantity].tolist()
    assert list(points.marker.symbol) == ["star", "star", "star", "star-open"]
    assert list(points.error_y.array) == pytest.approx(
        (pooled[f"{quantity}_high"] - pooled[quantity]).tolist()
    )
    assert len(named(figure, "single seeds").y) == 12
    law = analysis.laws.set_index("quantity").loc[quantity]
    assert f"{law['coefficient']:.3g} N^{law['exponent']:.3f}" in figure.layout.title.text


def test_what_is_no_law_has_no_line_and_says_why(analysis):
    none = analyse_grid(laddered(s1M={"bend": -0.1}, s4M={"bend": -0.1}), seq_len=64)
    edges = analyse_grid(laddered(noise=0.001, s16M={"lr": 9e-3}), seq_len=64, num_resamples=10)
    for found, why in ((none, "1M: not convex"), (edges, "(lr high)")):
        figure = law_figure(found.lines, found.optima, found.laws, "lr")
        first, *rest = figure.layout.title.text.split("<br>")
        lines = [line.removeprefix("<sub>").removesuffix("</sub>") for line in rest]
        assert re.search(r"learning rate: no\b", first)
        assert why in " ".join(lines)
        assert max(map(len, lines)) <= TITLE_LETTERS
        # The first line is at the top, and the margin has room for the others.
        assert (figure.layout.title.y, figure.layout.title.yanchor) == (1, "top")
        assert figure.layout.margin.t >= 30 + 18 * len(lines)
        names = {trace.name for trace in figure.data}
        assert any(name.startswith("optimum ") for name in names)
        assert not names & {"our law", "90% over seeds"}


def test_an_optimum_far_away_does_not_hide_the_others():
    far = analyse_grid(laddered(s16M={"lr": 1e4}), seq_len=64, num_resamples=2)
    low, high = law_figure(far.lines, far.optima, far.laws, "lr").layout.yaxis.range
    assert high - low < 3
    assert math.isfinite(low)
    assert surface(far, "16M").layout.xaxis.range[1] < math.log10(1e-2)
