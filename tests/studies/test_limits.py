"""Limits on machine hours, and the ladder that is climbed size after size."""

import json

import pytest

from gram_platform.engine.slots import SlotPool
from gram_platform.methods.nodes import Node
from gram_platform.studies.library.scaling import STUDY
from tests.refused import refused
from tests.submitted import approved, execute, plan_of

pytestmark = pytest.mark.ray

FLAGS = ("--preset", "smoke", "--methods", "baseline", "--seeds", "1")


@pytest.fixture
def started(monkeypatch) -> list[Node]:
    """The nodes that are started, in their order."""
    nodes, submit = [], SlotPool.submit

    def noting(pool, task, placement, avoided):
        reference = submit(pool, task, placement, avoided)
        nodes.extend(task if reference is not None else ())
        return reference

    monkeypatch.setattr(SlotPool, "submit", noting)
    return nodes


def test_a_study_within_its_limits_goes_on_where_it_stopped(ray_cluster, storage, started):
    flags = (*FLAGS, "--sizes", "tiny", "small", "--max-gpus", "1")
    assert execute(STUDY, [*flags, "--max-hours", "1e-9"]) == 3
    assert len(started) == 1  # then its hours are known
    assert execute(STUDY, [*flags, "--max-cost", "1e-9"]) == 3
    assert len(started) == 1  # of both submissions: nothing is left to spend
    assert execute(STUDY, [*flags, "--max-hours", "1"]) == 0
    assert len(started) == len({node.id for node in started}) == 4
    # Nothing is left to start.
    assert execute(STUDY, [*flags, "--max-hours", "1e-9"]) == 0
    began = json.loads((storage / "studies/scaling/devices.json").read_text())
    assert began == {"preset smoke, corpus stories-smoke": "cpu"}
    with refused("device", "cuda"):
        execute(STUDY, [*flags, "--device", "cuda"])


def test_on_a_cluster_of_fixed_size_what_it_has_decides(ray_cluster, storage):
    """Also where the preset plans for GPUs."""
    words = ["--preset", "paper", "--sizes", "50M", "--seeds", "1", "--methods", "baseline"]
    plan = approved(plan_of(STUDY, words))
    assert plan.device == plan.studies[0].machine.name == "cpu"


@pytest.mark.slow
def test_a_ladder_is_climbed_size_after_size(ray_cluster, storage, started):
    assert execute(STUDY, [*FLAGS, "--through", "small"]) == 0
    assert [node.size for node in started] == ["tiny", "tiny", "small", "small"]
