"""Reports a study's progress to the terminal, Ray's metrics, MLflow and a webhook.

A terminal shows a progress bar and tables. A log has plain lines.
"""

import contextlib
import json
import queue
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import accumulate
from statistics import fmean, median
from urllib import request

from ray.util.metrics import Gauge
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from gram_platform.analysis.tables import frame_text
from gram_platform.config.endings import DONE, FAILED, TIME_IS_UP
from gram_platform.config.identity import mask_secrets, printable
from gram_platform.config.terminal import one_line
from gram_platform.engine.executor import ENDED, STARTED, WARNED, Event
from gram_platform.engine.life import Progress
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.results import Brief
from gram_platform.paper.verdicts import VERDICTS
from gram_platform.planner import MACHINES, Machine
from gram_platform.planner.ranks import one_rank_hours
from gram_platform.store import Store
from gram_platform.tracking import Tracker, TrackingUnavailable

# Seconds between lines of a log, and between changes of the bar.
LINES_EVERY_S, BAR_EVERY_S = 15.0, 1.0
# How many ended nodes of a kind and size predict the next one's duration.
NUM_TIMED = 20
# Seconds between transfers of running nodes' curves to MLflow.
LIVE_EVERY_S = 20.0
TIMEOUT_S = 10.0
# The webhook's event by exit code.
EVENTS = {DONE: "done", FAILED: "failed", TIME_IS_UP: "limit reached"}
# The width in characters from which a terminal shows both ends of intervals.
WIDE = 110
# Running nodes with their heartbeats.
Running = Sequence[tuple[Node, Mapping]]


