"""Figures of searches draw the trials that the frame has, at their values, and invent none for the
others."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.trials import link_trials
from gram_platform.config.space import Parameter
from gram_platform.pages.figures.searches import WITH_VALUE, history_figure, slice_figure

RATE, SHARE = Parameter("rate", 1e-4, 1e-1, log=True), Parameter("share", 0.0, 1.0)
STATES = {3: "diverged", 8: "failed", 11: "running", 12: "waiting"}


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    rows = []
    for number in range(13):
        state = STATES.get(number, "complete")
        metrics = {"loss": rng.uniform(0.2, 0.9) if state == "complete" else math.nan}
        point = {
            "rate": 10 ** rng.uniform(-4, -1),
            "share": rng.uniform(),
            "kind": "ab"[number % 2],
        }
        runs = (
            " ".join(f"run{number:02d}{i}" for i in range(5 if number == 0 else 1))
            if state == "complete"
            else ""
        )
        rows.append(
            {"search": "s", "trial": number, "state": state, **point, **metrics, "runs": runs}
        )
    frame = pd.DataFrame(rows).assign(elapsed_s=2.0, started=pd.Timestamp("2026-01-01"))
    frame.loc[12, ["rate", "share"]] = math.nan  # a waiting trial has no point yet
    return link_trials(
        frame, {f"run{number:02d}0": f"http://127.0.0.1:5000/#/{number}" for number in range(5)}
    )


def named(figure, name):
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


def number_of(point) -> int:
    return int(point[0].split("trial ")[1].split("<")[0])


def test_history_is_the_finished_trials_and_the_best_so_far(trials):
    figure = history_figure(trials.iloc[::-1], "loss")
    done = trials[trials["state"] == "complete"]
    dots, line = named(figure, WITH_VALUE), named(figure, "best so far")
    assert list(zip(dots.x, dots.y, strict=True)) == list(
        zip(done["trial"], done["loss"], strict=True)
    )
    (star,) = (place for place, symbol in enumerate(dots.marker.symbol) if symbol == "star")
    assert dots.y[star] == done["loss"].min()
    assert list(line.y) == list(trials["loss"].cummin().ffill())


def test_trials_without_a_value_stand_at_the_edge_and_apart(trials):
    figure = history_figure(trials, "loss")
    diverged, failed = named(figure, "diverged (penalty)"), named(figure, "failed")
    assert (list(diverged.x), list(failed.x)) == ([3], [8])
    assert diverged.yaxis == failed.yaxis == "y2"
    assert figure.layout.yaxis2.range == (0, 1)
    assert diverged.marker.symbol != failed.marker.symbol
    assert "loss" not in diverged.customdata[0][0]
    seen = [
        number_of(point)
        for trace in figure.data
        if trace.customdata is not None
        for point in trace.customdata
    ]
    assert Counter(seen) == Counter(set(range(13)) - {11, 12})


def test_slices_have_the_searched_range(trials):
    figure = slice_figure(trials, RATE, "loss")
    assert figure.layout.xaxis.type == "log"
    low, high = figure.layout.xaxis.range
    assert (low + high) / 2 == pytest.approx(-2.5)
    assert -4.2 < low < -4 < -1 < high < -0.8
    dots = named(figure, WITH_VALUE)
    for point, x, y in zip(dots.customdata, dots.x, dots.y, strict=True):
        assert (x, y) == tuple(trials.set_index("trial").loc[number_of(point), ["rate", "loss"]])
    linear = slice_figure(trials, SHARE, "loss")
    assert linear.layout.xaxis.type is None
    assert list(linear.layout.xaxis.range) == pytest.approx([-0.04, 1.04])


def test_hovers_say_the_point_and_the_runs_and_carry_the_page(trials):
    figure = history_figure(trials, "loss")
    dots = named(figure, WITH_VALUE)
    texts = {number_of(point): tuple(point) for point in dots.customdata}
    text, url = texts[0]
    row = trials.iloc[0]
    assert f"rate {row['rate']:.4g}" in text
    assert "runs run000 run001 run002 and 2 more" in text
    assert url == "http://127.0.0.1:5000/#/0"
    assert texts[9][1] == ""
    assert dots.meta["url"] == 1


@pytest.mark.parametrize("state", ["diverged", "running"])
def test_a_search_without_any_finished_trial_draws_no_value(trials, state):
    began = trials.assign(state=state, loss=math.nan)
    figures = [history_figure(began, "loss"), slice_figure(began, RATE, "loss")]
    assert {trace.name for figure in figures for trace in figure.data} <= {"diverged (penalty)"}
