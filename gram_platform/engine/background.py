"""One job at a time beside the training: what a checkpoint takes to write, the next steps need not wait for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


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
