"""Spaces, proposals and ends of trials, without Ray."""

import pytest

from gram_platform.config import State
from gram_platform.config.space import Parameter, SearchObjective, Space
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.trials import (
    Group,
    OptunaSource,
    Outcome,
    PointList,
    execute_trial,
    open_study,
)
from gram_platform.studies.flags import Flags
from gram_platform.studies.library import lr_bs_grid, maxent_search
from gram_platform.studies.searches.definition import make_search_plan, optuna_place
from gram_platform.studies.searches.flags import GridFlags, OptunaFlags
from gram_platform.studies.searches.optuna_studies import open_storage
from tests.refused import refused

OBJECTIVE = SearchObjective("loss", worst=9.0)
SPACE = Space((Parameter("lr", 1e-4, 1e-2, log=True), Parameter("width", 8, 64)))


# ------------------------------------------------------------------------------------------- spaces


def test_a_range_is_replaced_held_or_refused():
    assert SPACE.with_overrides(["lr=log:1e-3:2e-3"]).parameters[0] == Parameter(
        "lr", 1e-3, 2e-3, log=True
    )
    assert SPACE.with_overrides(["lr=0:1"]).parameters[0] == Parameter("lr", 0.0, 1.0)
    held = SPACE.with_overrides(["width=16"]).parameters[1]
    assert (held.low, held.high) == (16, 16)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("lr=log:0:2", "space.lr"),
        ("lr=2:1", "space.lr"),
        ("lr=high", "space"),
        ("depth=1:2", "space"),
    ],
)
def test_bad_ranges_are_refused_by_name(text, field):
    with refused(field):
        SPACE.with_overrides([text])


def test_a_space_is_not_empty_and_stays_within_its_limits():
    with refused("space"):
        Space(())
    with pytest.raises(ValueError):
        Space((Parameter("p", 0.0, 1.5),), limits=(Parameter("p", 0.0, 1.0),))


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (GridFlags(lrs=("0.001,0",)), "lrs"),
        (GridFlags(batches=("16", "many")), "batches"),
        (GridFlags(batches=("16", "16")), "batches"),
        (GridFlags(lrs=(" , ",)), "lrs"),
        (GridFlags(window=-0.1), "window"),
        (GridFlags(max_extensions=-2), "max_extensions"),
        (OptunaFlags(trials=-1), "trials"),
        (GridFlags(max_concurrent=-1), "max_concurrent"),
    ],
)
def test_bad_flags_are_refused_by_name(flags, field, storage):
    search = lr_bs_grid.SEARCH if isinstance(flags, GridFlags) else maxent_search.SEARCH
    with refused(field):
        make_search_plan(search, Flags(flags))


@pytest.mark.parametrize(("uri", "storage"), [("optuna.db", "/s"), ("", "memory://s")])
def test_a_place_that_holds_no_database_of_optuna_is_refused(uri, storage):
    with refused("optuna_uri"):
        optuna_place(uri, storage)


# ---------------------------------------------------------------------------------------- proposals


@pytest.fixture
def database(tmp_path):
    return open_storage(f"sqlite:///{tmp_path}/optuna.db")


def source_of(database, num_trials=3, groups=("a",)) -> OptunaSource:
    studies = [
        Group(g, {"group": g}, open_study(database, g, "loss"), num_trials, database)
        for g in groups
    ]
    return OptunaSource(studies, SPACE, OBJECTIVE)


def ended(proposal, state=State.COMPLETE, loss=1.0) -> Outcome:
    metrics = {"loss": loss} if state == State.COMPLETE else {}
    return Outcome(
        proposal.name, proposal.point, state, 0.0, 2.0, 1.0, 1.0, metrics, ("n",), ("r",), "because"
    )


def test_proposals_lie_in_the_space_and_come_to_an_end(database):
    source = source_of(database)
    proposals = [source.next() for _ in range(3)]
    assert source.next() is None
    assert [p.name for p in proposals] == ["a 0", "a 1", "a 2"]
    for proposal in proposals:
        assert proposal.point["group"] == "a"
        assert 1e-4 <= proposal.point["lr"] <= 1e-2
        assert 8 <= proposal.point["width"] <= 64


