"""Mirrors the nodes of a study to MLflow while it runs."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable

from gram_platform.config.terminal import say
from gram_platform.engine.executor import ENDED, STARTED, Event
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable

# How often the curves of running nodes are sent.
LIVE_EVERY_S = 20.0


def open_tracker(tracking_uri: str) -> Tracker:
    """Opens the tracker and prepares its database; announces a server that is away, which is tried
    again later."""
    tracker = Tracker(tracking_uri)
    try:
        tracker.prepare_database()
    except TrackingUnavailable as error:
        say(f"MLflow is away ({error}); training goes on, `gram sync` catches up")
    return tracker


class Mirror:
    """Mirrors nodes to MLflow as they end, and running ones regularly; reports once that the server
    is away."""

    def __init__(self, tracker: Tracker, store: Store, say: Callable[[str], None]):
        self.tracker, self.store, self.say = tracker, store, say
        self.is_away = False
        self._queue: queue.Queue[Node | None] = queue.Queue()
        self._running: dict[str, Node] = {}
        self._threads = [
            threading.Thread(
                target=self._work, args=(number == 0,), name="mlflow mirror", daemon=True
            )
            for number in range(tracker.num_senders)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, kind: type[BaseException] | None) -> None:
        """Marks the running nodes as killed when the driver is asked to stop.

        Submitted again, it continues them.
        """
        # Ctrl-C raises the first, SIGTERM of `ray job stop` the second.
        if kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit):
            with contextlib.suppress(TrackingUnavailable):
                self.tracker.mark_killed(
                    node.id for node in list(self._running.values()) if node.is_run
                )

    def see(self, event: Event) -> None:
        """Sends a node that is done or failed, and keeps the running ones."""
        if event.node is not None and event.kind == STARTED:
            self._running[event.node.id] = event.node
        elif event.node is not None and event.kind == ENDED:
            self.ended(event.node)

    def ended(self, node: Node) -> None:
        self._running.pop(node.id, None)
        self._queue.put(node)

    def watch(self, running: Iterable[Node]) -> None:
        """Sets the running nodes whose committed metrics are sent."""
        self._running = {node.id: node for node in running}

    def finish(self, ids: Iterable[str]) -> None:
        """Waits for the queue, then sends whatever MLflow lacks of these nodes, unless MLflow is
        away."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        # Nothing is left to be slowed, and the server may be back.
        self.tracker.ask_again()
        try:
            self.tracker.sync(self.store, ids)
            self.is_away = False
        except TrackingUnavailable as error:
            self._report(error)

    def _work(self, sends_running: bool) -> None:
        while True:
            try:
                node = self._queue.get(timeout=LIVE_EVERY_S)
            except queue.Empty:
                for node in list(self._running.values()) if sends_running else ():
                    self._send(node)
                continue
            if node is None:
                return
            self._send(node)

    def _send(self, node: Node) -> None:
        try:
            self.tracker.mirror(
                self.store.run(node.id) if node.is_run else self.store.evaluation(node.id)
            )
            self.is_away = False
        except TrackingUnavailable as error:
            self._report(error)

    def _report(self, error: TrackingUnavailable) -> None:
        if not self.is_away:
            self.say(f"MLflow is away ({error}); training goes on, `gram sync` catches up")
        self.is_away = True