class LiveView:
    """Shows finished and running nodes or trials, and the remaining time, in the terminal."""

    def __init__(
        self,
        nodes: Sequence[Node],
        store: Store,
        name: str,
        in_process: bool = False,
        machine: Machine = MACHINES["cpu"],
    ):
        self.nodes, self.store, self.name = {node.id: node for node in nodes}, store, name
        self.progress = Progress()
        self.hours = one_rank_hours(nodes, machine)
        # The seconds of the nodes that ended last, by kind and size.
        self._took: dict[tuple, deque[float]] = defaultdict(partial(deque, maxlen=NUM_TIMED))
        # When the first ended node began. Excludes the slow start of workers.
        self._began_s: float | None = None
        self._done_before: frozenset[str] = frozenset()
        # The monotonic time before which no progress is shown.
        self.next_s, self.console = 0.0, Console()
        # Without Ray there are no gauges, and plain lines leave the terminal to a debugger.
        self.in_process, self.set_gauges = in_process, None
        self.has_bar = sys.stdout.isatty() and not in_process
        whole = Column(ratio=1, overflow="fold")
        self.bars = Bars(
            TextColumn("{task.description}", markup=False, table_column=whole),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[left]}", markup=False),
            console=self.console,
            disable=not self.has_bar,
            transient=True,
            expand=True,
            refresh_per_second=2,
        )
        self.bar = self.bars.add_task("", total=None, left="")

    def start(self, nodes: Sequence[Node], progress: Progress) -> None:
        """Starts showing `progress`. `nodes` must be named as in the storage."""
        self.nodes, self.progress = {node.id: node for node in nodes}, progress
        self._done_before = frozenset(progress.done)
        self.bars.start()
        if not self.in_process:
            self.set_gauges = progress_gauges(self.name)

    def stop(self) -> None:
        self.bars.stop()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style), soft_wrap=True)

    def see(self, event: Event) -> None:
        if event.node is not None:
            # With the name in the storage.
            node = self.nodes.get(event.node.id, event.node)
            if event.kind == ENDED:
                took_s = self.store.node(node.kind, node.id).timing().get("elapsed_s", 0.0)
                self._took[_kind(node)].append(took_s)
                self._began_s = self._began_s or time.monotonic() - took_s
                self._say_ended(node, event.text)
            elif event.kind == WARNED:
                self.say(f"warning: {node.name}: {event.text}", "yellow")

    def look(self) -> None:
        if time.monotonic() >= self.next_s:
            self.next_s = time.monotonic() + (BAR_EVERY_S if self.has_bar else LINES_EVERY_S)
            self._show_nodes()

    def _say_ended(self, node: Node, failure: str) -> None:
        count = f"[{len(self.progress.done) + len(self.progress.failed):>3}/{len(self.nodes)}]"
        if failure:
            self.say(f"{count} {node.name} FAILED: {failure}", "red")
        elif node.is_run and not node.is_attack:
            timing = self.store.run(node.id).timing()
            seconds, rate = timing.get("elapsed_s", 0.0), timing.get("tokens_per_second", 0.0)
            self.say(f"{count} {node.name} trained in {seconds:.0f} s, {rate:,.0f} tokens/s")

    def _show_nodes(self) -> None:
        progress, running = self.progress, self._running()
        done, failed, blocked = map(len, (progress.done, progress.failed, progress.blocked))
        states = {"done": done, "failed": failed, "blocked": blocked, "training": len(running)}
        states["waiting"] = len(self.nodes) - sum(states.values())
        if self.set_gauges is not None:
            self.set_gauges(states, running)
        shares = dict.fromkeys(progress.done, 1.0) | {n.id: _share(beat) for n, beat in running}
        seconds = self._seconds()
        finished = sum(seconds.get(node_id, 0.0) * share for node_id, share in shares.items())
        total = sum(seconds.values())
        before = sum(seconds.get(node_id, 0.0) for node_id in self._done_before)
        left = self._time_left(finished - before, total - finished)
        parts = (
            f"{done} of {len(self.nodes)} nodes done",
            f"{len(running)} training, {states['waiting']} waiting",
            f"{failed} failed, {blocked} blocked" if failed else "",
            f"{sum(beat['tokens_per_second'] for _, beat in running):,.0f} tokens/s",
            ", ".join(f"{node.name} {_share(beat):.0%}" for node, beat in running),
        )
        text = " | ".join(filter(None, parts))
        description = printable(text)
        self.bars.update(
            self.bar, description=description, left=left, completed=finished, total=total
        )
        if not self.has_bar:
            self.say(" | ".join(filter(None, [text, left])))

    def _seconds(self) -> dict[str, float]:
        """Estimates the duration of each node that is neither failed nor blocked.

        This is the median for ended nodes of the same kind and size. If there are none, it is the
        planner's estimate.
        """
        typical = {kind: median(took) for kind, took in self._took.items()}
        unreachable = {*self.progress.failed, *self.progress.blocked}
        return {
            node.id: typical.get(_kind(node), 3600 * self.hours.get(node.id, 0.0))
            for node in self.nodes.values()
            if node.id not in unreachable
        }

    def _time_left(self, done: float, rest: float) -> str:
        if self._began_s is None or done <= 0:
            return ""
        seconds = rest * (time.monotonic() - self._began_s) / done
        return f"about {timedelta(seconds=round(seconds))} left"

    def _running(self) -> Running:
        beats = self.progress.heartbeats
        return [
            (self.nodes[node_id], beat)
            for node_id, start in self.progress.running.items()
            if (beat := beats.get(node_id)) and beat["time"] >= start and not beat.get("released")
        ]

    def begin_trials(self, number: int) -> None:
        self.bars.reset(self.bar, total=number)
        self._began_s = time.monotonic()

    def say_trial(self, line: str) -> None:
        self.bars.advance(self.bar)
        task = self.bars.tasks[0]
        self.say(f"[{task.completed:>3.0f}/{task.total}] {line}")

    def show_trials(self, running: Collection[str]) -> None:
        task = self.bars.tasks[0]
        ended = f"{task.completed:.0f} of {task.total} trials ended"
        text = " | ".join([ended, f"{len(running)} running", ", ".join(sorted(running))])
        left = self._time_left(task.completed, (task.total or 0.0) - task.completed)
        self.bars.update(self.bar, description=printable(text), left=left)


def _kind(node: Node) -> tuple:
    return node.kind, node.is_attack, node.size


def _share(beat: Mapping) -> float:
    return beat["step"] / max(beat["num_steps"], 1)


def progress_gauges(study: str) -> Callable[[Mapping[str, int], Running], None]:
    """Returns a function that updates a study's Ray gauges for node states, speed and losses.

    Ray exports the gauges with the prefix `ray_`, and `dashboards/grafana.json` plots them.
    """
    of_nodes = Gauge("gram_nodes", "Runs and evaluations of a study, by state", ("study", "state"))
    of_rate = Gauge(
        "gram_tokens_per_second", "Tokens a second of a study's running runs", ("study",)
    )
    about = "Mean of the last training losses of a study's running runs, in nats a token"
    of_loss = Gauge("gram_training_loss", about, ("study", "method", "size"))

    def set_all(num_nodes: Mapping[str, int], running: Running) -> None:
        for state, number in num_nodes.items():
            of_nodes.set(number, {"study": study, "state": state})
        of_rate.set(sum(beat["tokens_per_second"] for _, beat in running), {"study": study})
        losses: dict[tuple[str, str], list[float]] = defaultdict(list)
        for node, beat in running:
            if "loss" in beat:
                losses[node.method, node.size].append(beat["loss"])
        for (method, size), values in losses.items():
            of_loss.set(fmean(values), {"study": study, "method": method, "size": size})

    return set_all


