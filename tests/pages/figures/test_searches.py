"""Figures of searches draw the trials that the frame has, at their values, and invent none for the others."""

import json
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.trials import hypervolume_history, linked, pareto_front
from gram_platform.config.space import Parameter
from gram_platform.pages.figures.searches import (
    front_figures,
    history_figure,
    hypervolume_figure,
    importance_figure,
    projection_figure,
    slice_figure,
    space_figure,
)
from gram_platform.pages.report.page import Page, Section
from tests.pages.site.browser import IN_SPACE, running_browser
from tests.pages.site.pages import DRAWN

OBJECTIVES = {"core": "max", "retain": "max", "elicited": "min"}
REFERENCE = {"core": 0.0, "retain": 0.0, "elicited": 1.0}
RATE, SHARE = Parameter("rate", 1e-4, 1e-1, log=True), Parameter("share", 0.0, 1.0)
STATES = {3: "diverged", 8: "failed", 11: "running", 12: "waiting"}


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    rows = []
    for number in range(13):
        state = STATES.get(number, "complete")
        values = rng.uniform(0.2, 0.9, 4) if state == "complete" else [math.nan] * 4
        metrics = dict(zip(("loss", *OBJECTIVES), values, strict=True))
        point = {"rate": 10 ** rng.uniform(-4, -1), "share": rng.uniform(), "kind": "ab"[number % 2]}
        runs = " ".join(f"run{number:02d}{i}" for i in range(5 if number == 0 else 1)) if state == "complete" else ""
        rows.append({"search": "s", "trial": number, "state": state, **point, **metrics, "runs": runs})
    frame = pd.DataFrame(rows).assign(elapsed_s=2.0, started=pd.Timestamp("2026-01-01"))
    frame.loc[12, ["rate", "share"]] = math.nan  # a waiting trial has no point yet
    return linked(frame, {f"run{number:02d}0": f"http://127.0.0.1:5000/#/{number}" for number in range(5)})


@pytest.fixture(scope="module")
def references() -> pd.DataFrame:
    row = {
        "label": "GRAM as printed",
        "core": 0.9,
        "retain": 0.85,
        "elicited": 0.5,
        "runs": "aaa bbb",
        "url": "http://x/y",
    }
    return pd.DataFrame([row])


def named(figure, name):
    (found,) = [trace for trace in figure.data if trace.name == name]
    return found


def number_of(point) -> int:
    return int(point[0].split("trial ")[1].split("<")[0])


def test_history_is_the_finished_trials_and_the_best_so_far(trials):
    figure = history_figure(trials, "loss", "min")
    done = trials[trials["state"] == "complete"]
    dots, best, line = named(figure, "trial"), named(figure, "best"), named(figure, "best so far")
    points = dict(zip([*dots.x, *best.x], [*dots.y, *best.y], strict=True))
    assert points == dict(zip(done["trial"], done["loss"], strict=True))
    assert list(best.y) == [done["loss"].min()]
    assert list(line.y) == list(trials["loss"].cummin().ffill())
    upward = history_figure(trials, "loss", "max")
    assert list(named(upward, "best").y) == [done["loss"].max()]
    assert list(named(upward, "best so far").y) == list(trials["loss"].cummax().ffill())


def test_trials_without_a_value_stand_at_the_edge_and_apart(trials):
    figure = history_figure(trials, "loss", "min")
    diverged, failed = named(figure, "diverged (penalty)"), named(figure, "failed")
    assert (list(diverged.x), list(failed.x)) == ([3], [8])
    assert diverged.yaxis == failed.yaxis == "y2"
    assert figure.layout.yaxis2.range == (0, 1)
    assert diverged.marker.symbol != failed.marker.symbol
    assert "loss" not in diverged.customdata[0][0]
    seen = [number_of(point) for trace in figure.data if trace.customdata is not None for point in trace.customdata]
    assert Counter(seen) == Counter(set(range(13)) - {11, 12})


def test_slices_have_the_searched_range(trials):
    figure = slice_figure(trials, RATE, "loss", "min")
    assert figure.layout.xaxis.type == "log"
    low, high = figure.layout.xaxis.range
    assert (low + high) / 2 == pytest.approx(-2.5)
    assert -4.2 < low < -4 < -1 < high < -0.8
    dots = named(figure, "trial")
    for point, x, y in zip(dots.customdata, dots.x, dots.y, strict=True):
        assert (x, y) == tuple(trials.set_index("trial").loc[number_of(point), ["rate", "loss"]])
    linear = slice_figure(trials, SHARE, "loss", "min")
    assert linear.layout.xaxis.type is None
    assert list(linear.layout.xaxis.range) == pytest.approx([-0.04, 1.04])
    assert list(slice_figure(trials, Parameter("share", 0.5, 0.5), "loss", "min").layout.xaxis.range) == [0.0, 1.0]


def test_hovers_say_the_point_and_the_runs_and_carry_the_page(trials):
    figure = history_figure(trials, "loss", "max")
    dots, best = named(figure, "trial"), named(figure, "best")
    texts = {number_of(point): tuple(point) for point in (*dots.customdata, *best.customdata)}
    text, url = texts[0]
    row = trials.iloc[0]
    assert f"rate {row['rate']:.4g}" in text
    assert "kind a" in text
    assert "runs run000 run001 run002 and 2 more" in text
    assert url == "http://127.0.0.1:5000/#/0"
    assert texts[9][1] == ""
    assert dots.meta["url"] == best.meta["url"] == 1
    assert "started" not in text
    assert "elapsed_s" not in text


