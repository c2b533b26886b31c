"""Executes groups of nodes one after another, and yields events about the nodes.

The state of the nodes is in the storage. An executor only decides which node starts next.
"""

import contextlib
import math
import signal
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from gram_platform.config import AnyEvaluation, RunConfig
from gram_platform.config.endings import SUBMIT_AGAIN, TIME_IS_UP, Stopped
from gram_platform.engine.devices import DeviceError, probe_after_error
from gram_platform.engine.evaluation import Task, execute_evaluation, execute_profiles
from gram_platform.engine.execution import (
    ALL_ON_ONE_RANK,
    ON_ONE_RANK,
    Execution,
    Placement,
    Resources,
)
from gram_platform.engine.heartbeats import Heartbeats
from gram_platform.engine.life import (
    FAILED,
    HELD,
    HELD_RETRY_S,
    LACKS_MEMORY,
    NodeLifecycle,
    Progress,
    WaitingNodes,
    failure_message,
    kind_of,
)
from gram_platform.engine.node import execute_run
from gram_platform.engine.process import StopRequest, stop_on_signal
from gram_platform.methods.nodes import Node

TICK_S = 1.0
# The kinds of events. An ended node is done, or has failed if the event has a text. A warning is
# about a node, or says why it restarts. WAITED means that time has passed.
STARTED, ENDED, WARNED, WAITED = "started", "ended", "warned", "waited"


@dataclass(frozen=True)
class Event:
    kind: str
    node: Node | None = None
    text: str = ""


class Executor:
    """Executes nodes. Subclasses define where nodes run.

    `done` contains the ids of nodes that are known to be done. The storage is not searched for
    their results. `placements` are keyed by node id.
    """

    def __init__(
        self,
        execution: Execution,
        placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
        retry_diverged: bool = False,
        done: Collection[str] = (),
    ):
        self.execution, self.placements, self.store = execution, placements, execution.store()
        self.progress, self.lifecycle = Progress(), NodeLifecycle(self.store, retry_diverged)
        self.waiting = WaitingNodes(self.progress, self.lifecycle, placements)
        self.is_stopping, self._known, self._happened = False, frozenset(done), list[Event]()
        self._heartbeats, self._begun_runs = Heartbeats(self.store), set[str]()
        # A callback about once a second, even while this process executes a node.
        self.look: Callable[[], None] = lambda: None

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_) -> None:
        """Stops this executor's idle processes."""

    def events(self, source: Iterable[Sequence[Node]]) -> Iterator[Event]:
        """Executes the nodes in `source` that are not done, and yields events.

        Takes the next group of nodes from `source` when all nodes of earlier groups have ended.
        """
        for nodes in source:
            self.progress.done |= self._known & {node.id for node in nodes}
            self.waiting.add(nodes)
            # Lets the reader of the events stop before the first node starts.
            yield Event(WAITED)
            while self.advance():
                yield from self._take()
                self.wait()
                yield from self._take() or (Event(WAITED),)

    def advance(self) -> bool:
        """Starts nodes that can start now; returns False if nothing is left to do."""
        raise NotImplementedError

    def wait(self) -> None:
        """Waits until a node ends, but only for about a second."""
        raise NotImplementedError

    def look_at_runs(self) -> bool:
        """Updates `progress.heartbeats`, and calls `look`. Returns True if heartbeats are new."""
        running = (i for i in self.progress.running if i in self._begun_runs)
        has_new = self._heartbeats.look(running)
        self.progress.heartbeats = self._heartbeats.latest
        self.look()
        return has_new

    def _take(self) -> list[Event]:
        events, self._happened = self._happened, []
        return events

    def note_start(self, task: Task) -> None:
        self.waiting.start(task)
        self.progress.running |= {node.id: time.time() for node in task}
        self._begun_runs |= {node.id for node in task if node.is_run}
        self._happened += [Event(STARTED, node) for node in task]

    def note_end(self, node: Node) -> None:
        self._happened.append(Event(ENDED, node, self.progress.failed.get(node.id, "")))

    def warn(self, node: Node, texts: Sequence[str]) -> None:
        self._happened += [Event(WARNED, node, text) for text in texts]

    def placement(self, task: Task) -> Placement:
        return self.placements.get(task[0].id, ON_ONE_RANK)