def show_results(console: Console, text: str, brief: Callable[[bool], Brief] | None) -> None:
    """Prints the summary `brief(is_wide)` on a terminal if `brief` is given, otherwise `text`."""
    if brief is None or not console.is_terminal:
        console.print(Text(printable(text)), soft_wrap=True)
        return
    summary = brief(console.width >= WIDE)
    for title, frame in summary.tables.items():
        widths = [max(map(len, map(str, [name, *frame[name]]))) + 2 for name in frame]
        num_fitting = max(sum(width - 2 <= console.width for width in accumulate(widths)), 1)
        table = frame_text(frame.iloc[:, :num_fitting])
        console.print(Text(printable(f"{title}\n{table}\n")))
    verdicts = summary.verdicts
    counts = [f"{verdicts[name]} {name}" for name in VERDICTS if verdicts.get(name)]
    claims = f"claims: {', '.join(counts)}" if counts else ""
    lines = filter(None, (summary.text, claims, summary.warning, "see the report for the rest"))
    console.print(Text(printable("\n".join(lines))))


class Mirror:
    """Sends nodes to MLflow when they end, and at regular intervals while they run.

    Warns once when MLflow becomes unreachable.
    """

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

    def prepare(self) -> None:
        with self._reporting():
            self.tracker.prepare_database()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, kind: type[BaseException] | None) -> None:
        """Marks the running runs as killed in MLflow if a signal stopped the driver."""
        # Ctrl-C raises the first, SIGTERM of `ray job stop` the second.
        if kind and issubclass(kind, KeyboardInterrupt | SystemExit):
            running = list(self._running.values())
            with contextlib.suppress(TrackingUnavailable):
                self.tracker.mark_killed(node.id for node in running if node.is_run)

    def see(self, event: Event) -> None:
        if event.node is None:
            return
        if event.kind == STARTED:
            self._running[event.node.id] = event.node
        elif event.kind == ENDED:
            self.send_later(event.node)

    def send_later(self, node: Node) -> None:
        self._running.pop(node.id, None)
        self._queue.put(node)

    def watch(self, running: Iterable[Node]) -> None:
        self._running = {node.id: node for node in running}

    def finish(self, ids: Iterable[str]) -> None:
        """Waits for pending transfers, then sends those nodes in `ids` that MLflow still lacks."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        # Waiting no longer slows training, and the server may be back.
        self.tracker.ask_again()
        with self._reporting():
            self.tracker.sync(self.store, ids)

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
        with self._reporting():
            self.tracker.mirror(self.store.node(node.kind, node.id))

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
            self.is_away = False
        except TrackingUnavailable as error:
            if not self.is_away:
                self.say(f"MLflow is away ({error}); training continues, `gram sync` catches up")
            self.is_away = True


def message_of(
    study: str, storage: str, code: int, what: str, num_failures: int, verdicts: Mapping[str, int]
) -> dict[str, object]:
    """Returns the message for a webhook, without secrets.

    `code` is the exit code. `what` has the counts of nodes and trials, or the error. The message
    contains only the last folder of the storage's path.
    """
    storage, event = mask_secrets(storage).rstrip("/").rpartition("/")[2], EVENTS[code]
    what = one_line("; ".join(what.splitlines()))
    claims = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    parts = [f"{study} in {storage}: {event}", what]
    parts += [f"{num_failures} failed or blocked"] * bool(num_failures)
    parts += [f"Claims: {claims}"] * bool(claims)
    return {
        "text": ". ".join(filter(None, parts)),
        "event": event,
        "study": study,
        "storage": storage,
        "counts": what,
        "failures": num_failures,
        "verdicts": dict(verdicts),
    }


def post(url: str, message: Mapping[str, object]) -> str:
    """Posts a message as JSON within TIMEOUT_S. If this fails, returns the reason. Otherwise ""."""
    reasons = [f"no answer within {TIMEOUT_S:g} s"]
    # Redirects are not followed: they would send a GET without the message elsewhere.
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    body, head = json.dumps(message).encode(), {"Content-Type": "application/json"}

    def send() -> None:
        try:
            # This time-out ends the thread.
            with opener.open(request.Request(url, body, head), timeout=2 * TIMEOUT_S):
                reasons.append("")
        except Exception as error:
            # A failed message must not cost results.
            reasons.append(one_line(printable(str(error))) or type(error).__name__)

    # A DNS lookup, or an answer that arrives byte by byte, has no time-out.
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(TIMEOUT_S)
    return reasons[-1]
