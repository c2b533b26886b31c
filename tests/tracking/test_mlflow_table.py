"""What a user meets in MLflow's own table: descriptions, few metrics, and the searches of
docs/results.md."""

import pytest
from mlflow import MlflowClient

from gram_platform.config import Evaluation, State, View
from gram_platform.store import Store
from gram_platform.store.checkpoints import NORM
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.entry import NodeEntry, curve_metrics, unescape
from gram_platform.tracking.views import Line, StudyLog
from tests.store.training import record, run_config, train

METHODS = ("baseline", "gram", "gram")
SEARCHES = {
    "tags.gram.kind = 'run' and tags.method = 'gram' and tags.size = 'tiny'": {
        "gram tiny all s1",
        "gram tiny all s2",
    },
    "tags.gram.kind = 'run' and attributes.status = 'FAILED'": {"gram tiny all s2"},
    "tags.gram.kind = 'evaluation' and metrics.`loss/virology` < 3.3": {
        "gram tiny all s1, evaluated"
    },
    "tags.`gram.search.lr_bs_grid-0123456789ab` = '7'": {"baseline tiny all s0"},
    "tags.gram.kind = 'line' and tags.gram.study = 'scaling' and tags.profile = 'mean'": {
        "gram mean"
    },
}
LINES = [
    Line(f"gram {profile}", {"profile": profile}, {100: {"forget": 0.5}})
    for profile in ("core+virology", "mean")
]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """(client, experiment id) of a database with three runs, one of them failed, and two
    evaluations."""
    store = Store(tmp_path_factory.mktemp("storage")).open_for_writing()
    for seed, method in enumerate(METHODS):
        run = run_config(4, seed)
        directory = store.run(run.run_id)
        tags = {
            "method": method,
            "size": "tiny",
            "seed": str(seed),
            "profile": "all",
            "retained": "virology",
        }
        directory.add_tags(tags)
        train(store.root, run, last=2 if seed == 2 else None)
        if seed == 2:
            directory.start_attempt("test").fail("loss nan at step 3")
            continue
        evaluation = Evaluation(
            View.of(run.run_id, {"virology": 1.0}), "d" * 12, ("core", "virology"), 4
        )
        place = store.evaluation(evaluation.eval_id)
        place.ensure_config(evaluation)
        place.add_tags(tags)
        place.complete({"losses": {"core": 2.5, "virology": 3.4 - 0.15 * seed}}, {"elapsed_s": 0.5})
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    tracker.log_study(
        StudyLog("scaling", {"table.csv": b"content"}, {}, {"preset": "smoke"}, LINES)
    )
    trials = {run_config(4).run_id: {"gram.search.lr_bs_grid-0123456789ab": "7"}}
    tracker.log_study(StudyLog("lr_bs_grid", {}, {}, {}, node_tags=trials))
    client = MlflowClient(tracker.tracking_uri)
    return client, client.get_experiment_by_name("gram").experiment_id


@pytest.mark.parametrize("text", SEARCHES)
def test_the_documented_searches_find_what_they_say(mirrored, text):
    client, experiment = mirrored
    assert {run.info.run_name for run in client.search_runs([experiment], text)} == SEARCHES[text]


def test_norms_of_sets_stay_in_the_storage():
    plain = record(100)
    plain["metrics"][f"{NORM}weights/shared"] = 3.0
    entry = NodeEntry("run", "r1", "a run", State.COMPLETE, {}, {}, config=run_config(100))
    keys = {unescape(metric.key) for metric in curve_metrics([plain], entry, -1)}
    assert keys == {
        "loss/core",
        "loss/virology",
        "train/loss",
        "train/tokens",
        "train/compute_units",
    }
