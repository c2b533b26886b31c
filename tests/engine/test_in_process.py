"""Nodes one after another in one process, without Ray: the same bytes, failures, interruptions."""

import dataclasses
import os
import signal
import threading
import time

import pytest

from gram_platform.config.endings import TIME_IS_UP
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Resources
from gram_platform.engine.node import RunExecution
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes, unique
from gram_platform.methods.setting import Elicitation, Options
from gram_platform.store import Store, attempts
from tests.engine.conftest import elsewhere, result_files
from tests.engine.test_faults import in_fork
from tests.engine.test_node import result_bytes, strip_clock
from tests.executed import run_graph, run_in_process


@pytest.fixture
def execution(execution):
    """Only a request to stop commits."""
    return dataclasses.replace(execution, checkpoint_every_s=1e9)


@pytest.fixture
def nodes(setting) -> list[Node]:
    """Two methods, each a run, its views, and attacks that start from the run: 8 runs and 7
    evaluations.
    """
    attack = Elicitation(num_sequences=4, num_steps=3, patience=0, batch_size=4, compared_only=True)
    setting = dataclasses.replace(setting, options=Options(elicitation=attack))
    return unique(node for method in ("gram", "baseline") for node in method_nodes(method, setting))


def diverging(setting: Setting) -> Setting:
    return dataclasses.replace(setting, size=dataclasses.replace(setting.size, peak_lr=1e30))


@pytest.mark.ray
def test_the_results_are_those_of_ray_byte_for_byte(nodes, execution, tmp_path, ray_cluster):
    seen = []
    progress = run_in_process(nodes, execution, lambda _, node: seen.append(node))
    assert progress.done == {node.id for node in nodes}
    assert not progress.failed
    assert not progress.running
    ended = [node for node in seen if node is not None]
    assert sorted(node.id for node in ended) == sorted(progress.done)
    assert len(seen) > len(ended)  # it is also called while a run trains
    kinds = [node.kind for node in ended]
    # Evaluations come first when they are ready.
    assert kinds[:4] == ["run", "evaluation", "evaluation", "evaluation"]
    under_ray = elsewhere(execution, tmp_path, "ray")
    run_graph(nodes, under_ray, Resources(), ALL_ON_ONE_RANK)
    assert result_files(execution, nodes) == result_files(under_ray, nodes)
    again = run_in_process(nodes, execution)
    assert again.reused == len(again.done) == len(nodes)


def test_a_failure_blocks_only_what_needs_it(setting, nodes, execution):
    bad = method_nodes("gram", diverging(setting))
    progress = run_in_process([*bad, *nodes], execution)
    run, *evaluations = bad
    assert list(progress.failed) == [run.id]
    assert progress.blocked == {node.id: [run.id] for node in evaluations}
    assert progress.done == {node.id for node in nodes}
    num_attempts = len(Store(execution.storage).run(run.id).attempts.list())
    assert run_in_process(bad, execution).failed == progress.failed  # it is not trained again
    run_in_process(bad, execution, retry_diverged=True)
    assert len(Store(execution.storage).run(run.id).attempts.list()) == num_attempts + 1


def test_an_evaluation_without_its_runs_weights_fails_by_name(nodes, execution):
    run, *others = (node for node in nodes if node.method == "gram")
    run_in_process([run], execution)
    # As in an archive of results.
    Store(execution.storage).open_for_writing().run(run.id).drop_weights()
    progress = run_in_process([run, *others], execution)
    assert progress.done == {run.id}
    failed = [node.id for node in others if node.needs == {run.id}]
    assert sorted(progress.failed) == sorted(failed)
    assert all(run.id in message for message in progress.failed.values())


def test_an_unexpected_error_rises_and_is_recorded(nodes, execution, monkeypatch):
    # it is evaluated as it trains.
    baseline = next(node for node in nodes if node.is_run and node.method == "baseline")
    run = Store(execution.storage).run(baseline.id)
    monkeypatch.setattr(RunExecution, "evaluate", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_in_process([baseline], execution)
    assert run.failure()["message"].startswith("ZeroDivisionError")
    run.require_free()
    monkeypatch.setattr(RunExecution, "evaluate", lambda self: int("seven"))
    # A ValueError, as of bad input, fails the node.
    progress = run_in_process([baseline], execution)
    assert "seven" in progress.failed[baseline.id]


@pytest.fixture
def ctrl_c():
    """Makes Ctrl-C raise KeyboardInterrupt also where these tests are a background job, in which
    shells ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 1)]
)
def test_a_signal_leaves_a_checkpoint_and_the_study_goes_on(
    run, execution, undisturbed, monkeypatch, ctrl_c, number, code
):
    """Ctrl-C raises KeyboardInterrupt, with which this process ends with 1."""
    monkeypatch.setattr(attempts, "HEARTBEAT_INTERVAL_S", 0.001)  # every step can be seen
    node, directory = Node(run, ()), Store(execution.storage).run(run.run_id)
    process = in_fork(run_in_process, [node], execution)
    deadline = time.monotonic() + 60
    while (directory.progress() or {"step": 0})["step"] < 3:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == code
    assert 3 <= directory.read_committed_step() < run.num_steps
    assert directory.status() == "interrupted"
    run_in_process([node], execution)
    straight, records = undisturbed
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert strip_clock(directory.records()) == strip_clock(records)


def test_the_end_of_the_time_leaves_a_checkpoint(run, execution, undisturbed, monkeypatch):
    monkeypatch.setattr("gram_platform.engine.executor.TICK_S", 0.0)
    node = Node(run, ())
    directory = Store(execution.storage).run(run.run_id)

    def interrupted(limit_s: float) -> int:
        """The step at which a time of less than five steps ends, and at the earliest the first
        step.
        """
        with pytest.raises(SystemExit) as ended:
            run_in_process([node], execution, lambda *_: time.sleep(0.1), limit_s=limit_s)
        assert ended.value.code == TIME_IS_UP
        return directory.read_committed_step()

    assert interrupted(0.0) == 0  # before the run
    assert 0 < interrupted(0.4) < interrupted(0.4) < run.num_steps
    assert run_in_process([node], execution).done == {run.run_id}
    assert result_bytes(execution, run.run_id) == result_bytes(undisturbed[0], run.run_id)


def test_a_run_of_another_driver_is_waited_for(run, execution, undisturbed):
    directory = Store(execution.storage).open_for_writing().run(run.run_id)
    directory.ensure_config(run)
    attempt = directory.start_attempt("the other driver")
    released = threading.Timer(0.5, attempt.release)
    released.start()
    started = time.monotonic()
    assert run_in_process([Node(run, ())], execution).done == {run.run_id}
    assert time.monotonic() - started >= 0.4
    assert len(directory.attempts.list()) == 2
    assert result_bytes(execution, run.run_id) == result_bytes(undisturbed[0], run.run_id)
