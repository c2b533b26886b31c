"""What every entrypoint does: exit codes, Ray, the tracking database, and progress of long preparations."""

import contextlib
import errno
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import ray

from gram_platform.engine.capacity import require_room, widest_missing
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.graph import SUBMIT_AGAIN, ClusterLost
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.studies.flags import CommonFlags, ranks_of
from gram_platform.tracking import Tracker, TrackingUnavailable

DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def exit_with(work: Callable[[], int]) -> None:
    """Ends the process.

    Exit code 0: complete; 1: some nodes failed, Ray is gone, or a disk takes no more; 2: bad input, nothing done;
    130: interrupted by SIGINT.
    """
    try:
        outcome = work()
    except ClusterLost as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        if error.errno not in DISK_REFUSES:
            raise
        print(f"error: a disk takes no more: {error}. {SUBMIT_AGAIN}", file=sys.stderr)
        raise SystemExit(1) from error
    except KeyboardInterrupt as error:
        print(f"interrupted. {SUBMIT_AGAIN}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from error
    raise SystemExit(outcome)


def say(text: str) -> None:
    print(text, flush=True)


def connect() -> None:
    """Joins the job's or the machine's cluster, else starts a local one."""
    if not ray.is_initialized():
        # without this Ray warns that a task of no GPU will one day keep the ones it sees
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(log_to_driver=False, logging_level=logging.WARNING)


def execution_of(flags: CommonFlags, has_gpu: bool) -> tuple[Execution, Resources]:
    """How the flags want nodes executed, and what Ray reserves for a rank. `has_gpu`: whether Ray has one now."""
    device = flags.device or ("cuda" if has_gpu else "cpu")
    execution = Execution(
        flags.storage,
        num_threads=flags.threads,
        ranks=ranks_of(flags),
        checkpoint_every_s=flags.checkpoint_every,
        collective_timeout_s=flags.collective_timeout,
        activation_checkpointing=flags.activation_checkpointing,
        device=device,
    )
    return execution, Resources(float(flags.threads), float(device == "cuda"))


def start_ray(flags: CommonFlags, nodes: Iterable[Node], say: Callable[[str], None]) -> tuple[Execution, Resources]:
    """Connects to Ray; returns how to execute nodes there. ValueError if no machine has room for the widest one."""
    connect()
    execution, resources = execution_of(flags, bool(ray.cluster_resources().get("GPU")))
    require_room(widest_missing(nodes, execution), resources, say)
    return execution, resources


SITE_VARIABLE = "GRAM_SITE"  # 0: studies and searches leave the site alone
SITE_TIMEOUT_S = 600.0


@contextlib.contextmanager
def one_site(flags: CommonFlags, say: Callable[[str], None]) -> Iterator[None]:
    """What happens inside leaves the site alone; it is built once afterwards."""
    before = os.environ.get(SITE_VARIABLE)
    os.environ[SITE_VARIABLE] = "0"
    try:
        yield
    finally:
        os.environ.pop(SITE_VARIABLE)
        if before is not None:
            os.environ[SITE_VARIABLE] = before
    refresh_site(flags, say)


def refresh_site(flags: CommonFlags, say: Callable[[str], None]) -> None:
    """Builds the storage's site in a process of its own, only what has changed; says where it is, or why it is not."""
    if os.environ.get(SITE_VARIABLE) == "0":
        return
    package = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "gram_platform.studies.site", flags.storage, flags.tracking_uri]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SITE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        say(f"the site was not built within {SITE_TIMEOUT_S:.0f} s; `gram report` builds it")
        return
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["no word"]
    say(f"the site was not built ({lines[-1]})" if done.returncode else f"{'site':12} {lines[-1]}")


def open_tracker(flags: CommonFlags) -> Tracker:
    """The tracker with its database made; a server that is away is announced and tried again later."""
    tracker = Tracker(flags.tracking_uri)
    try:
        tracker.prepare_database()
    except TrackingUnavailable as error:
        say(f"MLflow is away ({error}); training goes on, `gram sync` catches up")
    return tracker


def reporter() -> Callable[[str, int, int | None], None]:
    """Progress of long reading and packing, a line every few seconds."""
    last = time.monotonic()

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > 5.0:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            say(f"{what}:{share} {done / 1e6:,.1f} MB")

    return report


LIVE_EVERY_S = 20.0  # how often the curves of running nodes are sent


class Mirror:
    """Mirrors nodes as they end, and running ones now and then. A server that is away is reported once."""

    def __init__(self, tracker: Tracker, store: Store, say: Callable[[str], None]):
        self.tracker, self.store, self.say = tracker, store, say
        self.is_away = False
        self._queue: queue.Queue[Node | None] = queue.Queue()
        self._running: tuple[Node, ...] = ()
        self._thread = threading.Thread(target=self._work, name="mlflow mirror", daemon=True)
        self._thread.start()

    def ended(self, node: Node) -> None:
        """Sends a node that is done or failed."""
        self._queue.put(node)

    def watch(self, running: Iterable[Node]) -> None:
        """The nodes whose committed metrics are sent while they run."""
        self._running = tuple(running)

    def finish(self, ids: Iterable[str]) -> bool:
        """Waits for what is queued, then sends whatever these nodes still lack; False if MLflow is away."""
        self._queue.put(None)
        self._thread.join()
        try:
            self.tracker.sync(self.store, ids)
            self.is_away = False
        except TrackingUnavailable as error:
            self._report(error)
        return not self.is_away

    def _work(self) -> None:
        while True:
            try:
                node = self._queue.get(timeout=LIVE_EVERY_S)
            except queue.Empty:
                for node in self._running:
                    self._send(node)
                continue
            if node is None:
                return
            self._send(node)

    def _send(self, node: Node) -> None:
        try:
            if node.is_run:
                self.tracker.mirror_run(self.store.run(node.id))
            else:
                self.tracker.mirror_evaluation(self.store.evaluation(node.id))
            self.is_away = False
        except TrackingUnavailable as error:
            self._report(error)

    def _report(self, error: TrackingUnavailable) -> None:
        if not self.is_away:
            self.say(f"MLflow is away ({error}); training goes on, `gram sync` catches up")
        self.is_away = True
