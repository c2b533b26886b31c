"""What one node's process does when it is asked to stop, and when memory is short; how the graph
counts crashes.
"""

import dataclasses
import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
from ray.exceptions import LocalRayletDiedError, RayError, WorkerCrashedError

from gram_platform.engine import process, slots
from gram_platform.engine import ray_executor as on_ray
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.executor import execute_node
from gram_platform.engine.life import MAX_CRASHES
from gram_platform.engine.node import RunExecution, execute_run
from gram_platform.engine.process import StopRequest, is_out_of_memory, memory_advice
from gram_platform.methods import plan
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.planner import MACHINES
from gram_platform.planner.ranks import Ranks
from gram_platform.store import LeaseHeld, Store, attempts
from gram_platform.store.attempts import Attempt
from gram_platform.studies.workplace import division_of, placement_of
from tests.engine.conftest import TWO_RANKS
from tests.engine.test_node import Stopped, result_bytes, stop_after, strip_clock
from tests.executed import ray_executor


def in_fork(target, *args) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def test_a_stop_request_leaves_a_checkpoint_and_the_run_continues(
    run, execution, undisturbed, monkeypatch
):
    """SIGTERM commits the step at work, wherever it lies in the interval of a record; the result is
    the same.
    """
    straight, records = undisturbed
    monkeypatch.setattr(attempts, "HEARTBEAT_INTERVAL_S", 0.001)  # every step can be seen
    # Nothing but the request commits.
    seldom = dataclasses.replace(execution, checkpoint_every_s=1e9)
    directory = Store(execution.storage).run(run.run_id)
    steps = [0]
    while len(steps) < 4:
        process = in_fork(execute_run, run, {}, seldom)
        deadline = time.monotonic() + 60
        while (directory.progress() or {}).get("pid") != process.pid or directory.progress()[
            "step"
        ] < steps[-1] + 3:
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGTERM)
        process.join()
        assert process.exitcode == 128 + signal.SIGTERM
        steps.append(directory.read_committed_step())
        assert steps[-1] > steps[-2]
        assert directory.status() == "interrupted"  # the lease is released
    execute_run(run, {}, seldom)
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(directory.records()) == strip_clock(records)


def test_a_checkpoint_that_could_not_be_written_is_an_error_of_a_run_that_shall_stop(
    run, execution, monkeypatch
):
    def refuse(*_) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Attempt, "commit", refuse)
    request = StopRequest(asks_ray=False)
    request.receive()
    with pytest.raises(OSError) as caught:
        execute_run(run, {}, execution, request)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ray_is_asked_again_whether_it_drains_the_machine_after_any_error(monkeypatch):
    answers = iter([RuntimeError("an answer of another shape"), False])

    def is_draining() -> bool:
        answer = next(answers, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(process, "is_draining", is_draining)
    monkeypatch.setattr(process, "POLL_S", 0.0)
    request, deadline = StopRequest(), time.monotonic() + 60.0
    while not request.received and time.monotonic() < deadline:
        time.sleep(0.01)
    assert request.received


def test_checkpoints_between_two_records_change_nothing(run, execution, undisturbed, monkeypatch):
    straight, records = undisturbed
    directory = Store(execution.storage).run(run.run_id)
    for last in (5, 23, 40):
        with monkeypatch.context() as patch:
            patch.setattr(RunExecution, "_should_commit", lambda _, step: step == last)  # noqa: B023
            stop_after(patch, 1)
            with pytest.raises(Stopped):
                execute_run(run, {}, execution)
        assert directory.read_committed_step() == last
    monkeypatch.setattr(RunExecution, "_should_commit", lambda *_: False)
    execute_run(run, {}, execution)
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(directory.records()) == strip_clock(records)


def test_a_run_that_another_driver_has_just_finished(run, execution, undisturbed, monkeypatch):
    """Between the look for a result and the lease lies the look for the data: nothing is trained
    again.
    """
    straight, _ = undisturbed
    corpus = Execution.corpus

    def finished_in_the_meantime(self, *asked):
        monkeypatch.setattr(Execution, "corpus", corpus)
        execute_run(run, {}, self)
        return self.corpus(*asked)

    monkeypatch.setattr(Execution, "corpus", finished_in_the_meantime)
    execute_run(run, {}, execution)
    directory = Store(execution.storage).run(run.run_id)
    first, second = directory.attempts.list()
    assert "segments" in directory.attempts.child(first).list()
    assert directory.attempts.child(second).list() == ["lease.json"]
    assert directory.status() == "complete"
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)


def test_ranks_are_not_started_for_a_run_at_work(run, execution):
    """The workers of two drivers would wait for one another's leases."""
    directory = execution.store().run(run.run_id)
    with directory.start_attempt("another driver"), pytest.raises(LeaseHeld):
        execute_node(run, {}, execution.with_placement(TWO_RANKS), Resources())
    assert not (Path(execution.storage) / "ray_train").exists()


# ------------------------------------------------------------------------------------------- memory


def execute_in_little_memory(run, execution) -> None:
    """The run in an address space that has room for a little more than what is there."""
    import resource

    from gram_platform.engine.process import OutOfMemory

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 512 * 2**20, resource.RLIM_INFINITY))
    try:
        execute_run(run, {}, execution)
    except OutOfMemory:
        os._exit(3)
    os._exit(0)


