"""The sequences of a plan, read from memory-mapped arrays."""

from collections.abc import Mapping

import numpy as np
import torch

from gram_platform.config import RunConfig
from gram_platform.identity import invalid
from gram_platform.routing import MicroBatch, Plan, domain_permutation, draw_positions

CHUNK = 4096  # draws whose rows are computed at once, so that permutations cost nothing per micro-batch


class PlanReader:
    """Token batches of a plan's micro-batches; `arrays` has [num_sequences, seq_len + 1] for every domain."""

    def __init__(self, config: RunConfig, plan: Plan, arrays: Mapping[str, np.ndarray]):
        self.config, self.plan, self.arrays = config, plan, arrays
        self._chunks: dict[str, tuple[int, np.ndarray]] = {}
        self._budgets = {d.name: d for d in config.data.domains}
        for domain in config.data.domains:
            if domain.name not in arrays:
                raise invalid("data.domains", domain.name, "one of the corpus's: " + ", ".join(arrays))
            available = len(arrays[domain.name])
            if domain.num_sequences > available:
                allowed = f"at most the corpus's {available} training sequences"
                raise invalid(f"data.domains[{domain.name}].num_sequences", domain.num_sequences, allowed)

    def rows(self, micro_batch: MicroBatch) -> np.ndarray:
        """Row numbers [micro_batch] in the domain's array: run order, then the domain's permutation."""
        domain, size = micro_batch.domain, self.config.micro_batch
        first, rows = self._chunks.get(domain, (0, np.empty(0, dtype=np.int64)))
        if not first <= micro_batch.cursor <= first + len(rows) - size:
            first, rows = micro_batch.cursor, self._chunk(domain, micro_batch.cursor)
            self._chunks[domain] = first, rows
        return rows[micro_batch.cursor - first :][:size]

    def _chunk(self, domain: str, cursor: int) -> np.ndarray:
        count = max(CHUNK // self.config.micro_batch, 1) * self.config.micro_batch
        positions = draw_positions(self.config.seed, self._budgets[domain], cursor, count)
        return domain_permutation(self.config.data.data_id, domain, len(self.arrays[domain]))(positions)

    def tokens(self, micro_batch: MicroBatch, rank: int = 0, num_ranks: int = 1) -> torch.Tensor:
        """int64 [micro_batch / num_ranks, seq_len + 1]: this rank's contiguous share."""
        rows = self.rows(micro_batch)
        share = len(rows) // num_ranks
        mine = rows[rank * share : (rank + 1) * share]
        return torch.from_numpy(self.arrays[micro_batch.domain][mine].astype(np.int64))
