"""Replays a finished study by list scheduling, in the order of its nodes and in the engine's: how long would it take?

    python -m benchmarks.makespan --storage DIR --preset demo           # experiments/scaling.py in recorded seconds
    python -m benchmarks.makespan --grid --storage DIR --preset paper   # experiments/lr_bs_grid.py in predicted hours

Nothing is executed. No schedule is shorter than the bound: the sum over all slots, or the longest path of nodes that
need one another. Slots start at once and nothing crashes.
"""

import heapq
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace

from gram_platform.analysis.tables import aligned
from gram_platform.config.endings import exit_with
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.engine.execution import Placement
from gram_platform.engine.life import Progress, WaitingNodes
from gram_platform.methods.nodes import Node, longest_paths
from gram_platform.planner import MACHINES, Machine, expected_hours
from gram_platform.store import Store
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse as parse_study
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.searches.definition import parse_search
from gram_platform.studies.searches.run import build_search
from gram_platform.studies.searches.work import longest_first

GRID = "--grid"
NOTHING_ENDED = SimpleNamespace(ends=lambda nodes: {node.id: None for node in nodes})  # a lifecycle of no storage
HEADER = ("slots", "in listed order", "longest first", "bound", "shorter by", "above the bound")


def makespan(
    nodes: Sequence[Node], length_of: Callable[[Node], float], num_slots: int, expected: Callable[[Node], float]
) -> float:
    """Returns when the last node ends if the engine starts them on `num_slots` slots; `expected`: what it knows."""
    waiting = WaitingNodes(Progress(nodes), NOTHING_ENDED, {n.id: Placement(hours=expected(n)) for n in nodes})
    running: list[tuple[float, int, tuple[Node, ...]]] = []
    now, number = 0.0, 0
    while waiting or running:
        for task in [task for _, tasks in waiting.tasks() for task in tasks][: num_slots - len(running)]:
            waiting.start(task)
            number += 1
            heapq.heappush(running, (now + sum(map(length_of, task)), number, task))
        now, _, ended = heapq.heappop(running)
        for node in ended:
            waiting.done(node)
    return now


def bound(nodes: Sequence[Node], length_of: Callable[[Node], float], num_slots: int) -> float:
    """Returns a length that no schedule on so many slots can be shorter than."""
    lengths = {node.id: length_of(node) for node in nodes}
    return max(sum(lengths.values()) / num_slots, *longest_paths({n.id: n.needs for n in nodes}, lengths).values())


def in_turn(lengths: Iterable[float], num_slots: int) -> float:
    """Returns when the last of independent trials ends that start in this order."""
    ends = [0.0] * num_slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def study_rows(nodes: Sequence[Node], seconds: Mapping[str, float], machine: Machine) -> list[tuple[float, ...]]:
    """Returns (slots, makespan in listed order, makespan in the engine's, bound) from the recorded seconds of nodes."""

    def length_of(node: Node) -> float:
        return seconds[node.id]

    return [
        (
            slots,
            makespan(nodes, length_of, slots, lambda node: 0.0),
            makespan(nodes, length_of, slots, lambda node: expected_hours(node, machine)),
            bound(nodes, length_of, slots),
        )
        for slots in (2, 4, 8)
    ]


def grid_rows(arguments: list[str]) -> list[tuple[float, ...]]:
    """Returns the same from the predicted hours of the grid's trials, on one GPU each."""
    graph = build_search(SEARCH, parse_search(SEARCH, arguments))
    machine, problem = graph.flags.hardware, graph.problem()
    points = graph.points(Store(graph.flags.storage))[0]
    hours = {name: sum(expected_hours(node, machine) for node in problem.nodes(point)) for name, point in points}
    listed = list(hours.values())
    ordered = [hours[name] for name, _ in longest_first(points, problem, machine)]
    return [
        (slots, in_turn(listed, slots), in_turn(ordered, slots), max(sum(listed) / slots, *listed))
        for slots in (24, 32, 48, 64)
    ]


def main(arguments: list[str]) -> int:
    """Prints the table."""
    if GRID in arguments:
        rows = grid_rows([argument for argument in arguments if argument != GRID])
    else:
        graph = build_graph(STUDY, parse_study(STUDY, arguments))
        store = Store(graph.flags.storage)
        timings = {node.id: store.node(node.kind, node.id).timing() for node in graph.nodes}
        if not all("elapsed_s" in timing for timing in timings.values()):
            raise invalid("storage", graph.flags.storage, "one with every node of the study done")
        seconds = {node_id: timing["elapsed_s"] for node_id, timing in timings.items()}
        rows = study_rows(graph.nodes, seconds, MACHINES["cpu"])
    say(aligned([HEADER, *map(_texts, rows)], 1))
    return 0


def _texts(row: tuple[float, ...]) -> tuple[str, ...]:
    slots, listed, ordered, least = row
    amounts = (f"{value:,.2f}" for value in (listed, ordered, least))
    return f"{slots}", *amounts, f"{1.0 - ordered / listed:.1%}", f"{ordered / least - 1.0:.1%}"


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
