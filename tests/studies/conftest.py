"""A small study that ran to its end without a disturbance, which the tests of this folder compare with."""

import shutil
from pathlib import Path

import pytest

from tests.studies.processes import submit


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory) -> Path:
    """The storage of a finished study, never to be written: 5 runs of one size and seed, 7 evaluations. 20 s."""
    storage = tmp_path_factory.mktemp("finished") / "storage"
    submit(storage)
    return storage


@pytest.fixture
def finished_copy(finished_study, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(finished_study, tmp_path / "storage")


@pytest.fixture
def prepared_storage(finished_study, tmp_path) -> Path:
    """A storage that has the data and nothing else."""
    shutil.copytree(finished_study / "data", tmp_path / "storage" / "data")
    return tmp_path / "storage"