def test_groups_take_turns(database):
    source = source_of(database, num_trials=2, groups=("a", "b"))
    assert [source.next().name for _ in range(4)] == ["a 0", "b 0", "a 1", "b 1"]


def test_every_end_reaches_optuna_so_that_nothing_stays_running(database):
    source = source_of(database)
    for state in (State.COMPLETE, State.DIVERGED, State.FAILED):
        proposal = source.next()
        source.tell(proposal, ended(proposal, state))
    complete, diverged, failed = source.groups[0].study.get_trials()
    assert (complete.state.name, complete.value, complete.user_attrs["state"]) == (
        "COMPLETE",
        1.0,
        "complete",
    )
    assert (diverged.state.name, diverged.value, diverged.user_attrs["state"]) == (
        "COMPLETE",
        9.0,
        "diverged",
    )
    assert (failed.state.name, failed.user_attrs["state"], failed.user_attrs["message"]) == (
        "FAIL",
        State.FAILED,
        "because",
    )


def test_what_a_dead_driver_left_running_is_the_same_trial_again(database, tmp_path):
    first = source_of(database)
    done, left = first.next(), first.next()
    first.tell(done, ended(done))
    again = source_of(open_storage(f"sqlite:///{tmp_path}/optuna.db"))
    assert again.num_left == 2
    resumed = again.next()
    assert (resumed.name, resumed.point) == (left.name, left.point)
    new = again.next()
    assert again.next() is None
    for proposal in (resumed, new):
        again.tell(proposal, ended(proposal))
    trials = again.groups[0].study.get_trials()
    assert [t.state.name for t in trials] == ["COMPLETE"] * 3
    assert len({t.params["lr"] for t in trials}) == 3


def test_a_trial_that_two_drivers_tell_of_ends_once(database):
    """The first was suspended, and wakes up when the second has resumed what it left."""
    first = source_of(database)
    proposal = first.next()
    second = source_of(database)
    resumed = second.next()
    for source, own in ((first, proposal), (second, resumed)):
        source.tell(own, ended(own))
    assert [(t.state.name, t.value) for t in first.groups[0].study.get_trials()] == [
        ("COMPLETE", 1.0)
    ]


def test_a_trial_that_died_before_its_parameters_were_chosen_gets_them(database):
    open_study(database, "a", "loss").ask()
    proposal = source_of(database).next()
    assert proposal.name == "a 0"
    assert set(proposal.point) == {"group", "lr", "width"}


def test_a_finished_search_proposes_nothing_and_a_higher_target_goes_on(database):
    source = source_of(database)
    while (proposal := source.next()) is not None:
        source.tell(proposal, ended(proposal))
    assert source_of(database).next() is None
    assert source_of(database, num_trials=4).next().name == "a 3"


def test_a_second_driver_does_not_draw_the_first_ones_random_points_again(database):
    points = []
    for _ in range(3):
        source = source_of(database, num_trials=6)
        for _ in range(2):
            proposal = source.next()
            source.tell(proposal, ended(proposal))
            points.append(proposal.point["lr"])
    assert len(set(points)) == 6


def test_a_list_of_points_is_proposed_once_each():
    source = PointList([("one", {"x": 1}), ("two", {"x": 2})])
    assert source.num_left == 2
    assert [source.next().name, source.next().name, source.next()] == ["one", "two", None]
    assert source.num_left == 0


def test_a_database_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "optuna.db").write_text("this is no database")
    with refused("optuna_uri"):
        open_storage(f"sqlite:///{tmp_path}/optuna.db")


# ------------------------------------------------------------------------------------------- trials


def test_a_storage_that_cannot_be_opened_is_what_a_trial_says(tmp_path):
    """Raised beyond the outcome it counted as a death of the trial's process, and it was tried four
    times."""
    (tmp_path / "file").touch()
    outcome = execute_trial("a", {}, None, Execution(str(tmp_path / "file")), Resources())
    assert outcome.state == State.FAILED
    assert outcome.message.startswith("storage=")
