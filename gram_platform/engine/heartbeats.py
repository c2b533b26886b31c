"""Reads heartbeats of running runs in a thread, because an object store responds slowly."""

import math
import time
from collections.abc import Iterable, Mapping
from functools import partial

from gram_platform.config.terminal import warn
from gram_platform.engine.process import BackgroundJob
from gram_platform.store import Store
from gram_platform.store.leases import read_lease

# The pause between two readings is this many times the last reading's duration, and at least
# `SHORTEST_PAUSE_S`.
SHORTEST_PAUSE_S, PAUSE_RATIO = 2.0, 3.0
LATE_S = 600.0


class Heartbeats:
    """Keeps the last heartbeat of each running run in `latest`, by run id.

    A heartbeat has the fields that `RunDirectory.progress` returns.
    """

    def __init__(self, store: Store):
        self.latest: Mapping[str, dict] = {}
        self._store, self._job = store, BackgroundJob()
        self._next, self._late, self._is_reading = 0.0, math.inf, False

    def look(self, run_ids: Iterable[str]) -> bool:
        """Returns True if heartbeats have been read since the last call. Never blocks.

        If the reading failed, raises its error. After a pause, a call starts the next reading.
        """
        now = time.monotonic()
        if self._job.is_busy:
            if now >= self._late:
                self._late = math.inf
                warn(f"heartbeats are not read for {LATE_S:.0f} s: stalls go unnoticed")
            return False
        is_new, self._is_reading = self._is_reading, False
        if is_new:
            self._job.wait()
        elif now >= self._next:
            self._late, self._is_reading = now + LATE_S, True
            self._job.start(partial(self._read, list(run_ids)))
        return is_new

    def _read(self, run_ids: list[str]) -> None:
        started = time.monotonic()
        beats = zip(run_ids, self._store.concurrently(self._beat_of, run_ids), strict=True)
        self.latest = {run_id: beat for run_id, beat in beats if beat}
        ended = time.monotonic()
        self._next = ended + max(SHORTEST_PAUSE_S, PAUSE_RATIO * (ended - started))

    def _beat_of(self, run_id: str) -> dict | None:
        run, before = self._store.run(run_id), self.latest.get(run_id)
        lease = read_lease(run.attempt(before["attempt"])) if before else None
        if before and lease and not lease["released"] and lease["time"] > before["time"]:
            return {**lease, "attempt": before["attempt"]}
        return run.progress()
