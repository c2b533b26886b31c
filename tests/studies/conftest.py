"""A small study that ran to its end without a disturbance, which the tests of this folder compare
with."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.studies.processes import submit


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory) -> Path:
    """The storage of a finished study, never to be written: 5 runs of one size and seed, 7
    evaluations. 20 s.

    One for all workers of a session: the first that needs it runs the study, the others wait for
    its end.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "finished"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ended").exists():
            submit(folder / "storage")
            (folder / "ended").touch()
    return folder / "storage"


@pytest.fixture
def finished_copy(finished_study, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(finished_study, tmp_path / "storage")


@pytest.fixture
def prepared_storage(finished_study, tmp_path) -> Path:
    """A storage that has the data and nothing else."""
    shutil.copytree(finished_study / "data", tmp_path / "storage" / "data")
    return tmp_path / "storage"
