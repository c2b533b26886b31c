"""A PostgreSQL server for the tests of this folder, and databases with MLflow's tables in it."""

import itertools

import pytest

from gram_platform.tracking import Tracker
from tests.store.training import in_process
from tests.tracking.servers import running_postgres


@pytest.fixture(scope="session")
def postgres():
    with running_postgres() as server:
        server.execute("CREATE DATABASE empty")
        # A template has no connections.
        process = in_process(lambda: Tracker(server.uri("empty")).prepare_database())
        process.join()
        assert process.exitcode == 0
        yield server


@pytest.fixture(scope="session")
def new_database(postgres):
    """A function that makes a database of MLflow, with its tables, and returns its name."""
    numbers = itertools.count()

    def make() -> str:
        name = f"mlflow_{next(numbers)}"
        postgres.execute(f"CREATE DATABASE {name} TEMPLATE empty")
        return name

    return make
