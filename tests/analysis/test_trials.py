"""Checks best trials, Pareto fronts and hypervolumes against brute force, Monte Carlo and Optuna's figure."""

import itertools
import math
import warnings

import numpy as np
import optuna
import pandas as pd
import pytest

from gram_platform.analysis.trials import (
    best_trial,
    hypervolume,
    hypervolume_history,
    linked,
    pareto_front,
    running_best,
)
from gram_platform.studies.searches.optuna_studies import MIN_TRIALS, importances, trials_frame, why_no_importances

OBJECTIVES = {"core": "max", "retain": "max", "elicited": "min"}
REFERENCE = {"core": 0.0, "retain": 0.0, "elicited": 1.0}
PENALTY = (-10.0, -10.0, 10.0)


def frame(points, states=None) -> pd.DataFrame:
    columns = pd.DataFrame(points, columns=list(OBJECTIVES), dtype=float)
    states = states or ["complete"] * len(columns)
    return columns.assign(search="s", trial=range(len(columns)), state=states, runs="", elapsed_s=1.0)


def random_trials(num: int = 40) -> pd.DataFrame:
    """On a coarse grid, so that there are ties and equals; every seventh trial diverged."""
    points = np.random.default_rng(0).integers(1, 12, (num, 3)) / 10.0
    states = ["diverged" if i % 7 == 6 else "complete" for i in range(num)]
    points[[s == "diverged" for s in states]] = np.nan
    return frame(points, states)


