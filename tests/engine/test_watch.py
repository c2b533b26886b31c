"""A trial's watch: what it reports."""

import pytest

from gram_platform.engine.trials import TrialWatch


def test_progress_is_over_all_runs_of_a_trial(run):
    seen: list[dict] = []
    watch = TrialWatch(seen.append)
    watch.num_runs = 2
    watch.begin(run)
    watch.see(run.num_steps, {"core": 2.0})
    watch.end()
    watch.begin(run)
    watch.see(run.num_steps // 2, {"core": 1.5})
    assert [numbers["progress"] for numbers in seen] == [0.5, pytest.approx(0.75, abs=1 / run.num_steps)]
    assert seen[0]["validation/loss/core"] == 2.0
