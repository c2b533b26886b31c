"""Chooses the number of ranks for each run of a study, and predicts the study's duration."""

import bisect
import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gram_platform.config import RunConfig
from gram_platform.config.flops import BYTES, GIB, total_parameters
from gram_platform.config.identity import invalid
from gram_platform.config.layout import MACHINE_RANKS, sharing_of
from gram_platform.methods.nodes import Node, longest_paths
from gram_platform.planner import (
    LEAST_PASS_TOKENS,
    MACHINES,
    Machine,
    choose_num_merged,
    choose_num_passes,
    estimate_hours,
    evaluation_hours,
    fits,
    plan_passes,
    training_hours,
)

# AUTO lets the planner choose the number of ranks. BY_DEVICE is AUTO on GPUs and 1 on CPUs.
AUTO, BY_DEVICE = 0, -1
# The most GPU-hours that a run can cost to finish a study earlier, as a multiple of the fewest
# [ours].
MOST_HOURS = 1.1
# Bytes per second that each rank exchanges with other machines [ours]: half of 400 Gb/s.
NETWORK_RATE = 25e9
# The time of a node without its passes [ours]. It was .1 s on two idle cores and .7 s on busy ones.
NODE_S = 0.3
NONE_BEGUN: Mapping[str, int] = {}


def fewest_ranks(run: RunConfig, machine: Machine, checkpointing: bool = False) -> int | None:
    """Returns the smallest number of ranks on which a run fits into memory.

    Tries only divisors of the micro-batch size. If none fits, returns None.
    """
    return next((n for n in _divisors(run) if fits(run, n, machine, checkpointing)), None)


def _divisors(run: RunConfig) -> list[int]:
    return [n for n in range(1, run.micro_batch + 1) if run.micro_batch % n == 0]


@dataclass(frozen=True)
class Ranks:
    """The number of ranks of each run in a study.

    AUTO means the smallest number that fits into memory. `StudyWork.choose` replaces AUTO.
    """

    number: int = 1
    # Overrides `number` for single sizes.
    of_size: tuple[tuple[str, int], ...] = ()
    machine: Machine = MACHINES["cpu"]
    checkpointing: bool = False
    # The limit of `choices` by size, "" for all other sizes. By default, the fewest ranks.
    most: tuple[tuple[str, int], ...] = ()
    # The ranks of runs that have begun, by id. They override AUTO.
    of_run: tuple[tuple[str, int], ...] = ()

    def number_of(self, size: str) -> int:
        """Returns the number of ranks that the user gave for a size, or AUTO."""
        number = dict(self.of_size).get(size, self.number)
        if number == BY_DEVICE:
            return AUTO if self.machine.device == "cuda" else 1
        return number

    def of(self, run: RunConfig, size: str) -> int:
        """Returns a run's number of ranks, always a divisor of its micro-batch size.

        If the number is AUTO and the run fits into memory on no number of ranks, raises ValueError.
        """
        if number := dict(self.of_run).get(run.run_id):
            return number
        if (number := self.number_of(size)) != AUTO:
            return math.gcd(number, run.micro_batch)
        fewest = fewest_ranks(run, self.machine, self.checkpointing)
        if fewest is None:
            raise self.too_small(size)
        return fewest

    def choices(self, run: RunConfig, size: str) -> tuple[int, ...]:
        fewest = self.of(run, size)
        most = dict(self.most).get(size if size in dict(self.of_size) else "", fewest)
        return (*(n for n in range(most, fewest, -1) if run.micro_batch % n == 0), fewest)

    def too_small(self, size: str) -> ValueError:
        expected = f"a machine with memory for a rank of a run of {size}"
        return invalid("machine", self.machine.name, expected)


def exchange_hours(
    run: RunConfig, num_ranks: int, machine: Machine, checkpointing: bool = False
) -> float:
    """Estimates the hours of gathering weights and reducing gradients, summed over ranks.

    `train/sharding.py` gathers a block before its forward and backward pass, unless weights stay
    gathered. It reduces gradients once per window or in every pass. The estimate is an upper bound,
    because most communication overlaps with computation.
    """
    if num_ranks == 1:
        return 0.0
    sharing = sharing_of(run.model, run.precision, num_ranks, machine.device)
    merged = choose_num_merged(run, num_ranks, machine, checkpointing)
    passes = math.ceil(run.micro_batches_per_step / merged)
    passes *= choose_num_passes(run, num_ranks, machine, checkpointing)
    gathers = 1 if sharing.keeps_gathered else 2 * passes
    reductions = passes if sharing.reduces_every_pass else 1
    values = total_parameters(run.model)
    share = 1 - 1 / sharing.num_shards
    step_s = share * values * (gathers * BYTES[run.precision] + 4 * reductions) / machine.link_rate
    if num_ranks > MACHINE_RANKS:
        step_s += 2 * 4 * reductions * values / sharing.num_shards / NETWORK_RATE
    return run.num_steps * step_s * num_ranks / 3600


