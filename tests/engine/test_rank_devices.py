"""Errors of devices under Ray Train: a group is started again, and not on a machine whose device
does not work.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import ray.train

from gram_platform.config import RunConfig
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.devices import DeviceError, ProbeReport, is_device_error
from gram_platform.engine.dispatch import _raise_for_device, _raise_permanent
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.engine.trials import PointList
from gram_platform.methods import plan
from gram_platform.methods.nodes import Node
from tests.engine.conftest import TWO_RANKS, elsewhere
from tests.engine.test_broken_devices import events, machines, plan_for
from tests.engine.test_drained import in_own_process
from tests.engine.test_node import result_bytes
from tests.engine.test_ranks import create, train
from tests.executed import run_graph
from tests.ranks import run_ranks
from tests.studies.processes import num_trained_twice
from tests.studies.searches.planted import Heard

ILLEGAL = "CUDA error: an illegal memory access was encountered"
TAGS = {"method": "gram", "size": "tiny", "seed": "0"}


def device_error(failure: str) -> DeviceError:
    return DeviceError(ILLEGAL, ProbeReport("m1", "host", "10.0.0.1", "cuda:1 0,1", failure))


def test_a_failed_probe_leaves_the_group_and_a_passed_one_does_not(execution, setting):
    run = plan("baseline", setting).runs["all"]
    directory = execution.store().run(run.run_id)
    directory.ensure_config(run)
    directory.start_attempt("rank 0").release()
    consequence, passed, failed = (
        RuntimeError("Connection closed by peer"),
        device_error(""),
        device_error("no answer"),
    )
    _raise_for_device([consequence, passed, None])
    _raise_permanent([consequence, passed], directory)
    with pytest.raises(DeviceError) as found:
        _raise_for_device([consequence, passed, failed])
    assert found.value.probe.machine == "m1"
    assert directory.failure() is None
    # Four crashes are a failure.
    assert not is_device_error(ray.train.WorkerGroupError(ILLEGAL, {0: passed}))


@dataclass(frozen=True)
class OneRun:
    """The problem of a search whose points are one run."""

    run: RunConfig

    def nodes(self, point):
        return [Node.of(self.run, TAGS)]

    def score(self, point, results):
        return {"steps": results[self.run.run_id]["num_steps"]}


def ranks_beside_a_broken_machine(
    execution: Execution, others: Execution, run: RunConfig, folder: Path
) -> None:
    with machines(folder, good=2, broken=1) as names:
        for where in (execution, others):
            plan_for(folder, errors=[[run.run_id, 3, "device", 1]])
            reports, outcomes = [], []
            if where is execution:
                cordon, placements = Cordon(Resources(), reports.append), {run.run_id: TWO_RANKS}
                assert not run_graph(
                    [Node.of(run, TAGS)], where, Resources(), placements, cordon=cordon
                ).failed
                assert [report.machine for report in reports] == [names["broken0"].node_id], reports
            else:
                source, tuning = PointList([("a", {})]), Tuning("planted")
                watch, cordon = Heard(outcomes), Cordon(Resources())
                place = lambda node: TWO_RANKS
                run_trials(source, OneRun(run), where, cordon, tuning, watch, place)
                assert [outcome.state for outcome in outcomes] == ["complete"], outcomes
            happened = events(folder)
            assert sum(event["event"] == "device" for event in happened) == 1
            assert {event["machine"] for event in happened} == {"good0", "good1"}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_ranks_go_on_after_an_error_of_a_device_beside_a_broken_machine(
    execution, setting, tmp_path
):
    """In a study and in a search: as two ranks that nothing disturbs.

    The machine for both ranks is broken.
    """
    run = plan("gram", setting).runs["all"]
    two = execution.with_placement(TWO_RANKS)
    straight, others = (elsewhere(two, tmp_path, name) for name in ("straight", "others"))
    create(straight, run)
    run_ranks(2, train, run, straight)
    in_own_process(ranks_beside_a_broken_machine, two, others, run, tmp_path / "pretended")
    for where in (two, others):
        assert result_bytes(where, run.run_id) == result_bytes(straight, run.run_id)
        assert num_trained_twice(Path(where.storage)) == 0
