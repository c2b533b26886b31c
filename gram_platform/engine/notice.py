"""The notice that a process is about to be taken away: SIGTERM, or Ray draining its machine."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import ray
from ray.exceptions import RaySystemError

POLL_S = 10.0  # between two questions to Ray


class Notice:
    """Whether this process has been told to end."""

    def __init__(self) -> None:
        self._given = self._is_asking = False
        self._next_poll = time.monotonic() + POLL_S

    def give(self) -> None:
        self._given = True

    @property
    def given(self) -> bool:
        """Has Ray asked now and then, beside the work: a head that is away answers only when it is back."""
        if not self._given and not self._is_asking and time.monotonic() >= self._next_poll:
            self._is_asking = True
            threading.Thread(target=self._ask, name="draining", daemon=True).start()
        return self._given

    def _ask(self) -> None:
        if is_draining():
            self.give()
        self._next_poll = time.monotonic() + POLL_S
        self._is_asking = False

    def leave(self) -> None:
        """Ends the process as an unhandled SIGTERM would have: to whoever started it, it was taken away."""
        raise SystemExit(128 + signal.SIGTERM)


def is_draining() -> bool:
    """Whether Ray takes no more work for this machine, as before a preemption that it was told of."""
    if not ray.is_initialized():
        return False
    from ray._private.state import state  # Ray's libraries ask here; there is no public way

    try:
        return ray.get_runtime_context().get_node_id() in state.get_draining_nodes()
    except RaySystemError:  # the head is away, and may come back
        return False


@contextlib.contextmanager
def termination_notice() -> Iterator[Notice]:
    """While the block runs, the first SIGTERM is noted and the work goes on; the second acts as before the block.

    Only a main thread can listen. Elsewhere the block has the notice of `listen`, if the process called that; a trial
    of Ray Tune does not, and SIGTERM ends its process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _noted or Notice()
        return
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    try:
        yield _note_the_first()
    finally:
        signal.signal(signal.SIGTERM, before)


_noted: Notice | None = None  # of this process, which trains in another thread than its main one


def listen() -> None:
    """Called in the main thread of a process that will train in another one: from now on a first SIGTERM is noted."""
    global _noted
    _noted = _note_the_first()


def _note_the_first() -> Notice:
    notice, before = Notice(), signal.getsignal(signal.SIGTERM) or signal.SIG_DFL

    def note(number: int, frame: object) -> None:
        notice.give()
        signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, note)
    return notice
