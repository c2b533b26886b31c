"""Every saved view opens in the pinned MLflow, in headless Chromium, and shows what it is about."""

from dataclasses import replace

import pytest

from gram_platform.config.space import TrialColumns
from gram_platform.pages.results.trials import trials_log
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from gram_platform.tracking.views import (
    Line,
    StudyLog,
    study_id,
    study_views,
)
from tests.pages.site.browser import running_browser
from tests.store.training import train
from tests.tracking.planted import EVALUATION, RUN, TAGS
from tests.tracking.servers import running_mlflow
from tests.tracking.test_changed_in_mlflow import mirrored_storage

PARAMS, SHOWN = {"preset": "smoke"}, {"profile": "core"}
LINE = Line(
    "gram core", {"method": "gram", **SHOWN}, {97_280: {"forget": 0.5}, 153_000: {"forget": 0.25}}
)
# The objective by rate and batch.
GRID = {(0.001, 4): 3.125, (0.001, 8): 2.625, (0.004, 4): 2.375, (0.004, 8): 2.875}
LINK = "[...document.querySelectorAll('a')].some((a) => a.innerText.trim() === '{}')"
TRACE = """[...document.querySelectorAll('.js-plotly-plot')].some((plot) => (plot.data || [])
    .some((trace) => trace.{} === '{}' && trace.x.length === {}))"""
EXPECTED = {
    ("scaling", "runs"): LINK.format("gram tiny all s0"),
    ("scaling", "evaluations"): LINK.format("gram tiny all s0, evaluated"),
    ("scaling", "ratios"): TRACE.format("name", LINE.name, len(LINE.points)),
    ("lr_bs_grid", "trials"): TRACE.format("type", "contour", len(GRID)),
    ("lr_bs_grid", "runs"): LINK.format("baseline tiny all s1"),
}


def log_study(tracker: Tracker) -> None:
    nodes, ratios = (
        {RUN.run_id: {}, EVALUATION.eval_id: {}},
        {EVALUATION.eval_id: {"ratio/forget": 0.375}},
    )
    views = study_views("scaling", study_id("scaling", PARAMS), SHOWN, (("forget",),))
    tracker.log_study(
        StudyLog("scaling", {}, {}, PARAMS, [LINE], nodes, views, node_metrics=ratios)
    )


def log_search(store: Store, tracker: Tracker) -> None:
    trials = []
    for number, ((lr, batch), loss) in enumerate(GRID.items(), start=1):
        run = replace(RUN, seed=number)
        train(store.root, run)
        store.run(run.run_id).add_tags({**TAGS, "method": "baseline", "seed": str(number)})
        trials.append(f"grid,{number},complete,tiny,{lr},{batch},{loss},{run.run_id},1")
    tracker.sync(store)
    head = "search,trial,state,size,lr,batch,loss,runs,elapsed_s"
    columns = TrialColumns(("lr", "batch"), ("loss",), ("size",))
    tracker.log_study(trials_log("lr_bs_grid", {}, "\n".join([head, *trials]).encode(), columns))


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_saved_view_opens_in_the_pinned_mlflow(tmp_path):
    store = mirrored_storage(tmp_path / "storage")
    tracker = Tracker(f"sqlite:///{store.root}/mlflow.db")
    log_study(tracker)
    log_search(store, tracker)
    with (
        running_browser(tmp_path) as browser,
        running_mlflow(tracker.tracking_uri, tmp_path) as server,
    ):
        urls = {name: Tracker(server.uri).view_urls(name) for name in ("scaling", "lr_bs_grid")}
        assert {(name, view) for name, views in urls.items() for view in views} == EXPECTED.keys()
        browser.window(1400, 1000)
        for (name, view), is_shown in EXPECTED.items():
            browser.visit("about:blank")
            browser.visit(urls[name][view])
            assert browser.wait_for(is_shown), (
                name,
                view,
                browser.evaluate("document.body.innerText"),
            )