@dataclass(frozen=True)
class Forecast:
    """A study's predicted duration on a number of GPUs or CPU slots."""

    hours: float
    # The share of the slots' time that is idle.
    idle: float


class RunGroup(NamedTuple):
    """Identifies runs that differ in memory and communication only by their number of modules."""

    size: str
    method: str
    is_attack: bool
    micro_batch: int


def one_rank_hours(nodes: Sequence[Node], machine: Machine) -> dict[str, float]:
    """Returns {node id: estimated hours on one rank}, including NODE_S seconds of overhead."""
    runs = {node.id: node for node in nodes if node.is_run}
    return {
        node.id: NODE_S / 3600
        + (estimate_hours(node, machine) or evaluation_hours([node], runs, machine))
        for node in nodes
    }


class StudyWork:
    """The nodes of a study with their hours on one rank.

    The largest run of a `RunGroup` determines memory and communication of all its runs. `share` is
    the fraction of a GPU that a one-rank run gets. On half a GPU, a run is assumed to take twice as
    long, although small runs take less.
    """

    def __init__(self, nodes: Sequence[Node], ranks: Ranks, share: float = 1.0) -> None:
        self.nodes, self.ranks, self.share = nodes, ranks, share
        self.machine = ranks.machine
        self._hours = one_rank_hours(nodes, self.machine)
        self._runs: dict[str, tuple[RunGroup, RunConfig]] = {}
        self._largest: dict[RunGroup, RunConfig] = {}
        for node in nodes:
            if isinstance(run := node.config, RunConfig):
                group = RunGroup(node.size, node.method, node.is_attack, run.micro_batch)
                self._runs[node.id] = group, run
                largest = self._largest.setdefault(group, run)
                if total_parameters(run.model) > total_parameters(largest.model):
                    self._largest[group] = run
        # Exchange hours as a share of training hours, by group and number of ranks.
        self._added: dict[tuple[RunGroup, int], float] = {}

    def choose(self, num_slots: int, begun: Mapping[str, int] = NONE_BEGUN) -> Ranks:
        """Chooses the number of ranks for each size that the user left at AUTO.

        Considers the numbers that fit into memory and need at most MOST_HOURS times the fewest
        GPU-hours. Takes the number with which the study ends earliest. Of several such numbers,
        takes the smallest.

        `num_slots` is the number of GPUs in the cluster, or 0 if it grows with demand. `begun` maps
        ids of runs that have begun to their numbers of ranks, which are fixed.

        Raises ValueError in two cases:
        - The user chose a number of ranks on which a size does not fit into memory.
        - No number of ranks up to `num_slots` has enough memory for a size at AUTO.
        """
        self.require_memory()
        hours: dict[str, float] = defaultdict(float)
        for node_id, (group, _) in self._runs.items():
            if self.ranks.number_of(group.size) == AUTO:
                hours[group.size] += self._hours[node_id]
        of_run = [
            (node_id, begun[node_id])
            for node_id, (group, run) in self._runs.items()
            if group.size in hours and begun.get(node_id) in _divisors(run)
        ]
        ranks = replace(self.ranks, of_run=(*self.ranks.of_run, *of_run))
        possible = {size: self._possible(size, num_slots) for size in hours}

        def with_numbers(numbers: Mapping[str, int]) -> Ranks:
            return replace(ranks, of_size=(*ranks.of_size, *numbers.items()))

        before: dict[str, int] = {}
        chosen = {size: numbers[0] for size, numbers in possible.items()}
        while chosen != before:
            before = dict(chosen)
            for size in sorted(hours, key=lambda size: -hours[size]):
                ends = {}
                for number in possible[size]:
                    candidate = with_numbers(chosen | {size: number})
                    ends[number] = round(self.forecast(num_slots, candidate).hours, 6)
                chosen[size] = min(ends, key=lambda number: (ends[number], number))
        return with_numbers(chosen)

    def require_memory(self) -> None:
        """Raises ValueError if a run does not fit into GPU memory on the user's number of ranks."""
        checkpointing = self.ranks.checkpointing
        for group, run in self._largest.items() if self.machine.device == "cuda" else ():
            if self.ranks.number_of(group.size) == AUTO:
                continue
            number = self.ranks.of(run, group.size)
            available = self._memory_bytes(number)
            needed = plan_passes(run, number, self.machine, "cuda", checkpointing).memory.total
            if needed > available:
                fewest = fewest_ranks(run, self.machine, checkpointing)
                expected = (
                    f"{fewest or 'a machine with more memory'} for {group.size}: a rank of"
                    f" {group.method} needs {needed / GIB:.3g} GiB, of {available / GIB:.3g} GiB"
                )
                raise invalid("num_workers", number, expected)

    def _memory_bytes(self, num_ranks: int) -> float:
        return self.machine.memory_bytes * (self.share if num_ranks == 1 else 1.0)

    def _possible(self, size: str, num_slots: int) -> list[int]:
        runs = [run for group, run in self._largest.items() if group.size == size]
        widest = max(runs, key=lambda run: run.micro_batch)
        numbers = [n for n in _divisors(widest) if all(self._fits(run, n) for run in runs)]
        if not numbers:
            raise self.ranks.too_small(size)
        fewest = numbers[0]
        if num_slots and fewest > num_slots:
            expected = f"at least {fewest} GPUs, the ranks that a run of {size} needs"
            raise invalid("hardware", f"{num_slots}x{self.machine.name}", expected)
        if self.machine.device != "cuda" or (self.share < 1 and fewest == 1):
            return [fewest]
        most = min(MACHINE_RANKS, num_slots or MACHINE_RANKS)
        most = min(most, widest.micro_batch * widest.model.seq_len // LEAST_PASS_TOKENS)
        costs = {
            n: sum(
                self._hours[node_id] * self._factor(group, math.gcd(n, run.micro_batch))
                for node_id, (group, run) in self._runs.items()
                if group.size == size
            )
            for n in numbers
            if n <= max(fewest, most)
        }
        return [n for n, cost in costs.items() if cost <= MOST_HOURS * min(costs.values())]

    def _fits(self, run: RunConfig, number: int) -> bool:
        number = math.gcd(number, run.micro_batch)
        machine = replace(self.machine, memory_bytes=self._memory_bytes(number))
        return fits(run, number, machine, self.ranks.checkpointing)

    def _factor(self, group: RunGroup, number: int) -> float:
        if (group, number) not in self._added:
            run = self._largest[group]
            exchanged = exchange_hours(run, number, self.machine, self.ranks.checkpointing)
            self._added[group, number] = exchanged / training_hours(run, self.machine)
        return 1 + self._added[group, number]

    def forecast(
        self, num_slots: int, ranks: Ranks | None = None, done: Collection[str] = ()
    ) -> Forecast:
        """Predicts how long a study still takes if no machine crashes.

        `done` contains the ids of nodes that have ended. `num_slots` is as in `choose`. Raises
        ValueError if a node needs more slots than exist.
        """
        ranks = ranks or self.ranks
        # A slot is the share of a GPU that a run of one rank gets.
        per_gpu = math.floor(1 / self.share + 1e-9)
        left = [node for node in self.nodes if node.id not in done]
        hours = {node.id: per_gpu * self._hours[node.id] for node in left}
        widths = dict.fromkeys(hours, 1)
        for node_id, (group, run) in self._runs.items():
            if node_id in hours and (number := ranks.of(run, group.size)) > 1:
                hours[node_id] = self._hours[node_id] * self._factor(group, number) / number
                widths[node_id] = number * per_gpu
        slots = num_slots * per_gpu or sum(widths.values())
        makespan = predict_makespan(left, hours, slots, widths)
        used = sum(hours[node_id] * width for node_id, width in widths.items())
        return Forecast(makespan, 1 - used / (makespan * slots) if makespan else 0.0)


def predict_makespan(
    nodes: Sequence[Node],
    hours: Mapping[str, float],
    num_slots: int,
    ranks: Mapping[str, int] | None = None,
) -> float:
    """Returns the hours from the start of a study until its last node finishes.

    `hours` maps ids to hours. `ranks` maps ids to the number of GPUs or CPU slots that a node
    occupies, by default 1. Raises ValueError if a node needs more than `num_slots`.

    A node can start when the runs that it needs have finished and enough slots are free. Runs
    outside `nodes` are considered finished. Nodes start in the engine's order: evaluations, then
    the runs with the most ranks, then those with the longest chain of dependent nodes, in hours. If
    a node does not fit, the next node that fits starts. Unlike in the engine, each evaluation is a
    separate task.
    """
    widths = {node.id: (ranks or {}).get(node.id, 1) for node in nodes}
    widest = max(widths.values(), default=1)
    if widest > num_slots:
        raise invalid("num_slots", num_slots, f"at least {widest}, the ranks of one node")

    paths = longest_paths({node.id: node.needs for node in nodes}, hours)
    order = sorted(nodes, key=lambda node: (node.is_run, -widths[node.id], -paths[node.id]))
    num_needed = [len(node.needs & widths.keys()) for node in order]
    dependants: dict[str, list[int]] = {node.id: [] for node in order}
    for index, node in enumerate(order):
        for needed in node.needs & widths.keys():
            dependants[needed].append(index)

    ready = [index for index, number in enumerate(num_needed) if number == 0]
    running: list[tuple[float, int]] = []
    now, num_free = 0.0, num_slots
    while ready or running:
        for index in [*ready]:
            if num_free == 0:
                break
            node = order[index]
            if widths[node.id] <= num_free:
                ready.remove(index)
                num_free -= widths[node.id]
                heapq.heappush(running, (now + hours[node.id], index))
        now, ended = heapq.heappop(running)
        num_free += widths[order[ended].id]
        for index in dependants[order[ended].id]:
            num_needed[index] -= 1
            if num_needed[index] == 0:
                bisect.insort(ready, index)
    return now
