"""Predicts how long a study takes on a given number of machines, none of which crashes."""

import bisect
import heapq
from collections.abc import Mapping, Sequence

from gram_platform.config.identity import invalid
from gram_platform.methods.nodes import Node, longest_paths


def predict_makespan(
    nodes: Sequence[Node],
    hours: Mapping[str, float],
    num_slots: int,
    ranks: Mapping[str, int] | None = None,
) -> float:
    """Returns the hours from the start of a study until its last node ends.

    A node can start once the runs that it needs have ended and as many slots are free as it has
    ranks. The order is the engine's: evaluations first, then the runs with the most ranks, then the
    runs with the longest path of hours to an end. A node that does not fit waits, and the next one
    that fits starts. Unlike in the engine, each evaluation of a run is a task.

    `hours` are those of a node, by id. `num_slots` is the number of GPUs or CPU slots. `ranks` are
    the slots that a node holds, by id, 1 by default. Needed runs that are not among `nodes` count
    as done. ValueError if a node has more ranks than there are slots.
    """
    widths = {node.id: (ranks or {}).get(node.id, 1) for node in nodes}
    widest = max(widths.values(), default=1)
    if widest > num_slots:
        raise invalid("num_slots", num_slots, f"at least {widest}, the ranks of one node")

    paths = longest_paths({node.id: node.needs for node in nodes}, hours)
    order = sorted(nodes, key=lambda node: (node.is_run, -widths[node.id], -paths[node.id]))
    num_needed = [len(node.needs & widths.keys()) for node in order]
    dependants: dict[str, list[int]] = {node.id: [] for node in order}
    for place, node in enumerate(order):
        for needed in node.needs & widths.keys():
            dependants[needed].append(place)

    # The places in `order` of the nodes that can start.
    ready = [place for place, number in enumerate(num_needed) if number == 0]
    # A heap of (hour of the end, place in `order`).
    running: list[tuple[float, int]] = []
    now, num_free = 0.0, num_slots
    while ready or running:
        for place in [*ready]:
            if num_free == 0:
                break
            node = order[place]
            if widths[node.id] <= num_free:
                ready.remove(place)
                num_free -= widths[node.id]
                heapq.heappush(running, (now + hours[node.id], place))
        now, ended = heapq.heappop(running)
        num_free += widths[order[ended].id]
        for place in dependants[order[ended].id]:
            num_needed[place] -= 1
            if num_needed[place] == 0:
                bisect.insort(ready, place)
    return now
