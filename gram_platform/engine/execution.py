"""Says how and where nodes are executed: storage, device, threads, checkpoints, placement.

Plans have these values too, so nothing here imports what takes seconds.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gram_platform.config import RunConfig
from gram_platform.corpora.packed import PackedCorpus
from gram_platform.store import Store
from gram_platform.store.data import NOTHING_AHEAD, open_corpus
from gram_platform.store.folders import RemoteFolder, open_folder

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Ray's label with the id of a machine.
NODE_ID = "ray.io/node-id"
# Most seconds between two checkpoints: the work that a lost machine may cost [ours].
LONGEST_INTERVAL_S = 1800.0


@dataclass(frozen=True)
class Division:
    """How a run's micro-batches are divided over ranks and passes, and what a rank needs."""

    num_ranks: int = 1
    # Passes in which a rank runs its share of a micro-batch.
    num_passes: int = 1
    # Micro-batches in one pass; 1 on CPUs, where results repeat.
    num_merged: int = 1
    # The planner's estimate for the fullest rank; 0 without an estimate.
    memory_bytes: int = 0
    # The planner's estimate in words, and what would need less memory.
    advice: str = ""


@dataclass(frozen=True)
class Placement:
    """What was decided for a node before it starts; an evaluation has one rank."""

    # One for each number of ranks that the run may have, the most ranks first.
    divisions: tuple[Division, ...] = (Division(),)
    hours: float = 0.0
    # Whether torch.compile compiles blocks and loss.
    compiled: bool = False

    @property
    def fewest(self) -> Division:
        """The division over the fewest ranks."""
        return self.divisions[-1]


ON_ONE_RANK = Placement()
# Placements by id, for nodes that have one rank each.
ALL_ON_ONE_RANK: Mapping[str, Placement] = {}


@dataclass(frozen=True)
class Execution:
    """How a node is executed.

    On one machine's CPUs only `num_threads` and `placement` change a result.
    """

    storage: str
    num_threads: int = 1
    placement: Placement = ON_ONE_RANK
    # 0 checkpoints after every step, and waits until the last checkpoint is written.
    checkpoint_every_s: float = 30.0
    # Share of the time that commits may take; 0: only `checkpoint_every_s` counts.
    commit_share: float = 0.0
    lease_s: float = 30.0
    device: str = "cpu"
    # Ranks that wait longer for one another give up and start again.
    collective_timeout_s: float = 600.0
    # A run of one rank without a step for so long, or an unfinished evaluation, starts again.
    stall_timeout_s: float = 7200.0
    # Recomputes blocks in the backward pass, which takes less memory and more time.
    activation_checkpointing: bool = False
    # Rejects algorithms whose sums have no fixed order; CPUs have none of these.
    deterministic: bool = False
    # The submission's code as `provenance.Code` names it, for `timing()`.
    code: str = ""

    def commit_interval(self, commit_s: float) -> float:
        """Returns the seconds between two commits; the last one stopped training for `commit_s`."""
        if not self.commit_share:
            return self.checkpoint_every_s
        return min(max(self.checkpoint_every_s, commit_s / self.commit_share), LONGEST_INTERVAL_S)

    def store(self) -> Store:
        return Store(self.storage).open_for_writing()

    def with_placement(self, placement: Placement) -> "Execution":
        return replace(self, placement=placement)

    @property
    def num_ranks(self) -> int:
        """The fewest ranks of the node."""
        return self.placement.fewest.num_ranks

    def corpus(self, data_id: str, ahead: Mapping[str, int] = NOTHING_AHEAD) -> PackedCorpus:
        """Opens the packed data; ValueError if this machine has none and cannot fetch it."""
        return open_corpus(Store(self.storage), data_id, ahead)

    def corpus_of(self, run: RunConfig) -> PackedCorpus:
        """Opens a run's data; an object store's pools (first rows of domains) are fetched ahead."""
        ahead: dict[str, int] = {}
        for part in (part for budget in run.data.domains for part in budget.pool):
            ahead[part.domain] = max(ahead.get(part.domain, 0), part.first + part.num_sequences)
        return self.corpus(run.data.data_id, ahead)


@dataclass(frozen=True)
class Resources:
    """What Ray reserves for a rank or a run, and what the cluster may be asked for."""

    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    # For a run of one rank or an evaluation; below 1 several share a GPU.
    gpus_per_run: float = 0.0
    # GPUs of the machines that an autoscaler starts for several ranks.
    gpus_per_machine: int = 8
    # Most GPUs requested at once (CPU slots where there are no GPUs); 0 for no limit.
    max_gpus: int = 0
    # Ids of machines that take no process, see `Cordon`.
    cordoned: tuple[str, ...] = ()

    @property
    def label_selector(self) -> dict[str, str]:
        """The machines that may take a process, as Ray's options."""
        return {NODE_ID: f"!in({','.join(self.cordoned)})"} if self.cordoned else {}

    @property
    def of_slot(self) -> dict[str, Any]:
        """What a process for nodes of one rank reserves, as Ray's options."""
        reserved = {"num_cpus": self.cpus_per_rank, "num_gpus": self.gpus_per_run}
        return reserved | {"label_selector": self.label_selector}

    @property
    def of_rank(self) -> dict[str, float]:
        """What one of several ranks reserves, as Ray's resources."""
        gpus = {"GPU": self.gpus_per_rank} if self.gpus_per_rank else {}
        return {"CPU": self.cpus_per_rank, **gpus}

    def compute_request(self, num_ranks: int) -> dict[str, float]:
        gpus = num_ranks * self.gpus_per_rank if num_ranks > 1 else self.gpus_per_run
        return {"CPU": num_ranks * self.cpus_per_rank, "GPU": gpus}


def results_place(storage: str, *folder: str) -> tuple[str, "FileSystem | None"]:
    """Returns Ray's `storage_path` and `storage_filesystem` for a folder of the storage.

    A URL has the storage's own file system, because Ray would look for credentials elsewhere.
    ValueError for a link in the folder.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    place = open_folder(storage).child(*folder)
    if isinstance(place, RemoteFolder):
        return place.path, PyFileSystem(FSSpecHandler(place.filesystem))
    # Ray would write through a link.
    place.require_folders()
    return place.path, None


def owner() -> str:
    """Names this process in leases: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"
