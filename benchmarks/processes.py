"""Runs iterators in their own processes, each with its own core, memory allocator or process
group."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any


class WorkerProcess:
    """Creates and advances an iterator in another process, which is idle between items."""

    def __init__(self, make: Callable[..., Iterator], *arguments: Any):
        """`make`, its arguments and the items must be picklable."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Starts computing the next item."""
        self._pipe.send("next")

    def finish(self) -> Any:
        """Returns that item. EOFError if the process has ended."""
        return self._pipe.recv()

    def __next__(self) -> Any:
        self.begin()
        return self.finish()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def step_together(workers: Sequence[WorkerProcess]) -> None:
    """Advances all by one item at the same time."""
    for worker in workers:
        worker.begin()
    for worker in workers:
        worker.finish()


def _serve(pipe: Connection, make: Callable[..., Iterator], arguments: tuple) -> None:
    items = make(*arguments)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send(next(items))
