"""Studies that begin with a MaxEnt search: one submission runs both, a killed one goes on, nothing
is trained twice."""

import re
import sys
from collections import Counter
from dataclasses import replace

import optuna
import pytest

from gram_platform.methods import plan
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.results.record import load_record
from gram_platform.store import Store
from gram_platform.studies import campaign
from gram_platform.studies.build import BEST, load_best
from gram_platform.studies.library import (
    aux_scaling,
    dual_use,
    partial_labels,
    samples,
    stories,
    titration,
    token_localization,
)
from gram_platform.studies.library.maxent_search import SEARCH
from tests.refused import refused
from tests.studies.processes import Submission, attempts, num_trained_twice, submit, written
from tests.studies.searches.searched import STUDY
from tests.submitted import execute, execute_campaign, flags_of, parse, plan_of, study_plan

COMMAND = (sys.executable, "-m", "tests.studies.searches.searched")
SHORT = ("--retain", "airport")
NUM_TRIALS = 4  # 2 of each of 2 profiles
# The search's baseline and trials; then the baseline and the MaxEnt runs of seed 1.
NUM_RUNS = 1 + NUM_TRIALS + 3


def find_search(study, storage, **given):
    plan = plan_of(study, flags_of(study, storage=str(storage), **given))
    return campaign.find_search(plan, plan.studies[0])


def nodes_of(study, storage, **given) -> list[Node]:
    return study_plan(study, flags_of(study, storage=str(storage), **given)).nodes


def dry(study, storage, capsys, **given) -> str:
    assert execute(study, flags_of(study, storage=str(storage), dry_run=True, **given)) == 0
    return capsys.readouterr().out


# ----------------------------------------------------------------------------- which search, if any


@pytest.mark.parametrize(
    ("study", "preset"), [(stories.STUDY, "paper"), (dual_use.STUDY, "dual_use")]
)
def test_the_search_is_the_experiments_own_and_starts_from_the_studys_baseline(
    tmp_path, study, preset
):
    needed = find_search(study, tmp_path, preset="paper")
    own = parse(SEARCH, ["--preset", preset, "--storage", str(tmp_path)])
    assert needed.search_id == study_plan(SEARCH, own).search_id
    assert [setting.seed for setting in needed.settings] == [0]
    nodes = {node.id for node in nodes_of(study, tmp_path, preset="paper")}
    assert {node.id for node in needed.kind.prerequisites(needed)} <= nodes


def test_studies_share_a_search_where_they_share_the_runs(tmp_path):
    ids = {
        study.name: find_search(study, tmp_path, preset="paper").search_id
        for study in (stories.STUDY, samples.STUDY, dual_use.STUDY, token_localization.STUDY)
    }
    assert ids["stories"] == ids["samples"] != ids["dual_use"] == ids["token_localization"]


def test_no_search_where_none_is_needed(tmp_path):
    for study in (stories.STUDY, dual_use.STUDY, titration.STUDY):
        for preset in ("smoke", "demo"):
            assert find_search(study, tmp_path, preset=preset, methods=("maxent",)) is None
    own = {"preset": "paper", "methods": ("gram",)}
    assert find_search(dual_use.STUDY, tmp_path, **own) is None
    plan = plan_of(dual_use.STUDY, flags_of(dual_use.STUDY, storage=str(tmp_path), preset="paper"))
    given = replace(plan.studies[0], sources={"maxent": "abc"})
    assert campaign.find_search(plan, given) is None
    assert find_search(titration.STUDY, tmp_path, preset="paper") is None
    for study in (aux_scaling.STUDY, partial_labels.STUDY):  # other data than the search would see
        assert study.presets["paper"].maxent_search is None


def test_the_search_follows_the_flags_of_the_study(tmp_path):
    known = {find_search(STUDY, tmp_path).search_id}
    other_seeds = find_search(STUDY, tmp_path, seeds=3)
    assert other_seeds.search_id in known
    assert other_seeds.choice.seeds == 1
    for given in (
        {"retain": ("airport",)},
        {"corpus": "stories"},
        {"law": "paper", "trust_law": True},
    ):
        needed = find_search(STUDY, tmp_path, **given)
        assert needed.search_id not in known
        known.add(needed.search_id)
        own = study_plan(STUDY, flags_of(STUDY, storage=str(tmp_path), **given))
        baselines = {node.id for node in method_nodes("baseline", own.settings[0])}
        assert {node.id for node in needed.kind.prerequisites(needed)} == baselines


# ----------------------------------------------------------------------------------------- dry runs


def test_the_dry_run_has_the_search_before_the_study(tmp_path, capsys):
    text = dry(dual_use.STUDY, tmp_path / "s", capsys, preset="paper")
    assert text.index("maxent_search_dual_use, preset paper") < text.index(
        "study dual_use, preset paper"
    )
    assert not (tmp_path / "s").exists()


def test_the_dry_run_of_all_has_each_search_once(tmp_path, capsys):
    words = ["--preset", "paper", "--storage", str(tmp_path / "s"), "--dry-run"]
    assert execute_campaign((stories.STUDY, samples.STUDY), (), words) == 0
    text = capsys.readouterr().out
    assert text.count("study maxent_search, preset paper") == 1
    assert not (tmp_path / "s").exists()


