"""Checks best trials, and the frame of what Optuna remembers."""

import numpy as np
import optuna
import pandas as pd
import pytest

from gram_platform.analysis.trials import best_lines, best_trial, link_trials, rank_trials
from gram_platform.config.space import TrialColumns
from gram_platform.studies.searches.optuna_studies import trials_frame
from tests.refused import refused

PENALTY = 10.0


def frame(losses, states=None) -> pd.DataFrame:
    columns = pd.DataFrame({"loss": losses}, dtype=float)
    states = states or ["complete"] * len(columns)
    return columns.assign(
        search="s", trial=range(len(columns)), state=states, runs="", elapsed_s=1.0
    )


def random_trials(num: int = 40) -> pd.DataFrame:
    """On a coarse grid, so that there are equals; every seventh trial diverged."""
    losses = np.random.default_rng(0).integers(1, 12, num) / 10.0
    states = ["diverged" if i % 7 == 6 else "complete" for i in range(num)]
    losses[[s == "diverged" for s in states]] = np.nan
    return frame(losses, states)


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """The trials of `random_trials` as the engine leaves them in Optuna."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name="s")
    space = {"p_as": optuna.distributions.FloatDistribution(0.0, 1.0)}
    for row in random_trials().to_dict("records"):
        attrs = {"state": row["state"], "elapsed_s": 2.5}
        if row["state"] == "complete":
            attrs |= {"metrics": {"loss": row["loss"], "forget": 0.5}, "runs": ["a1", "b2"]}
        told = PENALTY if row["state"] == "diverged" else row["loss"]
        study.add_trial(
            optuna.trial.create_trial(
                params={"p_as": 0.5}, distributions=space, value=told, user_attrs=attrs
            )
        )
    failed = {"state": "failed", "message": "a worker died"}
    state = optuna.trial.TrialState.FAIL
    study.add_trial(
        optuna.trial.create_trial(
            state=state, params={"p_as": 0.1}, distributions=space, user_attrs=failed
        )
    )
    study.ask()
    study.enqueue_trial({"p_as": 0.25})
    return study


def test_the_best_trial_is_complete_and_the_earliest_of_equals():
    trials = frame([0.9, 0.5, 0.5, 0.1], ["complete"] * 3 + ["failed"])
    assert best_trial(trials, "loss")["trial"] == 1
    assert best_trial(trials.iloc[::-1], "loss")["trial"] == 1
    assert best_trial(trials.iloc[3:], "loss") is None


@pytest.mark.parametrize("value", [5, None, "x", [[1]], {"core": "x"}, True])
def test_attributes_of_a_trial_of_another_shape_count_as_absent(value):
    """A database of trials is a file of the storage."""
    study = optuna.create_study(direction="minimize")
    study.add_trial(optuna.trial.create_trial(value=1.5))
    names = ("state", "metrics", "runs", "elapsed_s", "rank_s", "progress")
    study.add_trial(optuna.trial.create_trial(value=2.5, user_attrs=dict.fromkeys(names, value)))
    trials = trials_frame(study, "loss")
    assert trials["state"].tolist() == ["complete", "complete"]
    assert trials["loss"].tolist() == [1.5, 2.5]


def test_links_are_of_the_first_run_that_has_a_page():
    trials = frame([1] * 3).assign(runs=["a b", "c", ""])
    assert list(link_trials(trials, {"a": None, "b": "http://x/b"})["url"]) == [
        "http://x/b",
        "",
        "",
    ]


def test_the_frame_has_every_trial_and_no_penalty(study):
    trials = trials_frame(study, "loss")
    names = ["search", "trial", "state", "p_as", "loss", "forget", "runs", "elapsed_s", "started"]
    assert list(trials.columns) == names
    assert list(trials["trial"]) == list(range(43))
    planted = random_trials()
    pd.testing.assert_series_equal(trials["loss"].iloc[:40], planted["loss"])
    assert list(trials["state"].iloc[:40]) == list(planted["state"])
    assert list(trials["state"].iloc[40:]) == ["failed", "running", "waiting"]
    assert trials.loc[0, "runs"] == "a1 b2"
    assert trials.loc[40, "p_as"] == 0.1
    assert trials["loss"].iloc[40:].isna().all()
    assert trials["started"].notna().sum() >= 42


def test_a_study_without_trials_is_an_empty_frame():
    trials = trials_frame(optuna.create_study(), "loss")
    assert trials.empty
    assert "loss" in trials
    assert best_trial(trials, "loss") is None


def test_a_name_is_of_one_column(study):
    with refused("columns"):
        trials_frame(study, "p_as")


def test_an_objective_without_stored_metrics_is_read_from_optuna():
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    trials = trials_frame(study, "loss")
    assert list(trials["loss"]) == list(trials["x"])
    assert list(trials["state"]) == ["complete"] * 3


def test_only_points_with_all_seeds_and_of_one_group_are_compared():
    lines = [
        ("tiny", 0, 0.01, 1024, 2.0, "complete"),
        ("tiny", 1, 0.01, 1024, 3.0, "complete"),
        ("tiny", 0, 0.02, 1024, 1.0, "complete"),
        ("tiny", 1, 0.02, 1024, 9.0, "diverged"),
        ("small", 0, 0.0123456, 8, 0.5, "complete"),
        ("small", 0, 0.02, 8, 0.4, "waiting"),
    ]
    trials = pd.DataFrame(lines, columns=["size", "seed", "lr", "batch", "loss", "state"])
    columns = TrialColumns(("lr", "batch"), ("loss",), ("size",))
    assert rank_trials(trials, columns)["rank"].fillna(0).tolist() == [1, 1, 0, 0, 1, 0]
    assert best_lines(trials, columns) == [
        "best: size tiny: loss 2.5 at lr 0.01, batch 1024",
        "best: size small: loss 0.5 at lr 0.0123, batch 8",
    ]
    highest = TrialColumns(("lr",), ("loss",), ("seed",), is_lowest_best=False)
    assert best_lines(trials, highest)[0] == "best: seed 0: loss 2 at lr 0.01"