@pytest.fixture(scope="module")
def study() -> optuna.Study:
    """The trials of `random_trials` as the engine leaves them in Optuna."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name="pareto", directions=["maximize", "maximize", "minimize"])
    space = {"p_as": optuna.distributions.FloatDistribution(0.0, 1.0)}
    for row in random_trials().to_dict("records"):
        values = [row[name] for name in OBJECTIVES]
        attrs = {"state": row["state"], "elapsed_s": 2.5}
        if row["state"] == "complete":
            attrs |= {"metrics": dict(zip(OBJECTIVES, values, strict=True)) | {"forget": 0.5}, "runs": ["a1", "b2"]}
        told = PENALTY if row["state"] == "diverged" else values
        study.add_trial(
            optuna.trial.create_trial(params={"p_as": 0.5}, distributions=space, values=told, user_attrs=attrs)
        )
    failed = {"state": "failed", "message": "a worker died"}
    state = optuna.trial.TrialState.FAIL
    study.add_trial(
        optuna.trial.create_trial(state=state, params={"p_as": 0.1}, distributions=space, user_attrs=failed)
    )
    study.ask()
    study.enqueue_trial({"p_as": 0.25})
    return study


# ----------------------------------------------------------------------------------------------------- one metric


def test_the_best_trial_is_complete_and_the_earliest_of_equals():
    trials = frame([(0.5, 0, 0), (0.9, 0, 0), (0.9, 0, 0), (2.0, 0, 0)], ["complete"] * 3 + ["failed"])
    assert best_trial(trials, "core", "max")["trial"] == 1
    assert best_trial(trials.iloc[::-1], "core", "max")["trial"] == 1
    assert best_trial(trials, "core", "min")["trial"] == 0
    assert best_trial(trials.iloc[3:], "core", "max") is None


def test_the_running_best_follows_trial_numbers_over_gaps():
    trials = frame(
        [(9, 0, 0), (3, 0, 0), (5, 0, 0), (math.nan, 0, 0), (2, 0, 0)],
        ["diverged", "complete", "complete", "running", "complete"],
    )
    lowest = running_best(trials.iloc[::-1], "core", "min")
    assert list(lowest.index) == [0, 1, 2, 3, 4]
    assert math.isnan(lowest[0])
    assert list(lowest[1:]) == [3, 3, 3, 2]
    assert list(running_best(trials, "core", "max")[1:]) == [3, 5, 5, 5]


def test_unknown_metrics_and_directions_are_named():
    with pytest.raises(ValueError, match="speed"):
        best_trial(frame([(1, 1, 1)]), "speed", "max")
    with pytest.raises(ValueError, match=r"^direction="):
        running_best(frame([(1, 1, 1)]), "core", "up")
    with pytest.raises(ValueError, match=r"^objectives\[core\]="):
        pareto_front(frame([(1, 1, 1)]), {"core": "sideways"})


# ----------------------------------------------------------------------------------------------------- the front


def test_no_trial_dominates_one_on_the_front():
    trials = random_trials()
    done = trials[trials["state"] == "complete"]
    expected = set(done["trial"])
    for a, b in itertools.permutations(done.to_dict("records"), 2):
        no_worse = b["core"] >= a["core"] and b["retain"] >= a["retain"] and b["elicited"] <= a["elicited"]
        if no_worse and any(b[name] != a[name] for name in OBJECTIVES):
            expected.discard(a["trial"])
    front = pareto_front(trials, OBJECTIVES)
    assert set(trials["trial"][front]) == expected
    assert 3 < len(expected) < len(done)
    assert front.index.equals(trials.index)
    shuffled = trials.sample(frac=1.0, random_state=1)
    assert set(shuffled["trial"][pareto_front(shuffled, OBJECTIVES)]) == expected


def test_the_front_agrees_with_optuna_and_never_holds_a_diverged_trial(study):
    trials = trials_frame(study, tuple(OBJECTIVES))
    front = set(trials["trial"][pareto_front(trials, OBJECTIVES)])
    assert front == {trial.number for trial in study.best_trials}  # the penalty is worse than every measured point
    told = trials.assign(core=trials["core"].fillna(99.0))
    assert not set(told["trial"][pareto_front(told, {"core": "max"})]) & set(told["trial"][told["state"] != "complete"])


@pytest.mark.parametrize("value", [5, None, "x", [[1]], {"core": "x"}, True])
def test_attributes_of_a_trial_of_another_shape_count_as_absent(value):
    """A database of trials is a file of the storage."""
    study = optuna.create_study(direction="minimize")
    study.add_trial(optuna.trial.create_trial(value=1.5))
    names = ("state", "metrics", "runs", "elapsed_s", "rank_s", "progress")
    study.add_trial(optuna.trial.create_trial(value=2.5, user_attrs=dict.fromkeys(names, value)))
    trials = trials_frame(study, ("loss",))
    assert trials["state"].tolist() == ["complete", "complete"]
    assert trials["loss"].tolist() == [1.5, 2.5]
    assert "complete trials" in why_no_importances(study, "loss")


def test_equal_points_are_on_the_front_together():
    assert list(pareto_front(frame([(1, 1, 1), (1, 1, 1), (1, 1, 2)]), OBJECTIVES)) == [True, True, False]


# ------------------------------------------------------------------------------------------------- hypervolume


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
def test_hypervolume_against_monte_carlo(num_objectives):
    rng = np.random.default_rng(num_objectives)
    points = rng.uniform(0.1, 1.2, (12, num_objectives))  # some lie beyond the reference
    samples = rng.uniform(0.0, 1.0, (200_000, num_objectives))
    covered = np.zeros(len(samples), bool)
    for point in points:
        covered |= (samples > point).all(axis=1)
    error = math.sqrt(covered.mean() * (1 - covered.mean()) / len(samples))
    assert hypervolume(points, [1.0] * num_objectives) == pytest.approx(covered.mean(), abs=4 * error)


def test_hypervolume_by_hand():
    assert hypervolume([], [1.0, 1.0]) == 0.0
    assert hypervolume([[0.5, 0.5]], [1.0, 1.0]) == 0.25
    assert hypervolume([[0.5, 0.5], [0.5, 0.5], [0.6, 0.6]], [1.0, 1.0]) == 0.25
    assert hypervolume([[0.0, 0.5], [0.5, 0.0]], [1.0, 1.0]) == 0.75
    assert hypervolume([[0.0, 2.0]], [1.0, 1.0]) == 0.0
    assert hypervolume([[0, 0, 0.5], [0, 0.5, 0], [0.5, 0, 0]], [1.0] * 3) == pytest.approx(1 - 0.125)
    with pytest.raises(ValueError, match=r"^reference="):
        hypervolume([[0.0]], [math.inf])


def test_the_history_is_that_of_optunas_figure(study):
    trials = trials_frame(study, tuple(OBJECTIVES))
    history = hypervolume_history(trials, OBJECTIVES, REFERENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        (line,) = optuna.visualization.plot_hypervolume_history(study, list(REFERENCE.values())).data
    theirs = dict(zip(line.x, line.y, strict=True))  # diverged trials too, which add nothing
    assert list(history["hypervolume"]) == pytest.approx([theirs[number] for number in history["trial"]], rel=1e-9)
    assert set(theirs) - set(history["trial"]) == set(trials["trial"][trials["state"] == "diverged"])
    assert history["hypervolume"].is_monotonic_increasing
    assert history["front_size"].iloc[-1] == pareto_front(trials, OBJECTIVES).sum()


def test_the_history_needs_a_reference_of_the_objectives():
    with pytest.raises(ValueError, match=r"^reference="):
        hypervolume_history(random_trials(), OBJECTIVES, {"core": 0.0})
    assert hypervolume_history(random_trials(0), OBJECTIVES, REFERENCE).empty


def test_links_are_of_the_first_run_that_has_a_page():
    trials = frame([(1, 1, 1)] * 3).assign(runs=["a b", "c", ""])
    assert list(linked(trials, {"a": None, "b": "http://x/b"})["url"]) == ["http://x/b", "", ""]


# ------------------------------------------------------------------------------------------- what Optuna remembers


def test_the_frame_has_every_trial_and_no_penalty(study):
    trials = trials_frame(study, tuple(OBJECTIVES))
    names = ["search", "trial", "state", "p_as", *OBJECTIVES, "forget", "runs", "elapsed_s", "started"]
    assert list(trials.columns) == names
    assert list(trials["trial"]) == list(range(43))
    planted = random_trials()
    pd.testing.assert_frame_equal(trials[list(OBJECTIVES)].iloc[:40], planted[list(OBJECTIVES)])
    assert list(trials["state"].iloc[:40]) == list(planted["state"])
    assert list(trials["state"].iloc[40:]) == ["failed", "running", "waiting"]
    assert trials.loc[0, "runs"] == "a1 b2"
    assert trials.loc[40, "p_as"] == 0.1
    assert trials[list(OBJECTIVES)].iloc[40:].isna().all(axis=None)
    assert trials["started"].notna().sum() >= 42


def test_a_study_without_trials_is_an_empty_frame():
    trials = trials_frame(optuna.create_study(), ("loss",))
    assert trials.empty
    assert "loss" in trials
    assert best_trial(trials, "loss", "min") is None
    assert running_best(trials, "loss", "min").empty


def test_names_must_fit_the_study(study):
    with pytest.raises(ValueError, match=r"^objectives="):
        trials_frame(study, ("core",))
    with pytest.raises(ValueError, match=r"^columns=.*p_as"):
        trials_frame(study, ("core", "retain", "p_as"))


def test_an_objective_without_stored_metrics_is_read_from_optuna():
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    trials = trials_frame(study, ("loss",))
    assert list(trials["loss"]) == list(trials["x"])
    assert list(trials["state"]) == ["complete"] * 3


# ------------------------------------------------------------------------------------------------- importances


def searched(function, num_trials: int) -> optuna.Study:
    """A searched study of a wide logarithmic parameter, a linear, an integer and a categorical one."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

    def objective(trial):
        point = {
            "rate": trial.suggest_float("rate", 1e-5, 1e-1, log=True),
            "share": trial.suggest_float("share", 0.0, 1.0),
            "width": trial.suggest_int("width", 8, 128, log=True),
            "kind": trial.suggest_categorical("kind", ["a", "b"]),
        }
        value = function(point)
        trial.set_user_attr("state", "complete")
        trial.set_user_attr("metrics", {"loss": value})
        return value

    study.optimize(objective, n_trials=num_trials)
    return study


