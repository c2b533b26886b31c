"""The MaxEnt search: its nodes are the studies' own, its scores are known, and studies take its
best trials."""

import dataclasses
import io
import math
import pickle
import shutil
import tempfile
from pathlib import Path

import optuna
import pandas as pd
import pytest

from gram_platform.analysis.maxent_objective import MaxEntObjective, references_of
from gram_platform.config import State
from gram_platform.config.space import SearchObjective
from gram_platform.engine.trials import Group, OptunaSource, Outcome
from gram_platform.methods import plan
from gram_platform.methods.nodes import method_nodes
from gram_platform.methods.setting import Unlearning
from gram_platform.store import Store
from gram_platform.studies.build import BEST, load_best
from gram_platform.studies.library import scaling
from gram_platform.studies.library.maxent_search import SEARCH
from gram_platform.studies.searches.flags import space_of
from gram_platform.studies.searches.maxent import (
    METRIC,
    PROFILE,
    MaxEntSearch,
    at_edge,
    best_table,
    history_of,
    maxent_at,
    trials_table,
    unlearning_nodes,
)
from tests.methods.test_plans import setting
from tests.refused import refused
from tests.store.training import act_as, require_success
from tests.study_frames import DOMAINS, NUM_STEPS, curves, evaluations, loss_at
from tests.submitted import execute, plan_of, study_plan

CELLS = tuple(
    setting(
        seed=seed,
        profiles=((), ("biology",)),
        num_sequences={"core": 4000, "biology": 250, "chemistry": 250},
    )
    for seed in range(2)
)
POINT = {"profile": "core+biology", "peak_lr": 1.7e-3, "retain_weight": 33.0}
OBJECTIVE = MaxEntObjective(penalty_weight=10.0)
SPACE = space_of((5e-5, 2e-4), (50.0, 600.0))


@pytest.fixture(scope="module")
def problem() -> MaxEntSearch:
    references = references_of(evaluations(), curves(), "small")
    return MaxEntSearch(CELLS, "maxent_search", SPACE, 1, OBJECTIVE, references)


def losses_at(ratios: dict[str, float]) -> dict[str, float]:
    return {d: float(loss_at("small", d, NUM_STEPS * r)) for d, r in ratios.items()}


# ------------------------------------------------------------------------------------------- trials


def test_a_trial_is_the_studies_own_runs_without_the_baseline(problem):
    nodes = problem.nodes(POINT)
    assert [node.kind for node in nodes] == ["run", "evaluation"] * 2
    own = ((("biology",), maxent_at(CELLS[0], POINT)),)
    for cell, (run, evaluation) in zip(CELLS, (nodes[:2], nodes[2:]), strict=True):
        options = dataclasses.replace(cell.options, maxent_profiles=own)
        study = {
            node.id for node in method_nodes("maxent", dataclasses.replace(cell, options=options))
        }
        assert {run.id, evaluation.id} <= study
        assert run.needs == {plan("baseline", cell).runs["all"].run_id}
        assert evaluation.needs == {run.id}
        named = {
            "peak_lr": "0.0017",
            "retain_weight": "33",
            "profile": "core+biology",
            "method": "maxent",
        }
        assert run.names.items() >= named.items()
        assert run.config.objective.forget == ("chemistry",)


def test_what_is_not_searched_is_the_presets(problem):
    changed = dataclasses.replace(
        CELLS[0].options, maxent=Unlearning(num_steps=7, peak_lr=9.0, retain_weight=9.0)
    )
    run, _ = unlearning_nodes(dataclasses.replace(CELLS[0], options=changed), POINT)
    assert run.config.num_steps == 7
    assert (run.config.optimizer.peak_lr, run.config.objective.retain_weight) == (1.7e-3, 33.0)


