"""Measures the driver's own time for each node of a large study, whose nodes are planted and train
nothing."""

import dataclasses
import time
from unittest import mock

import ray

from benchmarks.many_runs import DOMAINS, run_config
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from gram_platform.config import Evaluation, View
from gram_platform.engine import slots
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.cluster import connect
from gram_platform.engine.devices import ProbeReport, probe_here
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.executor import ENDED
from gram_platform.engine.ray_executor import RayExecutor
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.studies.live import LiveView

# The full form has 10,000. A tenth as many run first.
NUM_NODES = 2_000
NUM_PROFILES = 3
# The bound of the driver's CPU time for a node.
MOST_MS = 1.5


@ray.remote
class EmptySlot:
    """Ends every task at once."""

    def probe(self, execution: Execution) -> ProbeReport:
        return probe_here(execution)

    def execute(self, nodes: list, execution: Execution, resources: Resources) -> list[str]:
        return []


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Runs graphs of two sizes: the time for a node must not grow with their number."""
    connect()
    number = (5 if settings.full else 1) * NUM_NODES
    with mock.patch.object(slots, "Slot", EmptySlot):
        # Ray starts its processes.
        _driver_s(settings, planted(100))
        few, many = (_driver_s(settings, planted(n)) / n for n in (number // 10, number))
    return [
        BenchmarkResult(
            name=f"driver, {number:,} nodes",
            unit="ms",
            values=(1000 * many,),
            references=(1000 * few,),
            against=f"CPU time a node of {number // 10:,} nodes",
            aim=Aim("at most", MOST_MS, "value"),
        )
    ]


def planted(number: int) -> list[Node]:
    """Plans runs, each with the evaluations of `NUM_PROFILES` profiles and an attack: `number`
    nodes in all."""
    nodes = []
    for seed in range(number // (NUM_PROFILES + 2)):
        run = run_config(seed, 40)
        names = {"method": "gram", "size": "tiny", "seed": str(seed), "retained": ""}
        nodes.append(Node.of(run, {**names, "profile": "all"}))
        for profile in range(NUM_PROFILES):
            view = View.of(run.run_id, dict.fromkeys(DOMAINS[1 : 1 + profile], 1.0))
            evaluation = Evaluation(view, run.data.data_id, DOMAINS, 4)
            nodes.append(Node.of(evaluation, {**names, "profile": str(profile)}))
        attack = dataclasses.replace(run, start=View.of(run.run_id, {}))
        nodes.append(Node.of(attack, {**names, "profile": "core", "elicited": DOMAINS[1]}))
    return nodes


def _driver_s(settings: BenchmarkSettings, nodes: list[Node]) -> float:
    """Returns the CPU seconds of this process, with its live view, from the first node's end to the
    last's."""
    store = Store(settings.storage).open_for_writing()
    view, started = _SilentView(nodes, store, "planted"), None
    with RayExecutor(Execution(settings.storage), Cordon(Resources())) as executor:
        view.progress, executor.look = executor.progress, view.look
        for event in executor.events([nodes]):
            if event.kind == ENDED and started is None:
                started = time.process_time()
            view.see(event)
    assert started is not None
    assert len(executor.progress.done) == len(nodes)
    return time.process_time() - started


class _SilentView(LiveView):
    """Does everything but print, and read the seconds of planted runs, which have none."""

    def say(self, text: str, style: str = "") -> None:
        pass

    def _say_ended(self, node: Node, failure: str) -> None:
        pass
