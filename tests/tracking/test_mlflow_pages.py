"""What users see on MLflow's own pages, in headless Chromium: three clicks from its start page to the charts."""

from dataclasses import replace

import pytest

from gram_platform.config import Evaluation, View
from gram_platform.pages.results.record import StudyRecord, publish
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.views import Line, TrialColumns, search_views
from tests.pages.site.browser import Browser, running_browser
from tests.store.training import run_config, train
from tests.tracking.servers import running_mlflow

RUN = run_config(8)
STEPS = range(1, 9)
SIZES = {"tiny": 97_280, "small": 153_000}
FORGET = {"gram": [0.9, 0.5], "filtering": [0.8, 0.4]}  # of the profile that the study shows, by size
HALF = 0.0625  # of every interval
RATIOS = {"ratio/core": 0.75, "ratio/forget": 0.375}  # of the run's evaluation
LINK = "[...document.querySelectorAll('a')].find((a) => a.innerText.trim() === '{}')"
UNFOLD = "({}).closest('[role=gridcell]').querySelector('button')"  # beside a link
TRAINING = "[...document.querySelectorAll('span, label, button')].find((e) => e.innerText === 'Model training')"
CHARTS = """[...document.querySelectorAll('.js-plotly-plot')].map((plot) => (plot.data || [])
    .filter((trace) => trace.hoverinfo !== 'skip')
    .map((trace) => [trace.name, Array.from(trace.x || []), Array.from(trace.y || [])]))"""


def planted_study(store: Store) -> Tracker:
    """A study of one run and its evaluation, with lines of two methods and two profiles."""
    train(store.root, RUN)
    tags = {"method": "gram", "size": "tiny", "seed": "0", "profile": "all", "retained": ""}
    store.run(RUN.run_id).add_tags(tags)
    evaluation = Evaluation(View.of(RUN.run_id, {"virology": 1.0}), "d" * 12, ("core", "virology"), 4)
    place = store.evaluation(evaluation.eval_id)
    place.ensure_config(evaluation)
    place.add_tags({**tags, "profile": "core+virology"})
    place.complete({"losses": {"core": 2.5, "virology": 3.25}}, {"elapsed_s": 0.5})
    entries = tuple({"id": i, "kind": k, "tags": tags} for i, k in ((RUN.run_id, "run"), (place.node_id, "evaluation")))
    record = StudyRecord(
        name="scaling",
        title="A study",
        question="Does MLflow show it?",
        facts=(),
        params={"preset": "test"},
        sizes=tuple(SIZES),
        parameters=SIZES,
        profile="core+virology",
        entries=entries,
    )
    lines = [
        Line(f"{method} {profile}", {"method": method, "profile": profile}, points(values))
        for method, values in FORGET.items()
        for profile in ("core+virology", "core")
    ]
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    files = {"table.csv": b"method\n", "report.html": b"<html></html>"}
    publish(record, store, files, {}, tracker, lines, {place.node_id: RATIOS})
    return tracker


def points(forget: list[float]) -> dict[int, dict[str, float]]:
    ends = {"forget": 0.0, "forget_low": -HALF, "forget_high": HALF}
    at = zip(SIZES.values(), forget, strict=True)
    return {size: {"core": 1.0, **{name: value + end for name, end in ends.items()}} for size, value in at}


