"""Prints how a study goes, and its results: a bar and tables on a terminal, lines in a log."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from gram_platform.analysis.tables import frame_text
from gram_platform.config.identity import printable
from gram_platform.engine.executor import ENDED, WARNED, Event
from gram_platform.engine.life import Progress
from gram_platform.methods.budgets import run_flops
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.results import Brief
from gram_platform.paper.verdicts import VERDICTS
from gram_platform.store import Store
from gram_platform.studies.gauges import ProgressGauges

# Seconds between two lines of a log, and between two changes of the bar.
LINES_EVERY_S, BAR_EVERY_S = 15.0, 1.0
# Letters of a terminal from which on intervals have both ends.
WIDE = 110


class LiveView:
    """Shows what is done of all nodes, or trials of a search, what runs, and the time left."""

    def __init__(self, nodes: Sequence[Node], store: Store, name: str, in_process: bool = False):
        self.nodes, self.store, self.name = {node.id: node for node in nodes}, store, name
        self.progress = Progress()
        self.flops = {node.id: run_flops(node.config) for node in nodes if node.is_run}
        # The names of the running trials.
        self.trials: set[str] = set()
        # The monotonic time before which no progress is shown.
        self.next_s, self.console = 0.0, Console()
        # Without Ray there are no gauges, and plain lines leave the terminal to a debugger.
        self.in_process, self.gauges = in_process, None
        self.has_bar = sys.stdout.isatty() and not in_process
        whole = Column(ratio=1, overflow="fold")
        text = TextColumn("{task.description}", markup=False, table_column=whole)
        how = {"transient": True, "expand": True, "speed_estimate_period": 3600.0}
        how |= {"console": self.console, "disable": not self.has_bar, "refresh_per_second": 2}
        self.bars = Bars(text, BarColumn(bar_width=12), TimeRemainingColumn(), **how)
        self.bar = self.bars.add_task("", total=None)

    def start(self, nodes: Sequence[Node], progress: Progress) -> None:
        """Begins to show the progress of nodes, under their names in the storage."""
        self.nodes, self.progress = {node.id: node for node in nodes}, progress
        self.bars.start()
        if not self.in_process:
            self.gauges = ProgressGauges(self.name)

    def stop(self) -> None:
        self.bars.stop()

    def say(self, text: str, style: str = "") -> None:
        """Prints a line that stays, in a style where the output has one."""
        self.console.print(Text(printable(text), style), soft_wrap=True)

    def see(self, event: Event) -> None:
        """Says how a node ended, and warnings."""
        if event.node is not None:
            # The name that the storage's readers use.
            node = self.nodes.get(event.node.id, event.node)
            if event.kind == ENDED:
                self._say_ended(node, event.text)
            elif event.kind == WARNED:
                self.say(f"warning: {node.name}: {event.text}", "yellow")

    def look(self) -> None:
        """Shows the progress, every few seconds; called more often."""
        if time.monotonic() >= self.next_s:
            self.next_s = time.monotonic() + (BAR_EVERY_S if self.has_bar else LINES_EVERY_S)
            self._show_nodes()

    def _say_ended(self, node: Node, failure: str) -> None:
        """Says how a node ended. Evaluations and attacks are many and short: they are counted."""
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
        if self.gauges is not None:
            self.gauges.set(states, running)
        counts = [f"{done} of {len(self.nodes)} nodes done"]
        counts += [f"{len(running)} training, {states['waiting']} waiting"]
        counts += [f"{failed} failed, {blocked} blocked"] if failed else []
        counts += [f"{sum(beat['tokens_per_second'] for _, beat in running):,.0f} tokens/s"]
        shares = dict.fromkeys(progress.done, 1.0) | {n.id: _share(beat) for n, beat in running}
        finished = sum(self.flops.get(node_id, 0.0) * share for node_id, share in shares.items())
        unreachable = {*progress.failed, *progress.blocked}
        total = sum(flops for node_id, flops in self.flops.items() if node_id not in unreachable)
        of_runs = ", ".join(f"{node.name} {_share(beat):.0%}" for node, beat in running)
        text = " | ".join(filter(None, [*counts, of_runs]))
        self.bars.update(self.bar, description=printable(text), completed=finished, total=total)
        if not self.has_bar:
            self.say(f"{text} | {TimeRemainingColumn().render(self.bars.tasks[0])} left")

    def _running(self) -> list[tuple[Node, Mapping]]:
        """Returns running runs with their heartbeat, without those that wait for a process."""
        at = self.progress.running
        found = [(self.nodes[i], self.store.run(i).progress()) for i in at if i in self.flops]
        return [(n, b) for n, b in found if b and b["time"] >= at[n.id] and not b.get("released")]

    def begin_trials(self, number: int) -> None:
        """Begins a round of this number of trials."""
        self.bars.reset(self.bar, total=number)

    def trial_started(self, name: str) -> None:
        self.trials.add(name)
        self._show_trials()

    def trial_ended(self, name: str, line: str) -> None:
        self.trials.discard(name)
        self.bars.advance(self.bar)
        task = self.bars.tasks[0]
        self.say(f"[{task.completed:>3.0f}/{task.total}] {line}")
        self._show_trials()

    def _show_trials(self) -> None:
        task = self.bars.tasks[0]
        ended = f"{task.completed:.0f} of {task.total} trials ended"
        text = " | ".join([ended, f"{len(self.trials)} running", ", ".join(sorted(self.trials))])
        self.bars.update(self.bar, description=printable(text))


def _share(beat: Mapping) -> float:
    return beat["step"] / max(beat["num_steps"], 1)


def show_results(console: Console, text: str, brief: Callable[[bool], Brief] | None) -> None:
    """Prints the whole text; on a terminal the results in short, if there are any."""
    if brief is None or not console.is_terminal:
        console.print(Text(printable(text)), soft_wrap=True)
        return
    shown = brief(console.width >= WIDE)
    for title, frame in shown.tables.items():
        widths = [max(map(len, map(str, [name, *frame[name]]))) + 2 for name in frame]
        num_fitting = max(sum(width - 2 <= console.width for width in accumulate(widths)), 1)
        table = frame_text(frame.iloc[:, :num_fitting])
        console.print(Text(printable(f"{title}\n{table}\n")))
    counts = [f"{shown.verdicts[name]} {name}" for name in VERDICTS if shown.verdicts.get(name)]
    claims = f"claims: {', '.join(counts)}" if counts else ""
    lines = filter(None, (shown.text, claims, shown.warning, "see the report for the rest"))
    console.print(Text(printable("\n".join(lines))))
