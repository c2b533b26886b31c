"""Executes a study's nodes one after another in this process, without Ray: to debug, and where Ray is not installed."""

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from gram_platform.config import AnyEvaluation, RunConfig
from gram_platform.engine.evaluation import Task, common_work, execute_evaluation, execute_task
from gram_platform.engine.execution import Execution
from gram_platform.engine.life import HELD_RETRY_S, NodeLifecycle, Progress, failure_message
from gram_platform.engine.node import execute_run
from gram_platform.engine.process import OutOfMemory, TerminationNotice, is_out_of_memory, termination_notice
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld
from gram_platform.train.loop import TrainingDiverged

TIME_IS_UP = 3  # the exit code when `limit_s` has passed and nodes are left


def run_in_process(
    nodes: Sequence[Node],
    execution: Execution,
    on_change: Callable[[Progress, Node | None], None] = lambda progress, node: None,
    poll_s: float = 1.0,
    retry_diverged: bool = False,
    may_start: Callable[[], bool] = lambda: True,
    limit_s: float = math.inf,
) -> Progress:
    """Executes all nodes that are not done and returns the final progress: `run_graph` without Ray, for one rank a run.

    A ValueError, a non-finite loss and a lack of memory fail a node and block its dependants; any other error rises, so
    that a debugger stops where it happened. SIGTERM, Ctrl-C and the end of `limit_s` end the process (the last with
    code `TIME_IS_UP`) after the current step, with a checkpoint. `on_change`, `may_start`: as in `run_graph`.
    """
    progress = Progress(nodes)
    sequence = _Sequence(progress, execution, NodeLifecycle(execution.store(), retry_diverged))
    watched = _Notice(lambda: on_change(progress, None), poll_s, limit_s)
    with termination_notice(watched, _signals()) as notice:
        while sequence.is_left() and may_start():
            if notice.given:
                notice.exit()
            for node in sequence.execute_next(notice):
                on_change(progress, node)
    return progress


class _Sequence:
    def __init__(self, progress: Progress, execution: Execution, lifecycle: NodeLifecycle):
        self.progress, self.execution, self.lifecycle = progress, execution, lifecycle
        self.alone: set[str] = set()  # evaluations whose common task failed: each is retried alone
        self.not_before: dict[str, float] = {}  # of nodes that another driver works on
        self.waiting = [node for node in progress.nodes if not lifecycle.settles(node, progress)]
        progress.reused = len(progress.done)

    def is_left(self) -> bool:
        """Tells whether a node can still be executed; drops those that are over."""
        over = {*self.progress.done, *self.progress.failed, *self.progress.blocked}
        self.waiting = [node for node in self.waiting if node.id not in over]
        return bool(self.waiting)

    def execute_next(self, notice: TerminationNotice) -> list[Node]:
        """Executes the next task and returns those of its nodes that ended; waits while other drivers hold all."""
        task = self._next_task()
        if not task:
            time.sleep(HELD_RETRY_S / 2)
        elif not (task[0].id in self.not_before and self.lifecycle.settles(task[0], self.progress)):
            self._execute_into(task, notice)
        return [node for node in task if node.id in self.progress.done or node.id in self.progress.failed]

    def _next_task(self) -> Task:
        """Chooses the first ready node, evaluations before runs, with all that share its work; () if none is ready."""
        now, done = time.monotonic(), self.progress.done
        ready = [n for n in self.waiting if n.needs <= done and self.not_before.get(n.id, 0.0) <= now]
        if not ready:
            return ()
        first = min(ready, key=lambda node: node.kind)  # "evaluation" < "run"; of equals the first
        work = self._common_work(first)
        return (first,) if work is None else tuple(node for node in ready if self._common_work(node) == work)

    def _common_work(self, node: Node) -> tuple | None:
        is_alone = isinstance(node.config, RunConfig) or node.id in self.alone
        return None if is_alone else common_work(node.config)

    def _execute_into(self, task: Task, notice: TerminationNotice) -> None:
        """Executes a task and records its end, or how it is tried again after another's lease or a common failure."""
        ids = [node.id for node in task]
        self.progress.running = dict.fromkeys(ids, time.time())
        try:
            self.progress.warnings[ids[0]] = _execute(task, self.execution, notice)
            self.progress.done.update(ids)
        except LeaseHeld:
            self.not_before[ids[0]] = time.monotonic() + HELD_RETRY_S
        except Exception as error:
            if not (isinstance(error, ValueError | TrainingDiverged | OutOfMemory) or is_out_of_memory(error)):
                raise
            if len(task) > 1:
                self.alone.update(ids)
            else:
                self.progress.failed[ids[0]] = failure_message(error)
        finally:
            self.progress.running = {}


def _execute(task: Task, execution: Execution, notice: TerminationNotice) -> list[str]:
    """Executes a task and returns the warnings."""

    def execute_one(config: RunConfig | AnyEvaluation, tags: Mapping[str, str]) -> None:
        alone = execution.of_node(config, tags)
        assert alone.num_ranks == 1, f"{task[0].name} has {alone.num_ranks} ranks"
        if isinstance(config, RunConfig):
            execute_run(config, tags, alone, notice)
        else:
            execute_evaluation(config, tags, alone)

    return execute_task([node.config for node in task], [node.names for node in task], execution, execute_one)


class _Notice(TerminationNotice):
    """Also ends the process after `limit_s`, and calls `poll` every `poll_s` while a run asks, in the run's thread."""

    def __init__(self, poll: Callable[[], None], poll_s: float, limit_s: float):
        super().__init__()
        self._poll, self._poll_s = poll, poll_s
        self._deadline, self._polled = time.monotonic() + limit_s, -math.inf

    @property
    def given(self) -> bool:
        now = time.monotonic()
        if now >= self._deadline:
            self.give(TIME_IS_UP)
        if now - self._polled >= self._poll_s:
            self._polled = now
            self._poll()
        return super().given


def _signals() -> tuple[int, ...]:
    """Lists the signals that end the process with a checkpoint; a debugger keeps its own Ctrl-C."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (signal.SIGTERM, signal.SIGINT) if is_default else (signal.SIGTERM,)


def has_gpu() -> bool:
    """Tells whether torch can use a GPU of this machine."""
    return torch.cuda.is_available()
