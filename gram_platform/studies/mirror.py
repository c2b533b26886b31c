"""Keeps MLflow up to date beside the study, in a thread of its own: training never waits for the tracking server."""

import queue
import threading
from collections.abc import Callable, Iterable

from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable

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
            if node.kind == "run":
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
