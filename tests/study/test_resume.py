"""Submitting is resuming: a finished study does nothing, an interrupted one ends as if nothing had happened."""

import time

import pytest

from tests.study.mirrored import assert_mirrored_once
from tests.study.processes import attempts, results, submit, written

pytestmark = pytest.mark.ray


def test_the_mirror_has_every_node_once(finished_study):
    assert len(results(finished_study)) == 12
    assert_mirrored_once(finished_study)


def test_submitting_again_trains_nothing_and_writes_the_same_table(finished_copy):
    table = finished_copy / "studies/scaling/table.csv"
    before = (written(finished_copy), attempts(finished_copy), table.read_bytes())
    started = time.monotonic()
    output = submit(finished_copy)
    elapsed_s = time.monotonic() - started
    assert (written(finished_copy), attempts(finished_copy), table.read_bytes()) == before
    assert "12 of 12 nodes done: 0 now" in output
    assert elapsed_s < 30
    uri = f"sqlite:///{finished_copy}/mlflow.db"
    assert_mirrored_once(finished_copy, uri)
