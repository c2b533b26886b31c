"""Limits on machine hours, and the ladder that is climbed size after size."""

import json

import pytest
from gram_platform.studies.run import run_study

from gram_platform.engine.slots import SlotPool
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.studies.build import build_graph
from gram_platform.studies.device import settled
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY
from tests.refused import refused

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
    assert run_study(STUDY, parse(STUDY, [*flags, "--max-hours", "1e-9"])) == 3
    assert len(started) == 1  # then its hours are known
    assert run_study(STUDY, parse(STUDY, [*flags, "--max-cost", "1e-9"])) == 3
    assert len(started) == 1  # of both submissions: nothing is left to spend
    assert run_study(STUDY, parse(STUDY, [*flags, "--max-hours", "1"])) == 0
    assert len(started) == len({node.id for node in started}) == 4
    # Nothing is left to start.
    assert run_study(STUDY, parse(STUDY, [*flags, "--max-hours", "1e-9"])) == 0
    began = json.loads((storage / "studies/scaling/devices.json").read_text())
    assert began == {"preset smoke, corpus stories-smoke": "cpu"}
    with refused("device", "cuda"):
        run_study(STUDY, parse(STUDY, [*flags, "--device", "cuda"]))


def test_on_a_cluster_of_fixed_size_what_it_has_decides(ray_cluster, storage):
    """Also where the preset plans for GPUs."""
    flags = parse(
        STUDY, ["--preset", "paper", "--sizes", "50M", "--seeds", "1", "--methods", "baseline"]
    )
    (graph,) = settled((build_graph(STUDY, flags),), Store(storage))
    assert graph.flags.device == graph.flags.machine == "cpu"


@pytest.mark.slow
def test_a_ladder_is_climbed_size_after_size(ray_cluster, storage, started):
    assert run_study(STUDY, parse(STUDY, [*FLAGS, "--through", "small"])) == 0
    assert [node.size for node in started] == ["tiny", "tiny", "small", "small"]
