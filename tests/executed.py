"""Executes nodes to their end, and returns what has become of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gram_platform.engine.capacity import Cordon
from gram_platform.engine.execution import ALL_ON_ONE_RANK, Execution, Placement, Resources
from gram_platform.engine.executor import ENDED, Event, Executor, LocalExecutor
from gram_platform.engine.life import Progress
from gram_platform.engine.ray_executor import RayExecutor
from gram_platform.methods.nodes import Node

OnChange = Callable[[Progress, Node | None], None]


def run_graph(
    nodes: Sequence[Node],
    execution: Execution,
    resources: Resources,
    placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
    on_change: OnChange = lambda progress, node: None,
    **how: Any,
) -> Progress:
    """Executes nodes on Ray; `on_change` gets each that ends, and None whenever time passes."""
    cordon = how.pop("cordon", None) or Cordon(resources)
    return _executed(RayExecutor(execution, cordon, placements, **how), nodes, on_change)


def run_in_process(
    nodes: Sequence[Node],
    execution: Execution,
    on_change: OnChange = lambda progress, node: None,
    limit_s: float = math.inf,
    **how: Any,
) -> Progress:
    """Executes nodes in this process; as `run_graph`."""
    executor = LocalExecutor(execution, **how)
    executor.limit_s = limit_s
    return _executed(executor, nodes, on_change)


def _executed(executor: Executor, nodes: Sequence[Node], on_change: OnChange) -> Progress:
    with executor:
        executor.look = lambda: on_change(executor.progress, None)
        for event in executor.events([nodes]):
            if event.kind == ENDED:
                on_change(executor.progress, event.node)
    return executor.progress


def events_of(executor: Executor, nodes: Sequence[Node]) -> list[Event]:
    """Executes nodes; returns what happened."""
    with executor:
        return list(executor.events([nodes]))


def ray_executor(
    nodes: Sequence[Node],
    execution: Execution,
    cordon: Cordon | None = None,
    placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
    retry_diverged: bool = False,
) -> RayExecutor:
    """What executes nodes on Ray; it has started none of them."""
    executor = RayExecutor(
        execution, cordon or Cordon(Resources()), placements, retry_diverged, poll_s=0.0
    )
    executor.waiting.add(nodes)
    return executor


def happened(executor: Executor, kind: str) -> list[Event]:
    """The events of a kind that nobody has read yet."""
    return [event for event in executor._happened if event.kind == kind]
