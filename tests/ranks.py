"""Real gloo ranks for tests: processes of a server that has imported torch once."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.queues import SimpleQueue

import torch
import torch.distributed as dist

# `torch._dynamo`: the first optimizer of a process imports it, which takes half a second
PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "gram_platform.engine.ranks",
    "tests.tiny",
]


class Ranks:
    """`worker(rank, num_ranks, *args)` in a process a rank; leaving the block kills what is
    left."""

    def __init__(self, num_ranks: int, worker: Callable, *args):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        # from rank 0 to the others: a number that is chosen here could be taken before it is bound
        self._port = context.SimpleQueue()
        arguments = [(rank, num_ranks, self._port, worker, args) for rank in range(num_ranks)]
        self.processes = [context.Process(target=_run_rank, args=a, daemon=True) for a in arguments]
        for process in self.processes:
            process.start()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def kill(self, rank: int) -> None:
        """kill -9 of one rank; the others then fail or hang, and are ended as Ray Train ends
        them."""
        os.kill(self.processes[rank].pid, signal.SIGKILL)
        self.processes[rank].join()
        time.sleep(0.1)  # what the others do when a peer is gone is part of the test

    def join(self) -> None:
        """Until all ranks have ended, or one has failed: all must end well."""
        while (alive := [p.sentinel for p in self.processes if p.is_alive()]) and not any(
            self.exit_codes
        ):
            wait(alive)
        assert self.exit_codes == [0] * len(self.processes)

    @property
    def exit_codes(self) -> list[int | None]:
        return [process.exitcode for process in self.processes]

    @property
    def at_work(self) -> bool:
        return all(process.is_alive() for process in self.processes)


def run_ranks(num_ranks: int, worker: Callable, *args) -> None:
    """Runs ranks to their end."""
    with Ranks(num_ranks, worker, *args) as ranks:
        ranks.join()


def _run_rank(rank: int, num_ranks: int, port: SimpleQueue, worker: Callable, args: tuple) -> None:
    torch.set_num_threads(1)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, num_ranks, is_master=True, wait_for_workers=False)
        for _ in range(num_ranks - 1):
            port.put(store.port)
    else:
        store = dist.TCPStore("127.0.0.1", port.get(), num_ranks, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    worker(rank, num_ranks, *args)
    dist.barrier()
    dist.destroy_process_group()