def click_from_the_start_page_to(browser: Browser, start: str, view: str) -> None:
    """Three clicks: the kind of experiments, the experiment, the view."""
    browser.window(1400, 1000)
    browser.visit(start)
    for link in (TRAINING, LINK.format("gram"), LINK.format(view)):
        browser.click(link)
    browser.window(1400, 1000)  # of the tab that the link has opened


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_clicks_from_the_start_page_to_forget_against_size_with_intervals(tmp_path):
    store = Store(tmp_path / "storage").open_for_writing()
    tracker = planted_study(store)
    with running_browser(tmp_path) as browser, running_mlflow(tracker.tracking_uri, tmp_path) as server:
        click_from_the_start_page_to(browser, server.uri, "scaling: ratios by size")
        of_forget = f"{CHARTS}.find((chart) => chart.length === 6)"
        assert browser.wait_for(f"Boolean({of_forget})"), browser.evaluate(CHARTS)
        drawn = sorted((name, *map(tuple, places)) for name, *places in browser.evaluate(of_forget))
        assert drawn == sorted(
            (f"{method} core+virology", tuple(SIZES.values()), tuple(at[name] for at in points(values).values()))
            for method, values in FORGET.items()
            for name in ("forget", "forget_low", "forget_high")
        )
        links = Tracker(server.uri).view_urls("scaling")
        assert browser.evaluate("location.href").startswith(links["ratios"])
        browser.visit("about:blank")
        browser.visit(links["runs"])
        assert browser.wait_for(f"Boolean({LINK.format('gram tiny all s0')})")
        evaluated = LINK.format("gram tiny core+virology s0, evaluated")
        assert not browser.evaluate(f"Boolean({evaluated})")  # before its run is unfolded
        browser.click(UNFOLD.format(LINK.format("gram tiny all s0")))
        assert browser.wait_for(f"Boolean({evaluated})")
        browser.visit("about:blank")
        browser.visit(links["evaluations"])
        assert browser.wait_for(f"Boolean({evaluated})")
        text = browser.evaluate("document.body.innerText")
        assert all(name in text and str(value) in text for name, value in RATIOS.items()), text
        assert "Sort: ratio/forget" in text
        run = Tracker(server.uri).run_url(tracker.runs()["run", RUN.run_id].info.run_id)
        browser.visit("about:blank")
        browser.visit(run)
        assert browser.wait_for(f"Boolean({evaluated})")
        assert browser.evaluate(f"Boolean({LINK.format('Runs')})")  # not evaluations of language models
        browser.visit("about:blank")
        browser.visit(run.replace("?", "/model-metrics?"))
        assert browser.wait_for(f"{CHARTS}.length > 2"), browser.evaluate(CHARTS)
        losses = browser.evaluate(CHARTS)[:2]  # before training's own
        found = [{name: losses for name, _, losses in chart} for chart in losses]
        assert [chart["gram tiny all s0"] for chart in found] == [[2 / s for s in STEPS], [3 / s for s in STEPS]]


# The objective by rate and batch.
GRID = {(0.001, 4): 3.125, (0.001, 8): 2.625, (0.004, 4): 2.375, (0.004, 8): 2.875}
CONTOUR = """[...document.querySelectorAll('.js-plotly-plot')].flatMap((plot) => plot.data || [])
    .filter((trace) => trace.type === 'contour').map(({x, y, z}) => [x, y, z].map((values) => Array.from(values)))"""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_clicks_from_the_start_page_to_a_grids_contour(tmp_path):
    store, columns, metrics = (
        Store(tmp_path / "storage").open_for_writing(),
        TrialColumns(("lr", "batch"), ("loss",)),
        {},
    )
    for number, ((lr, batch), loss) in enumerate(GRID.items()):
        run = replace(RUN, seed=number)
        train(store.root, run)
        store.run(run.run_id).add_tags({"method": "baseline", "size": "tiny", "seed": str(number), "profile": "all"})
        metrics[run.run_id] = columns.metrics_of({"lr": lr, "batch": batch, "loss": loss})
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    marks = {"node_tags": {run_id: {} for run_id in metrics}, "node_metrics": metrics}
    tracker.log_study("lr_bs_grid", {}, {}, {}, views=search_views("lr_bs_grid", columns), **marks)
    with running_browser(tmp_path) as browser, running_mlflow(tracker.tracking_uri, tmp_path) as server:
        click_from_the_start_page_to(browser, server.uri, "lr_bs_grid: trials")
        assert browser.wait_for(f"{CONTOUR}.length > 0"), browser.evaluate(CHARTS)
        (drawn,) = browser.evaluate(CONTOUR)
        points = {(lr, batch): loss for lr, batch, loss in zip(*drawn, strict=True)}
        assert points == GRID
        browser.visit("about:blank")
        browser.visit(Tracker(server.uri).view_urls("lr_bs_grid")["runs"].replace("&compareRunsMode=CHART", ""))
        assert browser.wait_for("document.body.innerText.includes('4 matching runs')")
        shown = [str(loss) for loss in sorted(GRID.values())]
        assert browser.wait_for(f"{shown}.every((loss) => document.body.innerText.includes(loss))")
        text = browser.evaluate("document.body.innerText")
        assert sorted(shown, key=text.index) == shown
