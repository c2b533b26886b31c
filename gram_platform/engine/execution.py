"""Defines the settings for executing a node, such as storage, device and placement.

Commands that only make a plan use these settings too, and must start quickly. So this module
imports no library that takes seconds to import.
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

NODE_ID = "ray.io/node-id"
# The most seconds between two checkpoints, and thus of work that a lost machine costs [ours].
LONGEST_INTERVAL_S = 1800.0


@dataclass(frozen=True)
class Division:
    """How a micro-batch is divided among ranks, and in how many passes a rank runs its share."""

    num_ranks: int = 1
    num_passes: int = 1
    # Micro-batches in one pass. It is 1 on CPUs, where results must repeat exactly.
    num_merged: int = 1
    # The planner's estimate for the rank that needs the most memory, or 0.
    memory_bytes: int = 0
    # The planner's estimate and its advice on using less memory, as text.
    advice: str = ""


@dataclass(frozen=True)
class Placement:
    """The planner's choices for a node before it starts. An evaluation always has one rank."""

    # One division for each number of ranks that the run may have, the most ranks first.
    divisions: tuple[Division, ...] = (Division(),)
    hours: float = 0.0
    # Whether torch.compile compiles the blocks and the loss.
    compiled: bool = False

    @property
    def fewest(self) -> Division:
        return self.divisions[-1]


ON_ONE_RANK = Placement()
# Placements by node id. A node without a placement has one rank.
ALL_ON_ONE_RANK: Mapping[str, Placement] = {}


@dataclass(frozen=True)
class Execution:
    """The settings for executing a node.

    On the CPUs of one machine, no setting except `num_threads` and `placement` changes a result.
    """

    storage: str
    num_threads: int = 1
    placement: Placement = ON_ONE_RANK
    # With 0 every step is checkpointed, and waits until the previous checkpoint is written.
    checkpoint_every_s: float = 30.0
    # The share of the time that commits may take. With 0 only `checkpoint_every_s` counts.
    commit_share: float = 0.0
    lease_s: float = 30.0
    device: str = "cpu"
    # Ranks that wait longer than this for one another time out, and the run restarts.
    collective_timeout_s: float = 600.0
    # A single-rank run restarts after this time without a step, an evaluation after this time.
    stall_timeout_s: float = 7200.0
    # Whether the backward pass recomputes blocks, which takes less memory and more time.
    activation_checkpointing: bool = False
    # Whether torch rejects algorithms, found only on GPUs, whose sums have no fixed order.
    deterministic: bool = False
    # The submission's code as `provenance.Code` names it, for `timing()`.
    code: str = ""

    def commit_interval(self, commit_s: float) -> float:
        """Returns the seconds between two commits if a commit pauses training for `commit_s`."""
        if not self.commit_share:
            return self.checkpoint_every_s
        return min(max(self.checkpoint_every_s, commit_s / self.commit_share), LONGEST_INTERVAL_S)

    def store(self) -> Store:
        return Store(self.storage).open_for_writing()

    def with_placement(self, placement: Placement) -> "Execution":
        return replace(self, placement=placement)

    @property
    def num_ranks(self) -> int:
        """The smallest number of ranks that the node may have."""
        return self.placement.fewest.num_ranks

    def corpus(self, data_id: str, ahead: Mapping[str, int] = NOTHING_AHEAD) -> PackedCorpus:
        """Opens packed data like `open_corpus`, and raises the same errors."""
        return open_corpus(Store(self.storage), data_id, ahead)

    def corpus_of(self, run: RunConfig) -> PackedCorpus:
        """Opens a run's data. In an object store, also starts to prefetch the run's sequences."""
        ahead: dict[str, int] = {}
        for budget in run.data.domains:
            for part in budget.pool:
                ahead[part.domain] = max(ahead.get(part.domain, 0), part.first + part.num_sequences)
        return self.corpus(run.data.data_id, ahead)


@dataclass(frozen=True)
class Resources:
    """What Ray reserves for a rank or a run, and the limits on what a driver requests from Ray."""

    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    # GPUs of a single-rank run or an evaluation. If below 1, several of them share a GPU.
    gpus_per_run: float = 0.0
    # GPUs of each machine that an autoscaler starts for multi-rank runs.
    gpus_per_machine: int = 8
    # The most GPUs (without GPUs, ranks) that are requested at once, or 0 for no limit.
    max_gpus: int = 0
    cordoned: tuple[str, ...] = ()

    @property
    def label_selector(self) -> dict[str, str]:
        """Ray's option that excludes the cordoned machines, or {} if there are none."""
        return {NODE_ID: f"!in({','.join(self.cordoned)})"} if self.cordoned else {}

    @property
    def of_slot(self) -> dict[str, Any]:
        """Ray's options for a slot, a process that executes single-rank nodes."""
        amounts = {"num_cpus": self.cpus_per_rank, "num_gpus": self.gpus_per_run}
        return amounts | {"label_selector": self.label_selector}

    @property
    def of_rank(self) -> dict[str, float]:
        """The resources that Ray reserves for each rank of a multi-rank run."""
        gpus = {"GPU": self.gpus_per_rank} if self.gpus_per_rank else {}
        return {"CPU": self.cpus_per_rank, **gpus}

    def compute_request(self, num_ranks: int) -> dict[str, float]:
        """Returns the resources to request from Ray for a node with `num_ranks` ranks."""
        gpus = num_ranks * self.gpus_per_rank if num_ranks > 1 else self.gpus_per_run
        return {"CPU": num_ranks * self.cpus_per_rank, "GPU": gpus}


def results_place(storage: str, *folder: str) -> tuple[str, "FileSystem | None"]:
    """Returns Ray's `storage_path` and `storage_filesystem` for a folder of the storage.

    If the storage is a URL, returns the file system of the storage, because Ray's file system would
    look for credentials in other places. If the storage is a local folder, the file system is None.
    Raises ValueError if the folder or one of its parents is a link.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    target = open_folder(storage).child(*folder)
    if isinstance(target, RemoteFolder):
        return target.path, PyFileSystem(FSSpecHandler(target.filesystem))
    # Ray would write through a link.
    target.require_folders()
    return target.path, None


def owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
