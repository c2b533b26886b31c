"""Executes nodes in this process: a task of a slot, or a study one after another without Ray.

The latter is to debug, and for machines without Ray.
"""

import math
import signal
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from gram_platform.config import AnyEvaluation, RunConfig
from gram_platform.config.endings import SUBMIT_AGAIN, TIME_IS_UP, Stopped
from gram_platform.engine.devices import DeviceError, device_errors_probed
from gram_platform.engine.evaluation import execute_evaluation, execute_profiles
from gram_platform.engine.execution import (
    ALL_ON_ONE_RANK,
    ON_ONE_RANK,
    Execution,
    Placement,
    Resources,
)
from gram_platform.engine.life import (
    HELD_RETRY_S,
    NodeLifecycle,
    Progress,
    WaitingNodes,
    failure_message,
)
from gram_platform.engine.node import execute_run
from gram_platform.engine.process import StopRequest, is_out_of_memory, stop_on_signal
from gram_platform.methods.nodes import Node
from gram_platform.store import LeaseHeld
from gram_platform.train.loop import TrainingDiverged


def run_in_process(
    nodes: Sequence[Node],
    execution: Execution,
    on_change: Callable[[Progress, Node | None], None] = lambda progress, node: None,
    poll_s: float = 1.0,
    retry_diverged: bool = False,
    may_start: Callable[[], bool] = lambda: True,
    done: Collection[str] = (),
    limit_s: float = math.inf,
    placements: Mapping[str, Placement] = ALL_ON_ONE_RANK,
) -> Progress:
    """Executes all nodes that are not done and returns the final progress: `run_graph` without Ray.

    A ValueError, a non-finite loss and a lack of memory fail a node and block its dependants. An
    error of the device becomes Stopped, with the outcome of a probe; any other error rises, so that
    a debugger stops where it happened. SIGTERM, Ctrl-C and the end of `limit_s` end the process
    (the last with code `TIME_IS_UP`) after the current step, with a checkpoint. `on_change`,
    `may_start`, `done`, `placements`: as in `run_graph`.
    """
    progress = Progress(nodes, {node.id for node in nodes} & set(done))
    waiting = WaitingNodes(progress, NodeLifecycle(execution.store(), retry_diverged))
    deadline, next_poll = time.monotonic() + limit_s, -math.inf

    def look(request: StopRequest) -> None:
        nonlocal next_poll
        now = time.monotonic()
        if now >= deadline:
            request.receive(TIME_IS_UP)
        if now >= next_poll:
            next_poll = now + poll_s
            on_change(progress, None)

    with stop_on_signal(StopRequest(look=look), _signals()) as stop_request:
        while waiting and may_start():
            if stop_request.received:
                stop_request.exit()
            for node in _execute_next(waiting, progress, execution, placements, stop_request):
                on_change(progress, node)
    return progress


def _execute_next(
    waiting: WaitingNodes,
    progress: Progress,
    execution: Execution,
    placements: Mapping[str, Placement],
    stop_request: StopRequest,
) -> Sequence[Node]:
    """Executes the next task, and records its end or how it is tried again.

    Returns the nodes that ended. Waits while other drivers hold all.
    """
    if ended := waiting.look_again():
        return ended
    task = next((task for _, tasks in waiting.tasks() for task in tasks), ())
    if not task:
        time.sleep(HELD_RETRY_S / 2)
        return ()
    waiting.start(task)
    progress.running = dict.fromkeys((node.id for node in task), time.time())
    execution = execution.placed(placements.get(task[0].id, ON_ONE_RANK))
    try:
        with device_errors_probed(execution.device):
            progress.warn(task[0], execute_task(task, execution, stop_request=stop_request))
    except DeviceError as error:
        raise Stopped(f"{error}. {SUBMIT_AGAIN}") from error
    except LeaseHeld:
        waiting.again(task[0], held=True)
        return ()
    except Exception as error:
        if not (isinstance(error, ValueError | TrainingDiverged) or is_out_of_memory(error)):
            raise
        if len(task) == 1:
            waiting.failed(task[0], failure_message(error))
            return task
        for node in task:
            waiting.again(node, 0.0, alone=True)
        return ()
    finally:
        progress.running = {}
    for node in task:
        waiting.done(node)
    return task


def execute_task(
    task: Sequence[Node],
    execution: Execution,
    resources: Resources | None = None,
    stop_request: StopRequest | None = None,
) -> list[str]:
    """Executes a node, or evaluations with common work; returns the warnings.

    Arguments as `execute_node`.
    """
    configs, tags = [node.config for node in task], [node.names for node in task]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        if len(task) > 1:
            execute_profiles(configs, tags, execution)
        else:
            execute_node(configs[0], tags[0], execution, resources, stop_request)
    return [
        str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)
    ]


def execute_node(
    config: RunConfig | AnyEvaluation,
    tags: Mapping[str, str],
    execution: Execution,
    resources: Resources | None = None,
    stop_request: StopRequest | None = None,
) -> dict:
    """Executes a node and returns its result: a run of several ranks on Ray Train, others here.

    `resources`: of Ray; None where every node has one rank. `stop_request`: of the caller, as in
    `execute_run`. Raises LeaseHeld, before any worker is requested, while another process works on
    the run.
    """
    if not isinstance(config, RunConfig):
        return execute_evaluation(config, tags, execution)
    if execution.num_ranks == 1:
        return execute_run(config, tags, execution, stop_request)
    assert resources is not None, f"run {config.run_id} has {execution.num_ranks} ranks"
    execution.store().run(config.run_id).require_free()
    # Imported here: Ray Train and FSDP take a second.
    from gram_platform.engine.dispatch import execute_sharded_run

    return execute_sharded_run(config, tags, execution, resources)


def _signals() -> tuple[int, ...]:
    """Lists the signals that end the process with a checkpoint; a debugger keeps its own Ctrl-C."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (signal.SIGTERM, signal.SIGINT) if is_default else (signal.SIGTERM,)


def has_gpu() -> bool:
    """Returns whether torch can use a GPU of this machine."""
    return torch.cuda.is_available()
