"""Shows how a study or a search goes: a panel on a terminal, or plain lines in a log; and in Ray's metrics."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ray.util.metrics import Gauge
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gram_platform.config.endings import SUBMIT_AGAIN
from gram_platform.config.identity import printable
from gram_platform.engine.life import Progress
from gram_platform.methods.budgets import run_flops
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.results import Brief
from gram_platform.store import Store
from gram_platform.studies.panel import Row, clock, panel, show_results

PLAIN_EVERY_S, PANEL_EVERY_S = 15.0, 0.5
GAUGES_EVERY_S = 2.0
# of Ray's metrics; its exporter puts `ray_` before them
NODES, RATE, LOSS = "gram_nodes", "gram_tokens_per_second", "gram_training_loss"
# Seconds without news from the driver before the view warns.
RAY_WAIT_S = 30.0
# Of `progress_gauges`.
GaugeSetter = Callable[[Mapping[str, int], float, Mapping[tuple[str, str], float]], None]


class LiveView:
    """Shows numbers of nodes running, done and waiting, tokens per second and the time left; then a search's trials."""

    def __init__(self, nodes: Sequence[Node], store: Store, name: str, in_process: bool = False):
        self.nodes = {node.id: node for node in nodes}
        self.store = store
        self.flops = {n.id: run_flops(n.config) for n in nodes if n.is_run}
        self.started = time.time()
        # The FLOPs that were done when the view began.
        self.base_flops: float | None = None
        # The trials of the round that runs now.
        self.num_trials = self.num_ended = 0
        # The ids of the runs of each running trial.
        self.trials: dict[str, list[str]] = {}
        # The monotonic time before which something is not shown again.
        self._next: dict[str, float] = {}
        self._updated, self._over = time.monotonic(), threading.Event()
        self.console = Console()
        self.name = name
        self.set_gauges: GaugeSetter | None = None
        # Without Ray plain lines leave the terminal to a debugger.
        self.in_process = in_process
        has_panel = sys.stdout.isatty() and not in_process
        self.live = Live(console=self.console, transient=True, auto_refresh=False) if has_panel else None

    def __enter__(self) -> "LiveView":
        if self.live:
            self.live.start()
        self._updated = time.monotonic()
        if not self.in_process:
            self.set_gauges = progress_gauges(self.name)
            threading.Thread(target=self._watch, name="live view", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        if self.live:
            self.live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Prints a line that stays, in a style where the output has one."""
        self.console.print(Text(printable(text), style), soft_wrap=True)

    def show(self, text: str, brief: Callable[[bool], Brief] | None = None) -> None:
        """Prints results: in a log the whole text, on a terminal the tables of `brief`, which fit its width."""
        show_results(self.console, f"\n{text}\n", brief)

    def update(self, progress: Progress, ended: Node | None) -> None:
        """Shows the progress; called when a node ends and about once a second."""
        self._updated = time.monotonic()
        if self.base_flops is None:
            self.base_flops = self._done_flops(progress, {})
        # evaluations and attacks are many and short: they are only counted
        if ended is not None and ((ended.is_run and not ended.is_attack) or ended.id in progress.failed):
            self.say(self._ended_line(progress, ended), "red" if ended.id in progress.failed else "")
        for node_id, texts in progress.warnings.items():
            for text in texts:
                self.say(f"warning: {self.nodes[node_id].name}: {text}", "yellow")
        progress.warnings.clear()
        if self.set_gauges is not None and self._is_due("gauges", GAUGES_EVERY_S):
            running = self._running(progress)
            self.set_gauges(self._num_nodes(progress, running), _rate(running), _losses(running))
        if self._is_due("summary", PANEL_EVERY_S if self.live else PLAIN_EVERY_S):
            self._show_nodes(progress, self._running(progress))

    def _show_nodes(self, progress: Progress, running: list[tuple[Node, dict]]) -> None:
        counts, rate = self._counts(progress, running), f"{_rate(running):,.0f} tokens/s"
        left = self._seconds_left(progress, running)
        if self.live is None:
            parts = [*counts, rate, f"about {clock(left)} left", *self._ends(progress)]
            parts += [", ".join(f"{n.name} {_share(beat):.0%}" for n, beat in running)] if running else []
            self.say(" | ".join(parts))
            return
        rows = [
            Row(node.name, _share(beat), f"{beat['tokens_per_second']:,.0f} tokens/s", clock(_left(node, beat)))
            for node, beat in running
        ]
        share = self._done_flops(progress, _shares(running)) / max(sum(self.flops.values()), 1.0)
        total = Row("all runs", share, rate, f"about {clock(left)} left")
        self._draw(", ".join([*counts, *self._ends(progress)]), total, rows)

    def _draw(self, headline: str, total: Row, rows: Sequence[Row]) -> None:
        self.live.update(panel(self.console, headline, total, rows), refresh=True)

    def _is_due(self, what: str, every_s: float) -> bool:
        """Returns whether something that reads all nodes is to be done again; many nodes may end in a second."""
        is_due = time.monotonic() >= self._next.get(what, 0.0)
        if is_due:
            self._next[what] = time.monotonic() + every_s
        return is_due

    def _watch(self) -> None:
        """Reports the trials of a search every few seconds. Before them, warns once if there is no update for long:
        after its cluster dies, a driver hangs before Ray ends it.
        """
        has_warned = False
        while not self._over.wait(1.0):
            if self.num_trials:
                self._show_trials()
            elif not has_warned and time.monotonic() - self._updated > RAY_WAIT_S:
                silent = f"Ray or the storage has not answered for {RAY_WAIT_S:.0f} s"
                self.say(f"{silent}; this ends if it stays away. {SUBMIT_AGAIN}")
                has_warned = True

    def _running(self, progress: Progress) -> list[tuple[Node, dict]]:
        """Returns running nodes with their last heartbeat, without those that wait for a process."""
        nodes = [self.nodes[i] for i in progress.running if self.nodes[i].is_run]
        beats = [(node, self.store.run(node.id).progress()) for node in nodes]
        started = progress.running
        return [(n, b) for n, b in beats if b and b["time"] >= started[n.id] and not b.get("released")]

    def _ended_line(self, progress: Progress, node: Node) -> str:
        if node.id in progress.failed:
            return f"{self._count(progress)} {node.name} FAILED: {progress.failed[node.id]}"
        timing = self.store.run(node.id).timing()
        rate = f"{timing.get('tokens_per_second', 0.0):,.0f} tokens/s"
        return f"{self._count(progress)} {node.name} trained in {timing.get('elapsed_s', 0.0):.0f} s, {rate}"

    def _count(self, progress: Progress) -> str:
        return _share_text(len(progress.done) + len(progress.failed), len(self.nodes))

    def _num_nodes(self, progress: Progress, running: list[tuple[Node, dict]]) -> dict[str, int]:
        """Counts nodes by state: done, failed, blocked, training, waiting."""
        ended = {"done": len(progress.done), "failed": len(progress.failed), "blocked": len(progress.blocked)}
        num_nodes = {**ended, "training": len(running)}
        return {**num_nodes, "waiting": len(self.nodes) - sum(num_nodes.values())}

    def _counts(self, progress: Progress, running: list[tuple[Node, dict]]) -> list[str]:
        kinds = Counter(self.nodes[i].kind for i in progress.done)
        runs, waiting = len(self.flops), self._num_nodes(progress, running)["waiting"]
        return [
            f"runs {kinds['run']}/{runs}",
            f"evaluations {kinds['evaluation']}/{len(self.nodes) - runs}",
            f"{len(running)} training, {waiting} waiting",
        ]

    def _ends(self, progress: Progress) -> list[str]:
        return [f"{len(progress.failed)} failed, {len(progress.blocked)} blocked"] if progress.failed else []

    def _done_flops(self, progress: Progress, fractions: dict[str, float]) -> float:
        done = sum(self.flops.get(i, 0.0) for i in progress.done)
        return done + sum(self.flops[i] * share for i, share in fractions.items())

    def _seconds_left(self, progress: Progress, running: list[tuple[Node, dict]]) -> float | None:
        """Estimates from the FLOPs done since the view began; None before there is a rate."""
        done = self._done_flops(progress, _shares(running))
        gained, elapsed_s = done - self.base_flops, time.time() - self.started
        unreachable = {*progress.failed, *progress.blocked}
        total = sum(f for i, f in self.flops.items() if i not in unreachable)
        if total <= done:
            return 0.0
        return None if gained <= 0 or elapsed_s < 5 else (total - done) * elapsed_s / gained

    def begin_trials(self, number: int) -> None:
        """Begins a round of this number of trials."""
        self.num_trials, self.num_ended, self.started = number, 0, time.time()

    def trial_started(self, name: str, nodes: Sequence[Node]) -> None:
        self.trials[name] = [node.id for node in nodes if node.is_run]

    def trial_ended(self, name: str, line: str) -> None:
        self.trials.pop(name, None)
        self.num_ended += 1
        self.say(f"{_share_text(self.num_ended, self.num_trials)} {line}")

    def _show_trials(self) -> None:
        if not self._is_due("trials", PLAIN_EVERY_S):
            return
        running = [(name, self._share_done(run_ids)) for name, run_ids in list(self.trials.items())]
        counts = f"{self.num_ended} of {self.num_trials} trials ended, {len(running)} running"
        left = None
        if self.num_ended:
            left = (time.time() - self.started) * (self.num_trials - self.num_ended) / self.num_ended
        if self.live is None:
            shares = [f"{name} {share:.0%}" for name, share in running]
            self.say(" | ".join([f"{counts}, about {clock(left)} left", *shares]))
            return
        total = Row("all trials", self.num_ended / self.num_trials, "", f"about {clock(left)} left")
        self._draw(counts, total, [Row(name, share, "", "") for name, share in running])

    def _share_done(self, run_ids: Sequence[str]) -> float:
        done = 0.0
        for run in map(self.store.run, run_ids):
            if run.result() is not None:
                done += 1.0
            elif beat := run.progress():
                done += beat["step"] / max(beat["num_steps"], 1)
        return done / max(len(run_ids), 1)


def progress_gauges(study: str) -> GaugeSetter:
    """Returns a function that gives a study's progress to Ray's metrics, for Prometheus. Needs Ray.

    It takes the number of nodes by state, the tokens per second, and the losses by method and size;
    `dashboards/grafana.json` draws them.
    """
    nodes = Gauge(NODES, "Runs and evaluations of a study, by state.", ("study", "state"))
    rate = Gauge(RATE, "Tokens a second that the running runs of a study train on.", ("study",))
    of_group = "Mean of the last training losses of a study's running runs, in nats a token."
    mean_loss = Gauge(LOSS, of_group, ("study", "method", "size"))

    def set_all(
        num_nodes: Mapping[str, int], tokens_per_second: float, losses: Mapping[tuple[str, str], float]
    ) -> None:
        for state, number in num_nodes.items():
            nodes.set(number, {"study": study, "state": state})
        rate.set(tokens_per_second, {"study": study})
        for (method, size), loss in losses.items():
            mean_loss.set(loss, {"study": study, "method": method, "size": size})

    return set_all


def _losses(running: list[tuple[Node, dict]]) -> dict[tuple[str, str], float]:
    """Returns the mean loss of the runs of each method and size, of those that have read one."""
    groups: dict[tuple[str, str], list[float]] = {}
    for node, beat in running:
        if "loss" in beat:
            groups.setdefault((node.names.get("method", ""), node.names.get("size", "")), []).append(beat["loss"])
    return {group: sum(losses) / len(losses) for group, losses in groups.items()}


def _rate(running: list[tuple[Node, dict]]) -> float:
    return sum(beat["tokens_per_second"] for _, beat in running)


def _share(beat: dict) -> float:
    return beat["step"] / max(beat["num_steps"], 1)


def _shares(running: list[tuple[Node, dict]]) -> dict[str, float]:
    return {node.id: _share(beat) for node, beat in running}


def _left(node: Node, beat: dict) -> float | None:
    """Returns the seconds that a run needs at its speed; None before it has one."""
    rate, config = beat["tokens_per_second"], node.config
    return (config.num_steps - beat["step"]) * config.batch_size * config.model.seq_len / rate if rate else None


def _share_text(done: int, total: int) -> str:
    return f"[{done:>3}/{total}]"
