"""Sets up a training process, and handles its memory errors, background jobs and stop requests."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from gram_platform.engine.execution import Division, Execution
from gram_platform.train.data import gpu_of_this_thread, start_thread

try:
    import psutil
except ImportError:
    # Not needed on a machine that only trains.
    psutil = None

# Texts in memory errors of torch's CPU allocator, CUDA and its libraries that have no class.
ALLOCATORS = (
    "DefaultCPUAllocator",
    "not enough memory",
    "error: out of memory",
    "[CUDA]: out of memory",
    "STATUS_ALLOC_FAILED",
)


# The size in KiB and the number of buffers that make cuBLAS's products deterministic.
CUBLAS_VARIABLE, CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"


def set_up_torch(execution: Execution) -> None:
    """Sets torch's thread count and determinism. Must precede the first matrix product on a GPU."""
    torch.set_num_threads(execution.num_threads)
    # The setter imports torch's compiler, so it is called only for a change.
    if torch.are_deterministic_algorithms_enabled() != execution.deterministic:
        torch.use_deterministic_algorithms(execution.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if execution.deterministic:
        os.environ[CUBLAS_VARIABLE] = CUBLAS_WORKSPACE
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


class OutOfMemory(RuntimeError):
    """A process ran out of memory. The message contains the planner's estimate and advice."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATORS)


def memory_advice(error: BaseException, division: Division) -> str:
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": ")
    return f"out of memory ({reason}). {division.advice or 'Use a machine with more memory.'}"


class BackgroundJob:
    """Runs one job at a time in a thread.

    `wait`, or leaving a `with` block, waits for the job and raises its error.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "checkpoint", initializer=gpu_of_this_thread())
        self._job: Future | None = None

    def __enter__(self) -> "BackgroundJob":
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        self._executor.shutdown(wait=True)
        # An error of the block has priority over an error of the job.
        if kind is None:
            self.wait()

    @property
    def is_busy(self) -> bool:
        return self._job is not None and not self._job.done()

    def start(self, job: Callable[[], object]) -> None:
        """Starts a job. Call `wait` first, which raises the error of the previous job."""
        self._job = self._executor.submit(job)

    def wait(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.result()


# MLflow's prefix of the names of a machine's metrics.
SYSTEM = "system/"
SYSTEM_EVERY_S = 10.0


class ResourceUsage:
    """Measures machine utilisation, and this rank's peak memory over all calls of `look`."""

    def __init__(self, device: str):
        self.device = torch.device(device)
        self.peak_bytes = 0
        self._next_system = time.monotonic() + SYSTEM_EVERY_S
        with contextlib.suppress(Exception):
            # psutil's first value in a process is meaningless.
            _processors(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def look(self) -> None:
        if self.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device)
            return
        try:
            with open("/proc/self/statm") as file:
                resident_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except FileNotFoundError:
            # Only systems without Linux's /proc need psutil.
            resident_bytes = psutil.Process().memory_info().rss
        self.peak_bytes = max(self.peak_bytes, resident_bytes)

    def system(self) -> dict[str, float]:
        """Measures the utilisation of processors, memory and GPU at most every `SYSTEM_EVERY_S`.

        Returns {} if it is called sooner. The keys are MLflow's metric names. Omits metrics that
        cannot be measured.
        """
        if time.monotonic() < self._next_system:
            return {}
        self._next_system = time.monotonic() + SYSTEM_EVERY_S
        values: dict[str, float] = {}
        gpu_measures = (_gpu_memory, _gpu_use) if self.device.type == "cuda" else ()
        for measure in (_processors, _memory, *gpu_measures):
            # psutil or NVML can be missing, and a divided GPU or a container may forbid it.
            with contextlib.suppress(Exception):
                values |= measure(self.device)
        return {SYSTEM + name: value for name, value in values.items()}

    def facts(self) -> dict[str, str | int]:
        """Returns `device` ("cpu" or a GPU's name) and `peak_memory_bytes`, for `timing.json`."""
        self.look()
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return {"device": name, "peak_memory_bytes": self.peak_bytes}


def _processors(device: torch.device) -> dict[str, float]:
    return {"cpu_utilization_percentage": psutil.cpu_percent()}


def _memory(device: torch.device) -> dict[str, float]:
    memory = psutil.virtual_memory()
    return {
        "system_memory_usage_megabytes": memory.used / 1e6,
        "system_memory_usage_percentage": memory.percent,
    }


def _gpu_memory(device: torch.device) -> dict[str, float]:
    free, total = torch.cuda.mem_get_info(device)
    used = {
        "usage_megabytes": (total - free) / 1e6,
        "usage_percentage": 100.0 * (1.0 - free / total),
    }
    return {f"gpu_0_memory_{name}": value for name, value in used.items()}


def _gpu_use(device: torch.device) -> dict[str, float]:
    return {"gpu_0_utilization_percentage": float(torch.cuda.utilization(device))}


POLL_S = 10.0


class StopRequest:
    """A request to stop this process, from a signal or because Ray is draining its machine.

    A training run checks `received` after every step. Each check calls `look`, which can request a
    stop. With `asks_ray=False`, never asks Ray about draining.
    """

    def __init__(
        self, asks_ray: bool = True, look: Callable[["StopRequest"], None] = lambda request: None
    ) -> None:
        self._asks_ray, self._look = asks_ray, look
        self._received = self._is_asking = False
        self._code = 128 + signal.SIGTERM
        self._next_poll = time.monotonic() + POLL_S

    def receive(self, code: int = 128 + signal.SIGTERM) -> None:
        self._received, self._code = True, code

    @property
    def received(self) -> bool:
        """Returns True if the process has been asked to stop.

        Every `POLL_S`, asks in a thread whether Ray is draining this machine. A thread is needed,
        because the call blocks while Ray's head process is lost.
        """
        self._look(self)
        may_ask = self._asks_ray and not (self._received or self._is_asking)
        if may_ask and time.monotonic() >= self._next_poll:
            self._is_asking = True
            start_thread("draining", self._ask)
        return self._received

    def _ask(self) -> None:
        try:
            if is_draining():
                self.receive()
        finally:
            self._next_poll = time.monotonic() + POLL_S
            self._is_asking = False

    def exit(self) -> None:
        """Raises KeyboardInterrupt after Ctrl-C, otherwise SystemExit with the exit code."""
        raise KeyboardInterrupt if self._code == 128 + signal.SIGINT else SystemExit(self._code)


def is_draining() -> bool:
    """Returns True if Ray is draining this machine, as it does before an announced preemption."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    from ray.exceptions import RaySystemError

    from gram_platform.engine.ray_private import draining_machines

    try:
        return ray.get_runtime_context().get_node_id() in draining_machines()
    except RaySystemError:
        # The head is lost, and may come back.
        return False


@contextlib.contextmanager
def stop_on_signal(
    stop_request: StopRequest | None = None, signals: Sequence[int] = (signal.SIGTERM,)
) -> Iterator[StopRequest]:
    """Context manager that turns the first received signal of `signals` into a stop request.

    A second signal calls the previous handler. Only the main thread can handle signals. Any other
    thread gets `stop_request` or, if that argument is None, the request that `note_sigterm` made.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop_request or _request_of_process or StopRequest()
        return
    stop_request = stop_request or StopRequest()
    restore = _receive_first(stop_request, signals)
    try:
        yield stop_request
    finally:
        restore()


_request_of_process: StopRequest | None = None


def note_sigterm() -> None:
    """Turns the first SIGTERM into a stop request for all threads of this process.

    Call this in the main thread of a Ray Train worker, which trains in a second thread. The request
    does not ask Ray about draining, because Ray Train announces preemptions.
    """
    global _request_of_process
    _request_of_process = StopRequest(asks_ray=False)
    _receive_first(_request_of_process, (signal.SIGTERM,))


def _receive_first(stop_request: StopRequest, signals: Sequence[int]) -> Callable[[], None]:
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        restore()
        stop_request.receive(128 + number)

    for number in signals:
        signal.signal(number, note)
    return restore
