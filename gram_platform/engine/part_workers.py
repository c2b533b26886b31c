"""Packs the parts of a corpus in single-core Ray tasks, on one or more machines."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import ray
from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gram_platform.config.endings import SUBMIT_AGAIN, Stopped
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.corpora.parts import Result, Task, Workers, call_on_one_core, in_turn
from gram_platform.engine.capacity import await_report, has_fixed_size
from gram_platform.engine.cluster import CLUSTER_LOST, ClusterLost, require_ray
from gram_platform.engine.life import MAX_CRASHES
from gram_platform.engine.machine import num_cpus as num_cores

# A custom resource of Ray, one for each core of a machine for fetching and packing.
PACK = "pack"
# Set to 1 if the cluster's autoscaler starts machines for packing, which Ray does not report.
STARTS_PACK_MACHINES = "GRAM_PACK_MACHINES"
# Tasks submitted to Ray at once, for which an autoscaler starts machines.
IN_FLIGHT = 512
LOOK_AT_PARTS_EVERY_S = 1.0


def part_workers(connect: Callable[[], None], anywhere: bool) -> Workers:
    """Returns a function that calls `connect`, then executes packing tasks on Ray.

    A single task runs in this process, without Ray and without `connect`. With `anywhere`, tasks
    run on any machines of the cluster, which must all see the same files. Otherwise, tasks run on
    this machine. A task whose process dies is retried. Raises ClusterLost if Ray dies.
    """
    return partial(_spread, connect, anywhere)


@dataclass(frozen=True)
class PackingPlace:
    """Ray's options for each packing task, and how many tasks are submitted to Ray at once."""

    options: dict[str, object]
    at_once: int = IN_FLIGHT


def placement(anywhere: bool) -> PackingPlace | None:
    """Chooses where packing tasks run. Returns None if only one task could run at a time.

    With `anywhere`, tasks run on the machines that have Ray's resource `pack`, so that they neither
    start nor slow down GPU machines. If the cluster has no such machines, tasks run on any of its
    CPUs. Without `anywhere`, tasks run on this machine: on the CPUs that Ray has here or, if there
    are none, on all cores.
    """
    if anywhere and _has_pack_machines():
        return PackingPlace(
            {"num_cpus": 0, "resources": {PACK: 1}, "scheduling_strategy": "SPREAD"}
        )
    node_id = ray.get_runtime_context().get_node_id()
    nodes = [n for n in ray.nodes() if n["Alive"] and (anywhere or n["NodeID"] == node_id)]
    cpus, cores = sum(node["Resources"].get("CPU", 0.0) for node in nodes), num_cores()
    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    if cpus >= 2 or (anywhere and not has_fixed_size()):
        return PackingPlace({"num_cpus": 1, "scheduling_strategy": "SPREAD" if anywhere else here})
    if not cpus and cores >= 2:
        return PackingPlace({"num_cpus": 0, "scheduling_strategy": here}, at_once=cores)
    return None


def _has_pack_machines() -> bool:
    starts = os.environ.get(STARTS_PACK_MACHINES, "")
    if starts not in ("", "0", "1"):
        raise invalid(
            STARTS_PACK_MACHINES, starts, "1 where the cluster starts machines for packing, else 0"
        )
    if PACK in ray.cluster_resources():
        return True
    if starts == "1":
        await_report()
    return starts == "1" and not has_fixed_size()


def _spread(
    connect: Callable[[], None],
    anywhere: bool,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
) -> Iterator[tuple[int, Result]]:
    if len(tasks) > 1:
        connect()
    packing = placement(anywhere) if len(tasks) > 1 else None
    if packing is None:
        yield from in_turn(function, tasks)
        return
    if PACK in packing.options.get("resources", ()) and PACK not in ray.cluster_resources():
        text = f"waiting for a machine that offers the resource {PACK!r}: the cluster starts it"
        say(f"{text}, and `ray status` shows what it lacks", sys.stderr)
    call = ray.remote(max_retries=MAX_CRASHES, **packing.options)(call_on_one_core)
    require_ray()
    shared, left, running = ray.put(function), enumerate(tasks), {}
    try:
        while True:
            num_free = packing.at_once - len(running)
            running |= {call.remote(shared, task): index for index, task in islice(left, num_free)}
            if not running:
                return
            require_ray()
            ended, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_AT_PARTS_EVERY_S)
            for reference in ended:
                yield running.pop(reference), _result(reference)
    except ClusterLost:
        # Cancelling the tasks would wait for the dead head.
        running.clear()
        raise
    finally:
        for reference in running:
            ray.cancel(reference)


def _result(reference: ray.ObjectRef) -> object:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from error
    except LocalRayletDiedError as error:
        raise ClusterLost(CLUSTER_LOST) from error
    except RayError as error:
        raise Stopped(
            f"a part of the corpus could not be packed on Ray: {error}. {SUBMIT_AGAIN}"
        ) from error