def test_importances_are_bars_from_the_most_important_down():
    (bars,) = importance_figure({"rate": 0.7, "share": 0.1, "kind": 0.15}, "loss", 12).data
    assert list(bars.y) == ["share", "kind", "rate"]  # plotly draws from below
    assert list(bars.x) == [0.1, 0.15, 0.7]
    assert len(importance_figure({}, "loss", 3).data) == 0


def test_projections_mark_the_front_and_join_that_of_the_two_objectives(trials, references):
    figure = projection_figure(trials, OBJECTIVES, "core", "elicited", references)
    front, faint = named(figure, "Pareto front"), named(figure, "dominated")
    is_front = pareto_front(trials, OBJECTIVES)
    assert {number_of(point) for point in front.customdata} == set(trials["trial"][is_front])
    done = set(trials["trial"][trials["state"] == "complete"])
    assert {number_of(point) for point in faint.customdata} == done - set(trials["trial"][is_front])
    by_number = trials.set_index("trial")
    for trace in (front, faint):
        for point, x, y in zip(trace.customdata, trace.x, trace.y, strict=True):
            assert (x, y) == tuple(by_number.loc[number_of(point), ["core", "elicited"]])
    line = named(figure, "front of core and elicited alone")
    assert list(line.x) == sorted(line.x)
    assert list(line.y) == sorted(line.y)  # more core costs more elicited along the front
    own = trials[pareto_front(trials, {"core": "max", "elicited": "min"})]
    assert set(line.x) == set(own["core"])
    mark = named(figure, "GRAM as printed")
    assert (list(mark.x), list(mark.y)) == ([0.9], [0.5])
    assert "runs aaa bbb" in mark.customdata[0][0]
    assert "higher is better" in figure.layout.xaxis.title.text
    assert "lower is better" in figure.layout.yaxis.title.text


def test_three_projections_and_space(trials, references):
    figures = front_figures(trials, OBJECTIVES, references)
    titles = [figure.layout.title.text for figure in figures]
    assert titles == ["core and retain", "core and elicited", "retain and elicited", "In all three"]
    space = figures[-1]
    front = named(space, "Pareto front")
    rows = trials[pareto_front(trials, OBJECTIVES)]
    assert [list(front.x), list(front.y), list(front.z)] == [list(rows[name]) for name in OBJECTIVES]
    assert list(named(space, "GRAM as printed").z) == [0.5]
    two = {"core": "max", "elicited": "min"}
    assert len(front_figures(trials, two)) == 1
    with pytest.raises(ValueError, match=r"^objectives="):
        space_figure(trials, two)


def test_hypervolume_is_the_history(trials):
    history = hypervolume_history(trials, OBJECTIVES, REFERENCE)
    figure = hypervolume_figure(history, REFERENCE)
    (line,) = figure.data
    assert list(line.x) == list(history["trial"])
    assert list(line.y) == list(history["hypervolume"])
    assert figure.layout.title.text.endswith("core 0, retain 0, elicited 1")
    assert len(hypervolume_figure(history.iloc[:0], REFERENCE).data) == 0


@pytest.mark.parametrize("state", ["diverged", "running"])
def test_a_search_without_any_finished_trial_draws_no_value(trials, state):
    began = trials.assign(state=state, **dict.fromkeys(("loss", *OBJECTIVES), math.nan))
    figures = [history_figure(began, "loss", "min"), slice_figure(began, RATE, "loss", "min")]
    assert {trace.name for figure in figures for trace in figure.data} <= {"diverged (penalty)"}
    assert sum(len(figure.data) for figure in front_figures(began, OBJECTIVES)) == 0
    assert json.loads(figures[0].to_json())["layout"]["autosize"] is True


# --------------------------------------------------------------------------------------------------- a browser

SPEED_HINTS = ("Canvas2D", "GPU stall")  # Chromium's, on plotly's drawing in space without a GPU
CLICK = """(() => {
  window.open = (url) => document.body.setAttribute("data-opened", url);
  const place = document.querySelector(".plot[data-drawn]");
  const number = place.data.findIndex((trace) => trace.name === "best");
  Plotly.Fx.hover(place, [{curveNumber: number, pointNumber: 0}]);
  const target = place.querySelector(".nsewdrag"), box = target.getBoundingClientRect();
  const where = {bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2};
  for (const kind of ["mousedown", "mouseup"]) target.dispatchEvent(new MouseEvent(kind, where));
})()"""
OPENED = "document.body.getAttribute('data-opened')"


@pytest.mark.browser
def test_a_browser_draws_them_and_a_click_opens_the_run(trials, references, tmp_path):
    best = trials.assign(url="http://127.0.0.1:5000/#/best")
    figures = [history_figure(best, "loss", "min"), slice_figure(best, RATE, "loss", "min")]
    figures += [importance_figure({"rate": 0.7, "share": 0.1}, "loss", 12)]
    figures += front_figures(best, OBJECTIVES, references)
    figures += [hypervolume_figure(hypervolume_history(best, OBJECTIVES, REFERENCE), REFERENCE)]
    page = tmp_path / "page.html"
    section = Section("Trials", "", {str(i): figure for i, figure in enumerate(figures)})
    page.write_text(Page("Search", "", [section]).html(), encoding="utf-8")
    with running_browser(tmp_path, flags=IN_SPACE) as browser:
        browser.window(1280, 4000)
        browser.open(page)
        assert browser.evaluate("document.querySelectorAll('.plot').length") == len(figures)
        assert browser.wait_for(DRAWN)
        browser.evaluate(CLICK)
        assert browser.wait_for(f"{OPENED} !== null")
        assert browser.evaluate(OPENED) == "http://127.0.0.1:5000/#/best"
        assert [said for said in browser.said if not any(hint in said for hint in SPEED_HINTS)] == []
