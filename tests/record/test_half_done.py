"""Half-done work of an earlier commit is continued: nothing that was done is executed again, and
each search keeps its history."""

import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from optuna.trial import TrialState

from gram_platform.analysis.trials import SEARCH, STATE, TRIAL
from gram_platform.config import State
from gram_platform.config.endings import DONE, TIME_IS_UP
from gram_platform.store import Store
from gram_platform.studies.searches.optuna_studies import open_storage
from gram_platform.tracking.database import database_uri
from tests.record.half_done import CAMPAIGN, GRID, MAXENT, STUDY, SWEEP, HalfDone
from tests.studies.processes import attempts, segments_written, submit, written


def assert_continued(work: HalfDone, storage: Path, flags: tuple[str, ...]) -> None:
    """Continues half-done work to its end, and submits it once more."""
    results, before = written(storage), attempts(storage)
    segments = set(segments_written(storage, work.killed_run))
    submit(storage, flags, work.command, DONE)

    after, ended = attempts(storage), written(storage)
    assert {name: ended[name] for name in results} == results
    assert {run_id for run_id in before if after[run_id] != before[run_id]} == {work.killed_run}
    assert len(after[work.killed_run]) == 2
    new = sorted(set(segments_written(storage, work.killed_run)) - segments)
    assert new[0][0] == work.saved_step + 1
    assert new[-1][1] == Store(storage).run(work.killed_run).result()["num_steps"]
    for name in work.tables:
        assert (storage / "studies" / name / "table.csv").stat().st_size

    submit(storage, flags, work.command, DONE)
    assert (written(storage), attempts(storage)) == (ended, after)


def trials_of(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={TRIAL: "str"}).set_index([SEARCH, TRIAL])


def reported(work: HalfDone, folder: Path) -> pd.DataFrame:
    """The trials that the earlier commit saw in the storage."""
    return trials_of(folder / "reported" / f"{work.name}.csv")


def test_its_study_is_continued(tmp_path):
    storage, flags = STUDY.unpack(tmp_path)
    before = submissions(storage)
    assert_continued(STUDY, storage, flags)
    assert len(before) == 2
    assert submissions(storage)[:2] == before
    assert len(submissions(storage)) == 3


def submissions(storage: Path) -> list[dict]:
    return json.loads((storage / "studies/scaling/study.json").read_text())["submissions"]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("work", [STUDY, MAXENT], ids=lambda work: work.name)
def test_a_limit_ends_it_without_starting_a_node(tmp_path, work):
    storage, flags = work.unpack(tmp_path)
    before = written(storage), attempts(storage)
    submit(storage, (*flags, "--max-hours", "1e-9"), work.command, TIME_IS_UP)
    assert (written(storage), attempts(storage)) == before


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_its_campaign_is_continued(tmp_path):
    assert_continued(CAMPAIGN, *CAMPAIGN.unpack(tmp_path))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("work", "num_trials"), [(GRID, 9), (SWEEP, 4)], ids=["grid", "sweep"])
def test_its_points_are_continued(tmp_path, work, num_trials):
    storage, flags = work.unpack(tmp_path)
    assert_continued(work, storage, flags)
    trials = trials_of(storage / "studies" / work.experiment / "trials.csv")
    assert len(trials) == num_trials
    assert (trials[STATE] == State.COMPLETE).all()
    before = reported(work, tmp_path)
    complete = before[before[STATE] == State.COMPLETE]
    assert 0 < len(complete) < num_trials
    pd.testing.assert_frame_equal(trials.loc[complete.index], complete, check_dtype=False)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_its_optuna_history_is_continued(tmp_path):
    """Trials that had ended keep number, point and value; one that was running keeps its point."""
    storage, flags = MAXENT.unpack(tmp_path)
    before = history(storage)
    submit(storage, (*flags, "--report-only"), MAXENT.command, DONE)
    trials = trials_of(storage / "studies/maxent_search/trials.csv")
    pd.testing.assert_frame_equal(trials, reported(MAXENT, tmp_path))
    assert history(storage) == before

    assert_continued(MAXENT, storage, flags)
    after = history(storage)
    assert {state for state, *_ in after.values()} == {TrialState.COMPLETE}
    assert Counter(study for study, _ in after) == {study: 3 for study, _ in before}
    for key, (state, point, value) in before.items():
        assert after[key][1] == point
        assert state == TrialState.RUNNING or after[key][2] == value
    assert Counter(state for state, *_ in before.values()) == {
        TrialState.COMPLETE: 2,
        TrialState.RUNNING: 1,
    }


def history(storage: Path) -> dict[tuple[str, int], tuple]:
    """{(Optuna study, number of a trial): its state, point and value}."""
    database = open_storage(database_uri(storage / "optuna.db"))
    try:
        return {
            (study.study_name, trial.number): (trial.state, trial.params, trial.value)
            for study in database.get_all_studies()
            for trial in database.get_all_trials(study._study_id)
        }
    finally:
        database.engine.dispose()
