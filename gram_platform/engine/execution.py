"""How nodes are executed here: where, with how many ranks and threads, and how often they are saved."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gram_platform.config import AnyEvaluation, RunConfig
from gram_platform.corpora import PackedCorpus
from gram_platform.planner import Ranks
from gram_platform.store import Store
from gram_platform.store.root import open_corpus


@dataclass(frozen=True)
class Execution:
    """How nodes are executed here. Nothing in it changes a result on one machine but `num_threads` and `num_ranks`."""

    storage: str
    num_threads: int = 1
    num_ranks: int = 1  # of every run, unless `ranks` says otherwise
    ranks: Ranks | None = None
    checkpoint_every_s: float = 30.0
    lease_s: float = 30.0
    device: str = "cpu"
    collective_timeout_s: float = 600.0  # after which ranks that wait for one another give up, and start again
    activation_checkpointing: bool = False  # blocks are computed again in the backward pass: less memory, more time
    compiled: bool = False  # by torch.compile; not tried on a GPU yet, and slower on CPUs

    def store(self) -> Store:
        return Store(self.storage).open_for_writing()

    def of_node(self, config: RunConfig | AnyEvaluation, tags: Mapping[str, str]) -> "Execution":
        """As one node is executed: a run on its own number of ranks, an evaluation on one. ValueError as `Ranks.of`."""
        if not isinstance(config, RunConfig):
            return replace(self, num_ranks=1, ranks=None)
        if self.ranks is None:
            return self
        return replace(self, num_ranks=self.ranks.of(config, tags.get("size", "")), ranks=None)

    def corpus(self, data_id: str) -> PackedCorpus:
        """The packed data on this machine; ValueError when it cannot be had here."""
        return open_corpus(Store(self.storage), data_id)


@dataclass(frozen=True)
class Resources:
    """What Ray reserves for one rank."""

    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0


def owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