def test_a_run_that_does_not_fit_says_what_it_needs(setting, execution):
    """A real allocation that fails, under a limit of the address space."""
    run = plan("baseline", setting).runs["all"]
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, d_mlp=2**18, num_layers=8))
    placement = placement_of(Node.of(run, {"size": "tiny"}), Ranks(), "cpu")
    process = in_fork(execute_in_little_memory, run, execution.with_placement(placement))
    process.join()
    assert process.exitcode == 3
    failure = Store(execution.storage).run(run.run_id).failure()
    assert failure["details"] == {"kind": "memory"}
    for flag in ("--activation-checkpointing", "--num-workers 2"):
        assert flag in failure["message"]


def test_memory_advice_offers_nothing_that_is_in_use(setting):
    run = dataclasses.replace(plan("baseline", setting).runs["all"], micro_batch=1)
    divisions = [
        division_of(run, 1, MACHINES["cpu"], "cpu", checkpointing)
        for checkpointing in (False, True)
    ]
    said = [memory_advice(MemoryError(), division) for division in divisions]
    assert ["--activation-checkpointing" in message for message in said] == [True, False]


def test_errors_of_allocators():
    import numpy as np
    import torch

    for fail in (lambda: np.empty(2**50), lambda: torch.empty(2**50), lambda: bytearray(2**50)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            fail()
        assert is_out_of_memory(caught.value), caught.value
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA"))
    assert not is_out_of_memory(RuntimeError("size mismatch"))


# -------------------------------------------------------------------------------------------- graph


def empty_graph(execution, nodes):
    placements = {node.id: placement_of(node, Ranks(), "cpu") for node in nodes}
    return ray_executor(nodes, execution, placements=placements)


def test_only_crashes_without_progress_count(setting, execution, monkeypatch):
    """A run that commits between its crashes may lose any number of machines."""
    found = method_nodes("baseline", setting)[0]
    study, committed = empty_graph(execution, [found]), 0
    monkeypatch.setattr(
        execution.store().run(found.id).__class__, "read_committed_step", lambda _: committed
    )
    for committed in range(3 * MAX_CRASHES):  # noqa: B007
        assert not study._settle_error(found, WorkerCrashedError(), (found,), None)
    for _ in range(MAX_CRASHES - 2):
        assert not study._settle_error(found, WorkerCrashedError(), (found,), None)
    assert study._settle_error(found, WorkerCrashedError(), (found,), None)
    assert found.id in study.progress.failed


def test_a_crash_after_a_stall_is_not_called_a_stall(setting, execution):
    found = method_nodes("baseline", setting)[0]
    study = empty_graph(execution, [found])
    study.stalls[found.id] = "no step in 7200 s (--stall-timeout)"  # its process was killed
    assert not study._settle_error(found, WorkerCrashedError(), (found,), None)
    study.waiting = mock.MagicMock()
    study._note("the next start", (found,))
    while not study._settle_error(found, WorkerCrashedError(), (found,), None):
        pass
    assert "stall" not in study.waiting.fail.call_args.args[1]


def test_a_study_whose_processes_do_not_start_tries_less_and_less_often_and_then_says_so(
    execution, monkeypatch
):
    study, now, starts = empty_graph(execution, []), [100.0], []
    monkeypatch.setattr(slots, "Slot", mock.MagicMock())
    slots.Slot.options.return_value.remote.side_effect = mock.MagicMock
    ray_fails = mock.MagicMock(
        get=mock.MagicMock(side_effect=RayError("its machine has no disk left"))
    )
    monkeypatch.setattr(slots, "ray", ray_fails)
    monkeypatch.setattr(slots, "time", mock.MagicMock(monotonic=lambda: now[0]))

    def execute_for_a_minute() -> None:
        for second in range(60):
            now[0] = 100.0 + second
            study.slots.request(2)
            starts.extend(second for _ in study.slots.starting)
            for reference in list(study.slots.starting):
                study._take_back(reference)

    with pytest.raises(on_ray.ClusterLost):
        execute_for_a_minute()
    assert starts == [0, 0, 1, 1, 3, 3, 7, 7]


def test_a_task_without_rays_process_on_this_machine_ends_the_study(
    setting, execution, monkeypatch
):
    """It is no crash of the node: after four of them the node would count as failed."""
    task = (method_nodes("baseline", setting)[0],)
    study = empty_graph(execution, task)
    study.waiting = mock.MagicMock()
    study._note("a gang", task)
    monkeypatch.setattr(
        on_ray, "ray", mock.MagicMock(get=mock.MagicMock(side_effect=LocalRayletDiedError()))
    )
    with pytest.raises(on_ray.ClusterLost):
        study._take_back("a gang")
    study.waiting.again.assert_not_called()


def test_a_study_looks_whether_its_ray_is_alive(execution, monkeypatch):
    study = empty_graph(execution, [])
    monkeypatch.setattr(
        on_ray, "require_ray", mock.MagicMock(side_effect=on_ray.ClusterLost("gone"))
    )
    with pytest.raises(on_ray.ClusterLost):
        study.advance()
