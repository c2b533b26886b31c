"""Gives the parts of a corpus to Ray tasks of one CPU each, on this machine or on all of the cluster."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import ray
from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gram_platform.config.endings import Stopped
from gram_platform.corpora.parts import Result, Task, Workers, call_on_one_core, in_turn
from gram_platform.engine.capacity import has_fixed_size
from gram_platform.engine.cluster import LOST, ClusterLost, require_ray
from gram_platform.engine.life import MAX_CRASHES, SUBMIT_AGAIN

IN_FLIGHT = 512  # tasks given to Ray at once: what an autoscaler sees
LOOK_EVERY_S = 1.0


def part_workers(connect: Callable[[], None], anywhere: bool) -> Workers:
    """Returns workers that `connect` to Ray once there is work for two; a task whose process dies is started again.

    `anywhere`: on any machine of the cluster, which must see the same files; else on this one. Where there are no two
    CPUs, this process does the work. ClusterLost when the Ray is gone.
    """
    return partial(_spread, connect, anywhere)


def _spread(
    connect: Callable[[], None], anywhere: bool, function: Callable[[Task], Result], tasks: Sequence[Task]
) -> Iterator[tuple[int, Result]]:
    if len(tasks) > 1:
        connect()
    if len(tasks) < 2 or not _has_room(anywhere):
        yield from in_turn(function, tasks)
        return
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    place = "SPREAD" if anywhere else here
    call = ray.remote(num_cpus=1, max_retries=MAX_CRASHES, scheduling_strategy=place)(call_on_one_core)
    require_ray()
    shared, left, running = ray.put(function), enumerate(tasks), {}
    try:
        while True:
            room = IN_FLIGHT - len(running)
            running |= {call.remote(shared, task): index for index, task in islice(left, room)}
            if not running:
                return
            require_ray()
            for reference in ray.wait(list(running), num_returns=1, timeout=LOOK_EVERY_S)[0]:
                yield running.pop(reference), _result(reference)
    except ClusterLost:
        running.clear()  # to cancel would wait for the head
        raise
    finally:
        for reference in running:
            ray.cancel(reference)


def _has_room(anywhere: bool) -> bool:
    """Tells whether two tasks can run at once, now or after an autoscaler has started machines."""
    node_id = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"] and (anywhere or node["NodeID"] == node_id)]
    return sum(node["Resources"].get("CPU", 0.0) for node in nodes) >= 2 or (anywhere and not has_fixed_size())


def _result(reference: ray.ObjectRef) -> object:
    """Returns a task's result; raises its error as it was, for the caller's own handlers; Stopped if it cannot run."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from error
    except LocalRayletDiedError as error:
        raise ClusterLost(LOST) from error
    except RayError as error:  # its process died again and again
        raise Stopped(f"a part of the corpus could not be packed on Ray: {error}. {SUBMIT_AGAIN}") from error