def test_bad_input_of_the_study_is_refused_before_its_search(tmp_path):
    # More than the corpus has.
    size = replace(STUDY.presets["smoke"].sizes["tiny"], core_tokens=10**9)
    study = replace(STUDY, presets={"smoke": replace(STUDY.presets["smoke"], sizes={"tiny": size})})
    with refused("corpus"):
        execute(study, flags_of(study, storage=str(tmp_path / "s")))
    assert not (tmp_path / "s" / "runs").exists()
    assert not (tmp_path / "s" / "searches").exists()


def test_a_search_is_complete_with_all_trials_of_every_profile(tmp_path):
    needed = find_search(STUDY, tmp_path)
    assert needed.kind.target == 2
    assert not needed.kind.is_complete(needed)
    folder = needed.folder(Store(tmp_path).open_for_writing())
    for content, expected in (
        ({"missing": [], "num_trials": {"core": 2, "core+lisp": 1}}, False),
        # All of them diverged.
        ({"missing": ["core+lisp"], "num_trials": {"core": 2, "core+lisp": 2}}, False),
        ({"missing": [], "num_trials": {"core": 2, "core+lisp": 3}}, True),
    ):
        folder.write_json(BEST, content)
        assert needed.kind.is_complete(needed) == expected


# ------------------------------------------------------------------------------------------ running


def require_whole(storage) -> None:
    """Every trial once, every run once, and MaxEnt's runs of the study with the best trials'
    parameters."""
    needed = find_search(STUDY, storage, retain=("airport",))
    url = f"sqlite:///{storage}/optuna.db"
    studies = [
        optuna.load_study(study_name=name, storage=url) for name in optuna.get_all_study_names(url)
    ]
    trials = [trial for study in studies for trial in study.get_trials()]
    assert Counter(trial.state.name for trial in trials) == {"COMPLETE": NUM_TRIALS}
    assert len(attempts(storage)) == NUM_RUNS
    assert len(Store(storage).list_searches()) == 1
    record = load_record(Store(storage), STUDY.name)
    assert record.params["maxent"] == needed.search_id
    own = load_best(Store(storage), needed.search_id, needed.corpora[0].data_id)
    assert {profile for profile, _ in own} == {(), ("airport",)}
    setting = needed.settings[0]
    best = plan(
        "maxent", replace(setting, options=replace(setting.options, maxent_profiles=own))
    ).runs
    tried = {run_id for trial in trials for run_id in trial.user_attrs["runs"]}
    assert {best["core"].run_id, best["core+airport"].run_id} <= tried & record.ids
    assert f"search {needed.search_id}" in " ".join(record.facts)


@pytest.mark.ray
@pytest.mark.slow
def test_one_submission_of_all_runs_the_search_then_the_study_and_the_next_finds_both(
    ray_cluster, tmp_path, capsys
):
    storage = tmp_path / "storage"
    words = ["--storage", str(storage), "--preset", "smoke", "--retain", "airport"]
    again = replace(
        SEARCH,
        presets={"smoke": replace(STUDY.presets["smoke"], num_seeds=1)},
        default_preset="smoke",
    )
    assert execute_campaign((STUDY,), (again,), words) == 0
    text = capsys.readouterr().out
    assert text.count("trials now") == 1  # the search that the study began with is not run after it
    require_whole(storage)
    assert all(len(tries) == 1 for tries in attempts(storage).values())

    before = written(storage)
    assert execute(STUDY, flags_of(STUDY, storage=str(storage), retain=("airport",))) == 0
    text = capsys.readouterr().out
    assert "trials now" not in text
    assert "0 now" in text
    assert written(storage) == before
    assert "6 runs, 6 done;" in dry(STUDY, storage, capsys, retain=("airport",))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_in_the_search_and_in_the_study_it_goes_on(tmp_path):
    storage, finished = tmp_path / "storage", []

    def kill_when(condition, what: str) -> None:
        with Submission(storage, SHORT, COMMAND) as submission:
            submission.wait_for(condition, what)
            submission.kill_driver()
        finished.append((written(storage), attempts(storage)))

    kill_when(lambda: len(written(storage)) >= 4, "trials")
    assert not (storage / "studies" / STUDY.name).exists()
    searched = 2 * (1 + NUM_TRIALS)  # results: of runs and evaluations
    kill_when(lambda: len(written(storage)) > searched, "a run after the search")
    assert (storage / "studies" / STUDY.name / "study.json").exists()
    assert "which is complete" in submit(storage, SHORT, COMMAND)
    require_whole(storage)
    assert num_trained_twice(storage) == 0
    for results, tried in finished:
        assert results.items() <= written(storage).items()
        done = [name.split("/")[1] for name in results if name.startswith("runs/")]
        assert {i: tried[i] for i in done} == {i: attempts(storage)[i] for i in done}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_waits_for_a_search_that_a_limit_has_ended(tmp_path):
    storage = tmp_path / "storage"
    with Submission(storage, (*SHORT, "--max-hours", "0.00001"), COMMAND) as submission:
        assert submission.finish() == 3
        assert re.search("searched waits for .*maxent_search", submission.output)
    assert not (storage / "studies" / STUDY.name).exists()
    submit(storage, SHORT, COMMAND)
    require_whole(storage)
