"""Contestants in processes of their own: with a core, a memory allocator or a process group that is theirs alone."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol


class WorkerProcess:
    """An iterator that is made and advanced in a process of its own; while nobody asks it uses no processor."""

    def __init__(self, make: Callable[..., Iterator], *arguments: Any):
        """`make` and its arguments must be picklable, and so must what it yields."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Lets it go on to its next item."""
        self._pipe.send("next")

    def finish(self) -> Any:
        """The item that it was let go on to. EOFError when its process has ended."""
        return self._pipe.recv()

    def __next__(self) -> Any:
        self.begin()
        return self.finish()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Steppable(Protocol):
    """What goes on when it is told to, and is waited for afterwards."""

    def begin(self) -> None: ...

    def finish(self) -> Any: ...


def step_together(contestants: Sequence[Steppable]) -> None:
    """An item of each, at the same time."""
    for contestant in contestants:
        contestant.begin()
    for contestant in contestants:
        contestant.finish()


def _serve(pipe: Connection, make: Callable[..., Iterator], arguments: tuple) -> None:
    items = make(*arguments)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send(next(items))
