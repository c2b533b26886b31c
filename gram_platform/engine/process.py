"""The process that trains: notices its end, recognises lack of memory, writes in the background, measures its use."""

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import ray
import torch
from ray.exceptions import RaySystemError

from gram_platform.config import RunConfig
from gram_platform.engine.execution import Execution
from gram_platform.planner import GIB, MACHINES, needs

CPU_ALLOCATOR = ("DefaultCPUAllocator", "not enough memory")  # torch has no class for it


class OutOfMemory(RuntimeError):
    """A process had too little memory for its run; the message says what the planner counts and what helps."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: Python's, numpy's, torch's on a GPU or on the CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in CPU_ALLOCATOR)


def memory_advice(error: BaseException, run: RunConfig, execution: Execution) -> str:
    """What failed, what the planner counts for the run, and what would need less."""
    ranks = execution.num_ranks
    more = next((n for n in range(ranks + 1, run.micro_batch + 1) if run.micro_batch % n == 0), None)
    ways = [f"--activation-checkpointing: {_gib(run, ranks, checkpointing=True)}"]
    ways += [f"--num-workers {more}: {_gib(run, more)} each"] if more else []
    counted = f"{_gib(run, ranks)} on each of {ranks} ranks" if ranks > 1 else _gib(run, 1)
    failed = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": ")
    return (
        f"out of memory ({failed}). The planner counts {counted}, and about 1 GiB for the process itself. "
        f"Less with {', or '.join(ways)}; else take a machine with more memory."
    )


def _gib(run: RunConfig, num_ranks: int, checkpointing: bool = False) -> str:
    total = needs(run, num_ranks, MACHINES["cpu"], checkpointing=checkpointing).memory.total
    return f"{total / GIB:.3g} GiB"


class Background:
    """A context manager: leaving the block waits for the job at work. A job's error is raised by what waits for it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._job: Future | None = None

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        self._executor.shutdown(wait=True)
        if kind is None:  # otherwise the block's own error says what happened
            self.wait()

    def start(self, job: Callable[[], object]) -> None:
        """Hands a job to the thread, after the one before it has ended well."""
        self.wait()
        self._job = self._executor.submit(job)

    def wait(self) -> None:
        """Until no job is at work."""
        job, self._job = self._job, None
        if job is not None:
            job.result()


class Usage:
    """Watches one run on one rank. On a CPU the memory is the process's, looked at now and then."""

    def __init__(self, device: str):
        self.device = torch.device(device)
        self.peak_bytes = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def look(self) -> None:
        """Takes the memory of this moment into account."""
        if self.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device)
        else:
            self.peak_bytes = max(self.peak_bytes, psutil.Process().memory_info().rss)

    def facts(self) -> dict[str, str | int]:
        """`device` ("cpu", or the GPU's name) and `peak_memory_bytes`, for `timing.json`."""
        self.look()
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return {"device": name, "peak_memory_bytes": self.peak_bytes}


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
LARGEST_THRESHOLD = 32 * 2**20  # of blocks that are mapped one by one: as large as glibc ever makes it by itself
KEPT_BYTES = 2**31 - 1


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside, this process keeps what it frees at the end of its heap; nothing changes with another C library.

    Blocks of 32 MiB and more still go back at once, so what is kept is at most what a step needs together.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    try:
        yield
    finally:
        libc.malloc_trim(0)


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