class LocalExecutor(Executor):
    """Executes nodes one after another in this process, without Ray.

    A node fails on a ValueError, a non-finite loss or an out-of-memory error, and blocks its
    dependants. A device error is raised as Stopped, with the result of a probe. All other errors
    are raised unchanged, so that a debugger stops where they occurred. On SIGTERM, on Ctrl-C or
    after `limit_s` (exit code `TIME_IS_UP`), the process exits after the current step, with a
    checkpoint.
    """

    # The seconds from the start of the block after which the process stops.
    limit_s = math.inf
    _next_look_s = 0.0
    _next_task: Task = ()

    def __enter__(self) -> "LocalExecutor":
        self._deadline, self._signals = time.monotonic() + self.limit_s, contextlib.ExitStack()
        # A debugger, which replaces the handler, keeps its Ctrl-C.
        has_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signals = (signal.SIGTERM, signal.SIGINT) if has_default else (signal.SIGTERM,)
        request = StopRequest(look=self._look)
        self._stop = self._signals.enter_context(stop_on_signal(request, signals))
        return self

    def __exit__(self, *_) -> None:
        self._signals.close()

    def _look(self, request: StopRequest) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            request.receive(TIME_IS_UP)
        if now >= self._next_look_s:
            self._next_look_s = now + TICK_S
            self.look_at_runs()

    def advance(self) -> bool:
        if self._stop.received:
            self._stop.exit()
        if self.is_stopping or not self.waiting:
            return False
        for node in self.waiting.look_again():
            self.note_end(node)
        self._next_task = next((task for _, tasks in self.waiting.tasks() for task in tasks), ())
        if self._next_task:
            self.note_start(self._next_task)
        return True

    def wait(self) -> None:
        if self._next_task:
            self._execute(self._next_task)
        else:
            time.sleep(HELD_RETRY_S / 2)

    def _execute(self, task: Task) -> None:
        execution = self.execution.with_placement(self.placement(task))
        try:
            with probe_after_error(execution.device):
                self.warn(task[0], execute_task(task, execution, stop_request=self._stop))
        except DeviceError as error:
            raise Stopped(f"{error}. {SUBMIT_AGAIN}") from error
        except Exception as error:
            kind = kind_of(error)
            if kind == HELD:
                self.waiting.retry(task[0], held=True)
            elif kind not in (FAILED, LACKS_MEMORY):
                raise
            elif len(task) == 1:
                self.waiting.fail(task[0], failure_message(error))
                self.note_end(task[0])
            else:
                for node in task:
                    self.waiting.retry(node, 0.0, alone=True)
            return
        finally:
            self.progress.running.clear()
        for node in task:
            self.waiting.finish(node)
            self.note_end(node)


def execute_task(
    task: Sequence[Node],
    execution: Execution,
    resources: Resources | None = None,
    stop_request: StopRequest | None = None,
) -> list[str]:
    """Executes a node, or evaluations with equal `common_work`; returns the warnings as strings."""
    configs, tags = [node.config for node in task], [node.names for node in task]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        if len(task) > 1:
            execute_profiles(configs, tags, execution)
        else:
            execute_node(configs[0], tags[0], execution, resources, stop_request)
    return [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]


def execute_node(
    config: RunConfig | AnyEvaluation,
    tags: Mapping[str, str],
    execution: Execution,
    resources: Resources | None = None,
    stop_request: StopRequest | None = None,
) -> dict:
    """Executes a node and returns its result.

    A multi-rank run is executed on Ray Train with `resources`, any other node in this process.
    `stop_request` is passed to `execute_run`. Raises LeaseHeld if another process is executing the
    run. For a multi-rank run, checks this before requesting workers from Ray.
    """
    if not isinstance(config, RunConfig):
        return execute_evaluation(config, tags, execution)
    if execution.num_ranks == 1:
        return execute_run(config, tags, execution, stop_request)
    assert resources is not None, f"run {config.run_id} has {execution.num_ranks} ranks"
    execution.store().run(config.run_id).require_free()
    # Imported here, because Ray Train and FSDP take a second.
    from gram_platform.engine.dispatch import execute_sharded_run

    return execute_sharded_run(config, tags, execution, resources)


def num_gpus() -> int:
    return torch.cuda.device_count()