def test_importances_find_the_logarithmic_parameter_that_matters():
    study = searched(lambda p: (math.log10(p["rate"]) + 3.0) ** 2 + 0.3 * p["share"], 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = importances(study, "loss")
    assert next(iter(found)) == "rate"
    assert found["rate"] > 0.5 > 2 * max(share for name, share in found.items() if name != "rate")
    assert set(found) == {"rate", "share", "width", "kind"}
    assert 0.0 < sum(found.values()) <= 1.0 + 1e-9
    assert found == importances(study, "loss")


def test_importances_do_not_follow_penalties():
    study = searched(lambda p: p["share"], MIN_TRIALS)
    before = importances(study, "loss")
    trial = study.ask()
    for name in ("rate", "share"):
        trial.suggest_float(name, *((1e-5, 1e-1) if name == "rate" else (0.0, 1.0)), log=name == "rate")
    trial.suggest_int("width", 8, 128, log=True)
    trial.suggest_categorical("kind", ["a", "b"])
    trial.set_user_attr("state", "diverged")
    study.tell(trial, 1e6)
    assert importances(study, "loss") == before
    assert next(iter(before)) == "share"


def test_no_importances_without_enough_trials_or_any_variance():
    few = searched(lambda p: p["share"], MIN_TRIALS - 1)
    assert importances(few, "loss") == {}
    assert why_no_importances(few, "loss").startswith("9 complete trials")
    flat = searched(lambda p: 1.0, MIN_TRIALS)
    assert importances(flat, "loss") == {}
    assert "same in all" in why_no_importances(flat, "loss")
    assert why_no_importances(flat, "speed").startswith("0 complete trials")
    fixed = optuna.create_study()
    fixed.optimize(lambda trial: trial.suggest_float("x", 1, 1) + trial.number, n_trials=MIN_TRIALS)
    assert "no parameter" in why_no_importances(fixed, "loss")
