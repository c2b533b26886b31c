"""Runs a batch in a thread, so that new requests do not wait for others to finish.

Between steps, requests that are finished, cancelled or past their deadline leave their rows,
and a group of new requests takes free rows. Active requests wait while the group's prompts are
read. To limit this wait, several prompts together have at most MAX_PROMPT_TOKENS tokens, with
padding.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from gram_platform.config.identity import require_int, require_real
from gram_platform.release.serving.batch import ActiveSequence, Batch, GenerationRequest
from gram_platform.release.serving.policy import Grant

logger = logging.getLogger("ray.serve.gram.engine")
# The `end` of failed requests: codes in `requests.COMMON_REFUSALS`.
BUSY, LATE, FAILED = "busy", "deadline", "interrupted"
MAX_PROMPT_TOKENS = 8192
# The longest time that an idle engine waits for arrivals.
LONGEST_WAIT_S = 1.0
LATE_CHECK_S = 0.1
# The longest time without a step. An idle engine makes steps too.
STALL_S = 120.0


@dataclass(frozen=True)
class Delivery:
    """New tokens of a request. Only the request's last delivery has an `end`."""

    tokens: tuple[int, ...] = ()
    # "", `batch.STOP`, `batch.LENGTH` or the code of a refusal.
    end: str = ""


@dataclass(frozen=True)
class EngineLimits:
    """The limits of an engine. At most `num_rows + num_waiting` requests are open at once."""

    num_rows: int = 64
    num_waiting: int = 512
    # The most seconds from a request's arrival to its end.
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        require_int("num_rows", self.num_rows, 1)
        require_int("num_waiting", self.num_waiting, 0)
        require_real("deadline_s", self.deadline_s, 0.0, open_low=True)


Receive = Callable[[Delivery], None]


@dataclass(eq=False)
class _Job:
    sequence: ActiveSequence
    receive: Receive
    deadline: float
    num_sent: int = 0

    @property
    def holder(self) -> str:
        return self.sequence.grant.holder


class Engine:
    """Runs a batch in a thread. The thread calls the requests' `receive`, which must not block."""

    def __init__(self, batch: Batch, limits: EngineLimits):
        self.limits, self._batch = limits, batch
        # Guards `_num_open`, and `_arrivals` while the engine closes.
        self._lock = threading.Lock()
        # New requests, numbers of abandoned requests, and None, which wakes the thread up.
        self._arrivals: queue.SimpleQueue[_Job | int | None] = queue.SimpleQueue()
        # Waiting requests by holder. No queue is empty.
        self._waiting: dict[str, deque[_Job]] = {}
        self._active_jobs: dict[int, _Job] = {}
        self._num_open, self._closed = 0, False
        self._last_step = self._next_late_check = time.monotonic()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gram-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, grant: Grant, receive: Receive) -> int | None:
        """Queues a request and returns its number. Returns None if the engine is full or closed."""
        deadline = time.monotonic() + self.limits.deadline_s
        job = _Job(ActiveSequence(request, grant), receive, deadline)
        with self._lock:
            if self._closed or self._num_open >= self.limits.num_rows + self.limits.num_waiting:
                return None
            self._num_open += 1
            self._arrivals.put(job)
        return job.sequence.number

    def abandon(self, number: int) -> None:
        """Cancels the request, unless it has ended."""
        self._arrivals.put(number)

    def check(self) -> None:
        """Raises RuntimeError if the thread is dead or stalled."""
        if self.failure is not None or not self._thread.is_alive():
            raise RuntimeError(f"the engine has stopped: {self.failure!r}")
        idle_s = time.monotonic() - self._last_step
        if idle_s > STALL_S:
            raise RuntimeError(f"the engine has made no step for {idle_s:.0f} s")

    def close(self) -> None:
        """Stops the thread. Open requests end with FAILED."""
        self._closed = True
        self._arrivals.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._collect()
                self._drop_late()
                self._admit()
                self._deliver(self._batch.step())
        except BaseException as error:
            self.failure = error
            logger.exception("the engine has stopped")
        finally:
            with self._lock:
                self._closed = True
            self._collect()
            for job in self._jobs():
                self._end(job, Delivery(end=FAILED))

    def _collect(self) -> None:
        idle = not self._active_jobs and not self._waiting and not self._closed
        with contextlib.suppress(queue.Empty):
            arrival = self._arrivals.get(idle, LONGEST_WAIT_S)
            while True:
                if isinstance(arrival, _Job):
                    self._waiting.setdefault(arrival.holder, deque()).append(arrival)
                elif arrival is not None:
                    self._drop(lambda job, number=arrival: job.sequence.number == number)
                arrival = self._arrivals.get_nowait()

    def _drop_late(self) -> None:
        now = time.monotonic()
        if now > self._next_late_check:
            self._next_late_check = now + LATE_CHECK_S
            self._drop(lambda job: now > job.deadline)

    def _drop(self, is_over: Callable[[_Job], bool]) -> None:
        for job in [job for job in self._jobs() if is_over(job)]:
            self._batch.remove(job.sequence)
            self._end(job, Delivery(end=LATE))
        waiting = {
            holder: deque(j for j in jobs if not j.sequence.end)
            for holder, jobs in self._waiting.items()
        }
        self._waiting = {holder: jobs for holder, jobs in waiting.items() if jobs}

    def _jobs(self) -> list[_Job]:
        return [*self._active_jobs.values(), *chain.from_iterable(self._waiting.values())]

    def _admit(self) -> None:
        """Admits as many waiting requests as the free rows and MAX_PROMPT_TOKENS allow.

        Repeatedly takes the oldest request of the API token with the fewest active requests, so
        that an API token with many requests does not delay others.
        """
        jobs, longest, num_active = [], 0, Counter(job.holder for job in self._active_jobs.values())
        while self._waiting and len(jobs) < self._batch.num_free:
            queued = min(
                self._waiting.values(),
                key=lambda waiting: (num_active[waiting[0].holder], waiting[0].sequence.number),
            )
            longest = max(longest, len(queued[0].sequence.request.prompt))
            if jobs and longest * (len(jobs) + 1) > MAX_PROMPT_TOKENS:
                break
            jobs.append(queued.popleft())
            num_active[jobs[-1].holder] += 1
            if not queued:
                del self._waiting[jobs[-1].holder]
        if jobs:
            self._active_jobs |= {job.sequence.number: job for job in jobs}
            self._deliver(self._batch.admit([job.sequence for job in jobs]))

    def _deliver(self, sequences: list[ActiveSequence]) -> None:
        self._last_step = time.monotonic()
        for sequence in sequences:
            job = self._active_jobs[sequence.number]
            delivery = Delivery(tuple(sequence.drawn[job.num_sent :]), sequence.end)
            job.num_sent = len(sequence.drawn)
            if sequence.end:
                self._end(job, delivery)
            else:
                job.receive(delivery)

    def _end(self, job: _Job, delivery: Delivery) -> None:
        job.sequence.end = delivery.end
        self._active_jobs.pop(job.sequence.number, None)
        with self._lock:
            self._num_open -= 1
        job.receive(delivery)
