"""Runs that do not fit into memory: recognising it, and what to say."""

import torch

from gram_platform.config import RunConfig
from gram_platform.engine.execution import Execution
from gram_platform.planner import GIB, MACHINES, needs

CPU_ALLOCATOR = ("DefaultCPUAllocator", "not enough memory")  # torch has no class for it


class OutOfMemory(RuntimeError):
    """A process had too little memory for its run; the message says what the planner counts and what helps."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: Python's, numpy's, torch's on a GPU or on the CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in CPU_ALLOCATOR)


def memory_advice(error: BaseException, run: RunConfig, execution: Execution) -> str:
    """What failed, what the planner counts for the run, and what would need less."""
    ranks = execution.num_ranks
    more = next((n for n in range(ranks + 1, run.micro_batch + 1) if run.micro_batch % n == 0), None)
    ways = [f"--activation-checkpointing: {_gib(run, ranks, checkpointing=True)}"]
    ways += [f"--num-workers {more}: {_gib(run, more)} each"] if more else []
    counted = f"{_gib(run, ranks)} on each of {ranks} ranks" if ranks > 1 else _gib(run, 1)
    failed = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": ")
    return (
        f"out of memory ({failed}). The planner counts {counted}, and about 1 GiB for the process itself. "
        f"Less with {', or '.join(ways)}; else take a machine with more memory."
    )


def _gib(run: RunConfig, num_ranks: int, checkpointing: bool = False) -> str:
    total = needs(run, num_ranks, MACHINES["cpu"], checkpointing=checkpointing).memory.total
    return f"{total / GIB:.3g} GiB"
