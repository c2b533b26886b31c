"""Submitting is resuming: a finished study does nothing, an interrupted one ends as if nothing had happened."""

import resource

import pytest

from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import attempts, results, submit, written

pytestmark = pytest.mark.ray


def test_the_mirror_has_every_node_once(finished_study):
    assert len(results(finished_study)) == 12
    assert_mirrored_once(finished_study)


def test_submitting_again_trains_nothing_and_writes_the_same_table(finished_copy):
    table = finished_copy / "studies/scaling/table.csv"
    before = (written(finished_copy), attempts(finished_copy), table.read_bytes())
    started_s = children_s()
    output = submit(finished_copy)
    used_s = children_s() - started_s
    assert (written(finished_copy), attempts(finished_copy), table.read_bytes()) == before
    assert "12 of 12 nodes done: 0 now" in output
    assert used_s < 30
    uri = f"sqlite:///{finished_copy}/mlflow.db"
    assert_mirrored_once(finished_copy, uri)


def children_s() -> float:
    """Processor time of all children that have ended: it does not grow with what else the machine does."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
