"""GPUs that fail once in a while, and machines whose GPU is broken: what is lost, and what executes
nothing.

The machines are pretended on this one, their GPUs by `tests/engine/pretended/sitecustomize.py`.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gram_platform.engine.capacity import Cordon
from gram_platform.engine.cluster import ClusterLost
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Execution, Resources
from gram_platform.methods.nodes import Node, method_nodes
from tests.engine.conftest import elsewhere, result_files
from tests.engine.test_drained import in_own_process
from tests.executed import run_graph, run_in_process

ROOT = Path(__file__).resolve().parents[2]
PLACES = (str(ROOT), str(Path(__file__).with_name("pretended")))


@contextlib.contextmanager
def machines(folder: Path, good: int, broken: int) -> Iterator:
    """A Ray of pretended machines: `good0`, ... of one CPU and `broken0`, ... of two.

    Yields them by name.
    """
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(PRETENDED=str(folder), PYTHONPATH=os.pathsep.join(PLACES))
    cluster = Cluster(
        initialize_head=True,
        connect=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False},
    )
    try:
        plan_for(folder)
        found = {}
        for name in [f"good{number}" for number in range(good)] + [
            f"broken{number}" for number in range(broken)
        ]:
            is_broken = "broken" in name
            flags = {"MACHINE": name} | ({"BROKEN": "1"} if is_broken else {})
            found[name] = cluster.add_node(num_cpus=1 + is_broken, env_vars=flags)
        yield found
    finally:
        ray.shutdown()
        cluster.shutdown()


def plan_for(folder: Path, **plan) -> None:
    """Sets what the processes that start from now on pretend; forgets what has happened."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))


def events(folder: Path) -> list[dict]:
    found = [
        json.loads(line) for path in folder.glob("log-*") for line in path.read_text().splitlines()
    ]
    return sorted(found, key=lambda event: event["time"])


def undisturbed(execution: Execution, nodes: list[Node], folder: Path) -> dict[str, bytes]:
    straight = elsewhere(execution, folder, "straight")
    assert not run_in_process(nodes, straight).failed
    return result_files(straight, nodes)


def assert_little_is_trained_twice(happened: list[dict]) -> None:
    """After an error a run goes on from its last checkpoint."""
    committed: dict[str, int] = {}
    for event in happened:
        if event["event"] == "device":
            committed[event["id"]] = event["committed"]
        elif event["event"] == "start" and event["id"] in committed:
            assert event["step"] >= committed.pop(event["id"])


def seeds(setting, number: int) -> list[Node]:
    """The baseline with several seeds, and its evaluations."""
    return [
        node
        for seed in range(number)
        for node in method_nodes("baseline", dataclasses.replace(setting, seed=seed))
    ]


def execute_on_a_broken_machine(execution: Execution, nodes: list[Node], folder: Path) -> None:
    """One of three machines is broken; a run and an evaluation meet an error, another run finds too
    little memory.
    """
    run, _, evaluation, unfit = runs_and_evaluations(nodes)
    planned = [
        [run.id, 3, "device", 1],
        [evaluation.id, 0, "device", 1],
        [unfit.id, 2, "memory", 9],
    ]
    with machines(folder, good=2, broken=1) as names:
        plan_for(folder, errors=planned)
        reports = []
        progress = run_graph(
            nodes,
            execution,
            Resources(),
            ALL_ON_ONE_RANK,
            cordon=Cordon(Resources(), reports.append),
        )
        assert list(progress.failed) == [unfit.id]
        assert [report.machine for report in reports] == [names["broken0"].node_id]
        happened = events(folder)
        assert Counter(e["event"] for e in happened if e["event"] in ("device", "memory")) == {
            "device": 2,
            "memory": 2,
        }
        assert {event["machine"] for event in happened} == {"good0", "good1"}
        assert len({event["machine"] for event in happened if event["event"] == "memory"}) == 2
        failure = execution.store().run(run.id).failure()
        assert failure is None, "the error of a device is recorded nowhere"
        with pytest.raises(ClusterLost):
            run_graph(nodes, execution, Resources(cpus_per_rank=2.0), ALL_ON_ONE_RANK)
        assert events(folder) == happened
    (folder / "failed.json").write_text(json.dumps([unfit.id, *progress.blocked]))


def runs_and_evaluations(nodes: list[Node]) -> tuple[Node, Node, Node, Node]:
    """The first, second and third run, with the evaluation of the second one before the third."""
    runs = [node for node in nodes if node.is_run and not node.is_attack]
    evaluation = next(node for node in nodes if not node.is_run and node.needs == {runs[1].id})
    return runs[0], runs[1], evaluation, runs[2]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broken_machine_executes_nothing_and_costs_no_run(execution, setting, tmp_path):
    nodes, folder = seeds(setting, 3), tmp_path / "pretended"
    nodes = [node for node in nodes if not node.is_attack]
    expected = undisturbed(execution, nodes, tmp_path)
    in_own_process(execute_on_a_broken_machine, execution, nodes, folder)
    failed = json.loads((folder / "failed.json").read_text())
    done = [node for node in nodes if node.id not in failed]
    assert result_files(execution, done) == {node.id: expected[node.id] for node in done}


SEEDS = 20
MEAN_S = 10.0  # between two errors of a process: six times as many as one a minute


def execute_under_errors(
    execution: Execution, nodes: list[Node], folder: Path, expected: dict[str, bytes]
) -> None:
    num_errors = 0
    with machines(folder, good=2, broken=1):
        for seed in range(SEEDS):
            plan_for(folder, seed=seed, mean_s=MEAN_S)
            mine, reports = elsewhere(execution, folder.parent, f"seed{seed}"), []
            progress = run_graph(
                nodes,
                mine,
                Resources(),
                ALL_ON_ONE_RANK,
                cordon=Cordon(Resources(), reports.append),
            )
            assert not progress.failed, progress.failed
            assert result_files(mine, nodes) == expected
            happened = events(folder)
            assert_little_is_trained_twice(happened)
            assert len(reports) == 1
            assert {event["machine"] for event in happened} == {"good0", "good1"}
            num_errors += sum(event["event"] == "device" for event in happened)
            print(f"seed {seed}: {num_errors} errors so far", flush=True)
            shutil.rmtree(mine.storage)
    assert num_errors


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(3600)
def test_a_study_under_errors_of_devices_ends_with_the_same_bytes(execution, setting, tmp_path):
    nodes = [
        node for node in (*seeds(setting, 2), *method_nodes("gram", setting)) if not node.is_attack
    ]
    often = dataclasses.replace(execution, checkpoint_every_s=0.1)
    expected = undisturbed(often, nodes, tmp_path)
    in_own_process(execute_under_errors, often, nodes, tmp_path / "pretended", expected)
