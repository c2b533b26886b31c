"""What a simulated study is made of: a cluster, tasks, an attempt at one, and how it all ended."""

import math
from dataclasses import dataclass

from gram_platform.identity import require_int, require_real

HOUR_S = 3600.0


class DoesNotFinish(RuntimeError):
    """A task gets nowhere: its machines are interrupted, time after time, before it has saved anything more."""


@dataclass(frozen=True)
class SimulatedCluster:
    """A cluster's parameters; the defaults are round figures for 8-GPU spot machines [ours]."""

    num_machines: int = 8  # at most
    slots_per_machine: int = 8  # ranks at once
    interruptions_per_hour: float = 0.05  # of one machine, exponential; 0: on demand
    machine_start_s: float = 300.0  # from asking to usable
    group_start_s: float = 60.0  # of a node's processes, each time it starts or continues
    recovery_s: float = 30.0  # until a lost node is started again: its lease
    idle_s: float = 300.0  # without work until a machine is given back
    storage_bytes_per_s: float = 1e9  # of one node
    checkpoint_every_s: float = 600.0
    dollars_per_machine_hour: float = 24.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("cluster.num_machines", self.num_machines, 1)
        require_int("cluster.slots_per_machine", self.slots_per_machine, 1)
        require_int("cluster.seed", self.seed, 0)
        for name in ("interruptions_per_hour", "machine_start_s", "group_start_s", "recovery_s", "idle_s"):
            require_real(f"cluster.{name}", getattr(self, name), 0.0)
        for name in ("storage_bytes_per_s", "checkpoint_every_s"):
            require_real(f"cluster.{name}", getattr(self, name), 0.0, open_low=True)
        require_real("cluster.dollars_per_machine_hour", self.dollars_per_machine_hour, 0.0)


@dataclass(frozen=True)
class Task:
    """A node as the simulation sees it: `work_s` on all its `ranks` at once; no checkpoints without their bytes."""

    id: str
    needs: frozenset[str]
    work_s: float
    ranks: int = 1
    checkpoint_bytes: float = 0.0
    result_bytes: float = 0.0
    grain_s: float = 0.0  # of one step, after which a checkpoint may stand; 0: anywhere
    is_first: bool = False  # evaluations start before runs: they are short and fill the table

    def __post_init__(self) -> None:
        require_real("task.work_s", self.work_s, 0.0)
        require_int("task.ranks", self.ranks, 1)

    def interval_s(self, wanted_s: float) -> float:
        """Work between two checkpoints when one is wanted every `wanted_s`."""
        if not self.checkpoint_bytes:
            return max(self.work_s, 1.0)
        return math.ceil(wanted_s / self.grain_s) * self.grain_s if self.grain_s else wanted_s


@dataclass(frozen=True)
class Outcome:
    """One replication. Hours are slot-hours: busy = useful + retrained + overhead, paid = busy + idle."""

    makespan_hours: float
    cost: float
    paid_hours: float
    busy_hours: float
    useful_hours: float
    retrained_hours: float  # trained again because it was lost
    overhead_hours: float  # starting, reading and writing checkpoints
    num_interruptions: int  # of machines that were at work
    most_interruptions: int  # of one node

    @property
    def idle_hours(self) -> float:
        return self.paid_hours - self.busy_hours


@dataclass(frozen=True)
class Progress:
    """What an attempt has done after some seconds: trained, of that saved, and all that was neither."""

    trained_s: float
    saved_s: float
    overhead_s: float


@dataclass(frozen=True)
class Timeline:
    """An undisturbed attempt: start, work with a checkpoint after every interval but the last, result."""

    start_s: float
    work_s: float
    interval_s: float
    write_s: float
    result_s: float

    @property
    def num_checkpoints(self) -> int:
        return max(0, math.ceil(self.work_s / self.interval_s) - 1)

    @property
    def duration_s(self) -> float:
        return self.start_s + self.work_s + self.num_checkpoints * self.write_s + self.result_s

    def after(self, elapsed_s: float) -> Progress:
        """Progress when the attempt is cut off; a checkpoint counts once it is written whole."""
        running_s = max(0.0, elapsed_s - self.start_s)
        cycle_s = self.interval_s + self.write_s
        saved = min(self.num_checkpoints, math.floor(running_s / cycle_s))
        rest_s = running_s - saved * cycle_s
        open_s = self.interval_s if saved < self.num_checkpoints else self.work_s - saved * self.interval_s
        trained_s = saved * self.interval_s + min(rest_s, open_s)
        return Progress(trained_s, saved * self.interval_s, elapsed_s - trained_s)
