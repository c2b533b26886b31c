"""Ranks without a network."""

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture
def as_rank():
    """Makes this process a rank of many whose collectives do nothing; what it holds is what a real
    rank holds."""

    def start(rank, num_ranks):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)

    yield start
    dist.destroy_process_group()