def test_a_score_is_that_of_the_mean_over_seeds(problem):
    travelled = pickle.loads(pickle.dumps(problem))
    seeds = [
        dict(zip(DOMAINS, ratios, strict=True)) for ratios in ((0.9, 0.8, 0.3), (1.1, 0.9, 0.5))
    ]
    evaluated = [node.id for node in problem.nodes(POINT) if node.kind == "evaluation"]
    results = {i: {"losses": losses_at(ratios)} for i, ratios in zip(evaluated, seeds, strict=True)}
    score = travelled.score(POINT, results)
    expected = {
        "objective": 0.4 + 10 * 0.1,
        "forget": 0.4,
        "penalty": 1.0,
        "core": 1.0,
        "retain": 0.85,
    }
    assert score == pytest.approx(expected, rel=1e-6)
    results[evaluated[0]]["losses"]["chemistry"] = math.inf
    with refused("ratios[chemistry]"):
        travelled.score(POINT, results)


# ---------------------------------------------------------------------------------------- histories


def history(outcomes: list[tuple[str, float]]):
    """The history of a profile whose trials ended as given: (state, objective)."""
    study = optuna.create_study(study_name="s-core")
    group = Group("core", {PROFILE: "core"}, study, len(outcomes))
    source = OptunaSource([group], SPACE, SearchObjective(METRIC, OBJECTIVE.worst))
    for index, (state, value) in enumerate(outcomes):
        proposal = source.next()
        metrics = (
            {METRIC: value, "forget": value, "penalty": 0.0, "core": 1.0}
            if state == State.COMPLETE
            else {}
        )
        what = {"metrics": metrics, "runs": (f"run{index}",), "elapsed_s": 1.0}
        source.tell(proposal, Outcome(proposal.name, proposal.point, state, started=0.0, **what))
    return history_of("core", study, SPACE)


def test_every_trial_is_in_the_table_and_only_complete_ones_are_best():
    ended = history(
        [
            (State.COMPLETE, 0.7),
            (State.DIVERGED, math.nan),
            (State.COMPLETE, 0.4),
            (State.FAILED, math.nan),
        ]
    )
    empty = history_of("core+biology", optuna.create_study(study_name="s-biology"), SPACE)
    histories = {"core": ended, "core+biology": empty}
    trials = trials_table(histories)
    assert list(trials.columns[:6]) == [
        "search",
        "trial",
        "state",
        "profile",
        "peak_lr",
        "retain_weight",
    ]
    assert list(trials["state"]) == [State.COMPLETE, State.DIVERGED, State.COMPLETE, State.FAILED]
    assert trials["objective"].isna().tolist() == [False, True, False, True]
    assert trials["peak_lr"].between(5e-5, 2e-4).all()
    best = best_table(histories, SPACE, {"core": 0.9})
    core, biology = best.to_dict("records")
    assert (core["trial"], core["objective"], core["runs"], core["preset_objective"]) == (
        2,
        0.4,
        "run2",
        0.9,
    )
    assert [core[f"num_{state}"] for state in (State.COMPLETE, State.DIVERGED, State.FAILED)] == [
        2,
        1,
        1,
    ]
    assert pd.isna(biology["trial"])
    assert biology["num_complete"] == 0
    assert "nan" not in best.to_csv(index=False)
    assert len(pd.read_csv(io.StringIO(trials.to_csv(index=False)))) == 4


def test_best_trials_at_an_end_of_their_range_are_named():
    space = space_of((1e-4, 1e-2), (10.0, 1000.0))
    assert at_edge(space, {"peak_lr": 1e-3, "retain_weight": 100.0}) == ""
    assert (
        at_edge(space, {"peak_lr": 1.05e-4, "retain_weight": 990.0})
        == "peak_lr low, retain_weight high"
    )
    held = space.with_overrides(("peak_lr=0.001",))
    assert at_edge(held, {"peak_lr": 1e-3, "retain_weight": 10.0}) == "retain_weight low"


# -------------------------------------------------------------------------------------- best trials


def test_studies_read_what_a_search_wrote(tmp_path):
    store = Store(tmp_path).open_for_writing()
    own = Unlearning(num_steps=75, peak_lr=0.0017345678901234567, retain_weight=33.3)
    best = [
        {"retained": retained, "maxent": dataclasses.asdict(own)} for retained in ([], ["lisp"])
    ]
    folder = store.search_dir("abc")
    folder.write_json(BEST, {"data_id": "d", "profiles": best, "missing": []})
    assert load_best(store, "abc", "d") == (((), own), (("lisp",), own))
    with refused("maxent", "abc"):
        load_best(store, "abc", "other")
    for unknown in ("xyz", "", ".."):
        with refused("maxent"):
            load_best(store, unknown, "d")
    folder.write_json(BEST, {"data_id": "d", "profiles": best[:1], "missing": ["core+lisp"]})
    with refused("maxent", "abc"):
        load_best(store, "abc", "d")


