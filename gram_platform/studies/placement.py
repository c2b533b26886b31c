"""Decides where each node is executed: its ranks, and passes and memory for each number of ranks that it may have.

It is decided once, before the first node starts; what trains only reads the placement.
"""

from dataclasses import replace

from gram_platform.config import RunConfig
from gram_platform.config.flops import GIB
from gram_platform.engine.execution import ON_ONE_RANK, Division, Placement
from gram_platform.methods.nodes import Node
from gram_platform.planner import MACHINES, Machine, Ranks, expected_hours, passes_of


def placement_of(node: Node, ranks: Ranks, device: str, gpu_share: float = 1.0) -> Placement:
    """Returns the placement of a node on `device`, cpu or cuda; an evaluation has one rank.

    `gpu_share`: of a GPU's memory that each process has. ValueError as `Ranks.of`.
    """
    if not isinstance(node.config, RunConfig):
        return ON_ONE_RANK
    machine = MACHINES["cpu"]
    if device == ranks.machine.device == "cuda":
        machine = replace(ranks.machine, memory_bytes=gpu_share * ranks.machine.memory_bytes)
    choices = ranks.choices(node.config, node.size)
    divisions = (division_of(node.config, number, machine, device, ranks.checkpointing) for number in choices)
    return Placement(tuple(divisions), expected_hours(node, machine) / choices[-1])


def division_of(run: RunConfig, num_ranks: int, machine: Machine, device: str, checkpointing: bool = False) -> Division:
    """Returns how a run is divided over so many ranks, by the machine's memory, with advice for when it lacks."""

    def gib(number: int, recomputes: bool) -> str:
        return f"{_divided(run, number, machine, device, recomputes).memory_bytes / GIB:.3g} GiB"

    division = _divided(run, num_ranks, machine, device, checkpointing)
    more = next((n for n in range(num_ranks + 1, run.micro_batch + 1) if run.micro_batch % n == 0), None)
    remedies = [] if checkpointing else [f"--activation-checkpointing: {gib(num_ranks, True)}"]
    remedies += [f"--num-workers {more}: {gib(more, checkpointing)} each"] if more else []
    counted = f"{division.memory_bytes / GIB:.3g} GiB" + (f" on each of {num_ranks} ranks" if num_ranks > 1 else "")
    less = f"Less with {', or '.join(remedies)}; else use" if remedies else "Use"
    advice = f"The planner counts {counted}, and about 1 GiB for the process itself. {less} a machine with more memory."
    return replace(division, advice=advice)


def _divided(run: RunConfig, num_ranks: int, machine: Machine, device: str, checkpointing: bool) -> Division:
    """Returns the division with the memory of the fullest rank, without advice."""
    passes = passes_of(run, num_ranks, machine, device, checkpointing)
    return Division(num_ranks, passes.num_passes, passes.num_merged, passes.memory.total)
