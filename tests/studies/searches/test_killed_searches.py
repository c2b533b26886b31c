"""Searches under the seeded killer of `tests/studies/test_random_kills.py`, submitted again until
done.

A grid, whose points are known, ends with the tables of the undisturbed grid. MaxEnt's later points
depend on the order in which trials end, so its table is read again from the storage instead.
"""

import random
import sys
from pathlib import Path

import pandas as pd
import pytest

from gram_platform.analysis.trials import STATE
from gram_platform.config import State
from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import submit, written
from tests.studies.test_random_kills import (
    CHECKPOINT_EVERY_S,
    KILLERS,
    RECONNECT_S,
    Killer,
    submit_until_done,
)
from tests.tracking.servers import running_mlflow

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(3600)]

SMOKE = ("--preset", "smoke", "--checkpoint-every", str(CHECKPOINT_EVERY_S))
GRID = (sys.executable, "experiments/lr_bs_grid.py")
MAXENT = (sys.executable, "experiments/maxent_search.py")
NUM_TRIALS = 4
MAXENT_FLAGS = (*SMOKE, "--seeds", "1", "--trials", str(NUM_TRIALS))


def tables(storage: Path, name: str) -> dict[str, bytes]:
    """The bytes of a search's tables, but for the seconds of its trials, and of what studies read
    from it."""
    folder = storage / "studies" / name
    paths = [*folder.glob("*.csv"), *folder.glob("best*.json"), *folder.glob("law*.json")]
    found = {path.name: path.read_bytes() for path in paths}
    trials = pd.read_csv(folder / "trials.csv").drop(columns="elapsed_s")
    return found | {"trials.csv": trials.to_csv().encode()}


def disturb(storage: Path, command: tuple[str, ...], flags: tuple[str, ...], seed: int) -> None:
    """Submits under one kill of each kind until the search ends well."""
    victims, dice = list(KILLERS), random.Random(seed)
    dice.shuffle(victims)
    killer = Killer(victims, dice, longest_wait_s=4.0)
    folder = storage.with_name("server")
    folder.mkdir()
    with running_mlflow(f"sqlite:///{folder}/server.db", folder) as server:
        flags = (*flags, "--tracking-uri", server.uri)
        submissions, output = submit_until_done(storage, flags, killer, server, command)
        print(f"{dict(killer.killed)}, {submissions} submissions")
        assert killer.killed.total() >= 3
        if "MLflow is away" in output:
            submit(storage, flags, command)
        assert_mirrored_once(storage, server.uri)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    storage = tmp_path_factory.mktemp("undisturbed") / "storage"
    submit(storage, SMOKE, GRID)
    return storage


@pytest.mark.parametrize("seed", [30, 31])
def test_a_grid_has_the_tables_of_an_undisturbed_one(undisturbed, tmp_path, monkeypatch, seed):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_S))
    storage = tmp_path / "storage"
    disturb(storage, GRID, SMOKE, seed)
    assert tables(storage, "lr_bs_grid") == tables(undisturbed, "lr_bs_grid")
    assert written(storage).keys() == written(undisturbed).keys()


@pytest.mark.parametrize("seed", [32, 33])
def test_an_optuna_search_loses_no_trial(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_S))
    storage = tmp_path / "storage"
    disturb(storage, MAXENT, MAXENT_FLAGS, seed)
    trials = pd.read_csv(storage / "studies/maxent_search/trials.csv")
    assert (trials[STATE] == State.COMPLETE).all()
    assert set(trials.groupby("search").size()) == {NUM_TRIALS}
    before = tables(storage, "maxent_search")
    submit(storage, (*MAXENT_FLAGS, "--report-only"), MAXENT)
    assert tables(storage, "maxent_search") == before