# ----------------------------------------------------------------------------------- the experiment


def setup_of(*arguments: str):
    return study_plan(SEARCH, ["--preset", "smoke", *arguments])


def test_the_searchs_id_is_its_question(storage):
    ids = {setup_of(*more).search_id for more in ((), ("--trials", "9"), ("--max-hours", "1"))}
    assert len(ids) == 1
    others = [("--seeds", "2"), ("--space", "retain_weight=log:5:50"), ("--retain", "airport")]
    ids |= {setup_of(*more).search_id for more in others}
    kind = setup_of().kind
    heavier = dataclasses.replace(kind, objective=MaxEntObjective(penalty_weight=20.0))
    other = dataclasses.replace(setup_of(), kind=heavier)
    assert len(ids | {other.search_id}) == 5
    assert heavier.best_by.worst > kind.best_by.worst


def test_the_dry_run_has_every_trial(storage):
    setup = setup_of("--trials", "3")
    assert list(setup.kind.profiles) == [
        "core",
        *(f"core+{d}" for d in setup.settings[0].auxiliary),
    ]
    assert len(setup.kind.example(setup)) == 3 * 5 * 2
    study = {node.id for node in method_nodes("baseline", setup.settings[0])}
    assert {node.id for node in setup.kind.prerequisites(setup)} == study


def test_bad_flags_are_refused_before_anything_starts(storage):
    for arguments, field in (
        (["--space", "magic=1:2"], "space"),
        (["--space", "retain_weight=log:5:5000000"], "space.retain_weight"),
        (["--space", "peak_lr=0:1"], "space.peak_lr"),
    ):
        with refused(field):
            plan_of(SEARCH, ["--preset", "smoke", *arguments])
    ranges = SEARCH.presets["smoke"].maxent_search
    several = dataclasses.replace(
        SEARCH, presets={"smoke": dataclasses.replace(scaling.SMOKE, maxent_search=ranges)}
    )
    with refused("sizes"):
        plan_of(several, ["--preset", "smoke"])


def test_a_database_that_may_not_be_written_is_named_before_anything_starts():
    folder = Path(tempfile.mkdtemp(prefix="gram-rights-", dir="/tmp"))
    folder.chmod(0o777)
    database = folder / "optuna.db"
    database.touch(0o444)
    words = ["--preset", "smoke", "--storage", str(folder)]
    # What another user may not import is imported.
    plan_of(SEARCH, words)

    def search() -> None:
        act_as(2001)
        with pytest.raises(PermissionError) as raised:
            plan_of(SEARCH, words)
        assert raised.value.filename == str(database)
        plan_of(SEARCH, [*words, "--dry-run"])

    require_success(search)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.ray
def test_smoke_from_end_to_end(storage, ray_cluster, capsys):
    arguments = ["--preset", "smoke", "--retain", "airport", "--trials", "1"]
    assert execute(SEARCH, arguments) == 0
    setup = setup_of(*arguments[2:])
    search_id = setup.search_id
    folder = storage / "studies" / "maxent_search"
    trials = pd.read_csv(folder / "trials.csv")
    assert list(trials["profile"]) == ["core", "core+airport"]
    assert (trials["state"] == State.COMPLETE).all()
    assert (trials["objective"] - trials["forget"] - trials["penalty"]).abs().max() < 1e-12
    assert {"table.csv", "report.html", "search.json", "best.json"} <= {
        path.name for path in folder.iterdir()
    }
    own = load_best(Store(storage), search_id, setup.corpora[0].data_id)
    options = dataclasses.replace(setup.settings[0].options, maxent_profiles=own)
    runs = plan("maxent", dataclasses.replace(setup.settings[0], options=options)).runs
    assert [runs[profile].run_id for profile in trials["profile"]] == list(trials["runs"])
    capsys.readouterr()
    assert execute(SEARCH, arguments) == 0
    assert "0 nodes executed" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_csv(folder / "trials.csv"), trials)
