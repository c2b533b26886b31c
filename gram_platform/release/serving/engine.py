"""The thread that continues sequences: orders come in, tokens go out as they are drawn, nobody waits for another's end.

Between two steps ended, abandoned and late orders leave their rows, and one group of new ones takes up free rows: the
rows at work wait while its prompts are read, at most MAX_PROMPT_TOKENS of them or a single longer one.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gram_platform.config.identity import require_int, require_real
from gram_platform.release.serving.batch import Batch, Order, Sequence
from gram_platform.release.serving.policy import Grant

LOG = logging.getLogger("ray.serve.gram.engine")  # below the logger that Ray Serve writes to its files
BUSY, LATE, FAILED = "busy", "late", "failed"  # ends that are no completion's
MAX_PROMPT_TOKENS = 8192  # read between two steps, padding included: rows at work wait for them
IDLE_S = 1.0  # between two looks at the clock without work
LOOK_S = 0.1  # between two looks for late orders


@dataclass(frozen=True)
class Delivery:
    """Some of an order's tokens; the last one says why it is the last. The first one has neither: it is taken up."""

    tokens: tuple[int, ...] = ()
    end: str = ""  # stop, length, busy, late, failed


@dataclass(frozen=True)
class EngineLimits:
    """How much one engine takes up; more is refused as busy."""

    num_rows: int = 64
    num_waiting: int = 512
    deadline_s: float = 60.0  # from an order's arrival to its end
    stall_s: float = 120.0  # without a step or prompts read, though there is work: then the engine counts as dead

    def __post_init__(self) -> None:
        require_int("num_rows", self.num_rows, 1)
        require_int("num_waiting", self.num_waiting, 0)
        require_real("deadline_s", self.deadline_s, 0.0, open_low=True)
        require_real("stall_s", self.stall_s, 0.0, open_low=True)


Receive = Callable[[Delivery], None]


@dataclass(eq=False)
class _Job:
    sequence: Sequence
    receive: Receive
    deadline: float
    num_sent: int = 0


class Engine:
    """Runs a batch in a thread of its own. Deliveries are made from that thread; `receive` must not block."""

    def __init__(self, batch: Batch, limits: EngineLimits):
        self.limits = limits
        self._batch = batch
        self._lock = threading.Lock()  # of `_num_open`, and of arriving before the end
        self._arrivals: queue.SimpleQueue[_Job | int | None] = queue.SimpleQueue()  # int: abandoned; None: wake up
        self._waiting: deque[_Job] = deque()
        self._at_work: dict[int, _Job] = {}
        self._num_open = 0
        self._closed = False
        self._last_step = self._next_look = time.monotonic()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gram-engine", daemon=True)
        self._thread.start()

    def submit(self, order: Order, grant: Grant, receive: Receive) -> int | None:
        """The order's number; None, and nothing is delivered, when there are too many. Checks nothing of the order."""
        job = _Job(Sequence(order, grant), receive, time.monotonic() + self.limits.deadline_s)
        with self._lock:
            if self._closed or self._num_open >= self.limits.num_rows + self.limits.num_waiting:
                return None
            self._num_open += 1
            self._arrivals.put(job)
        return job.sequence.number

    def abandon(self, number: int) -> None:
        """Nobody waits for this order any more; nothing when it has ended."""
        self._arrivals.put(number)

    def check(self) -> None:
        """RuntimeError when the thread has died or stands still with work to do."""
        if self.failure is not None or not self._thread.is_alive():
            raise RuntimeError(f"the engine has stopped: {self.failure!r}")
        idle_s = time.monotonic() - self._last_step
        if idle_s > self.limits.stall_s:
            raise RuntimeError(f"the engine has made no step for {idle_s:.0f} s")

    def load(self) -> tuple[int, int]:
        """(sequences at work, orders that wait)."""
        return len(self._at_work), max(0, self._num_open - len(self._at_work))

    def close(self) -> None:
        """End the thread; open orders end as failed."""
        self._closed = True
        self._arrivals.put(None)
        self._thread.join()

    # ------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            while not self._closed:
                self._collect()
                self._drop_late()
                self._admit()
                self._deliver(self._batch.step())
        except BaseException as error:
            self.failure = error
            LOG.exception("the engine has stopped")
        finally:
            with self._lock:
                self._closed = True
            self._collect()
            for job in [*self._at_work.values(), *self._waiting]:
                self._end(job, Delivery(end=FAILED))

    def _collect(self) -> None:
        """Take in what has arrived; wait for it when there is nothing else to do."""
        idle = not self._at_work and not self._waiting and not self._closed
        try:
            arrival = self._arrivals.get(timeout=IDLE_S) if idle else self._arrivals.get_nowait()
            while True:
                if isinstance(arrival, _Job):
                    self._waiting.append(arrival)
                elif arrival is not None:
                    self._drop(lambda job, number=arrival: job.sequence.number == number)
                arrival = self._arrivals.get_nowait()
        except queue.Empty:
            return

    def _drop_late(self) -> None:
        now = time.monotonic()
        if now > self._next_look:
            self._next_look = now + LOOK_S
            self._drop(lambda job: now > job.deadline)

    def _drop(self, is_over: Callable[[_Job], bool]) -> None:
        """These orders give up their rows and places."""
        for job in [job for job in [*self._at_work.values(), *self._waiting] if is_over(job)]:
            self._batch.remove(job.sequence)
            self._end(job, Delivery(end=LATE))
        self._waiting = deque(job for job in self._waiting if not job.sequence.end)

    def _admit(self) -> None:
        """One group: as many as there are rows for and may be read at once, the oldest first."""
        jobs, longest = [], 0
        while self._waiting and len(jobs) < self._batch.num_free:
            longest = max(longest, len(self._waiting[0].sequence.order.prompt))
            if jobs and longest * (len(jobs) + 1) > MAX_PROMPT_TOKENS:
                break
            jobs.append(self._waiting.popleft())
        if jobs:
            self._at_work |= {job.sequence.number: job for job in jobs}
            self._deliver(self._batch.admit([job.sequence for job in jobs]))

    def _deliver(self, sequences: list[Sequence]) -> None:
        self._last_step = time.monotonic()
        for sequence in sequences:
            job = self._at_work[sequence.number]
            delivery = Delivery(tuple(sequence.drawn[job.num_sent :]), sequence.end)
            job.num_sent = len(sequence.drawn)
            if sequence.end:
                self._end(job, delivery)
            else:
                job.receive(delivery)

    def _end(self, job: _Job, delivery: Delivery) -> None:
        job.sequence.end = delivery.end
        self._at_work.pop(job.sequence.number, None)
        with self._lock:
            self._num_open -= 1
        job.receive(delivery)
