"""Chooses a submission's device, and places the nodes on it."""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import ray

from gram_platform.config import RunConfig
from gram_platform.config.flops import GIB
from gram_platform.config.identity import invalid, mask_secrets
from gram_platform.config.provenance import code_of_process
from gram_platform.engine.capacity import (
    Cordon,
    await_report,
    count_slots,
    has_fixed_size,
    require_capacity,
    usable_resources,
    widest_missing,
)
from gram_platform.engine.cluster import connect
from gram_platform.engine.devices import ProbeReport
from gram_platform.engine.execution import Division, Execution, Placement, Resources
from gram_platform.engine.executor import Executor, LocalExecutor, num_gpus
from gram_platform.engine.life import NodeLifecycle, find_ended_ids
from gram_platform.engine.machine import num_cpus
from gram_platform.engine.ray_executor import RayExecutor
from gram_platform.engine.ray_private import largest_cluster
from gram_platform.methods.nodes import Node
from gram_platform.planner import (
    MACHINES,
    Machine,
    estimate_hours,
    pays_to_compile,
    plan_passes,
)
from gram_platform.planner.ranks import Ranks
from gram_platform.store import Store
from gram_platform.store.root import HISTORY, write_cordoned
from gram_platform.studies.plan import CPU, Left, Plan, StudyPlan, price, work_left

CUDA = "cuda"


@dataclass(frozen=True)
class Workplace:
    """Where a submission's nodes run, as decided before the first node starts."""

    execution: Execution
    cordon: Cordon
    # Both are False if nothing is left to execute.
    executes: bool
    uses_ray: bool
    # Places a node that a search proposes.
    place: Callable[[Node], Placement]
    placements: Mapping[str, Placement]
    done: frozenset[str]


def open_workplace(plan: Plan, store: Store, say: Callable[[str], None]) -> Workplace:
    """Places each missing node, and connects to Ray if needed.

    Raises the errors of `require_capacity` and `note_device`. Raises PermissionError if a folder is
    not writable.
    """
    ends = NodeLifecycle(store).ends(plan.nodes)
    done = frozenset(node_id for node_id, end in ends.items() if end == "")
    missing = [node for node in plan.nodes if node.id not in done]
    executes = bool(missing) or any(part.has_trials for part in plan.studies)
    uses_ray = executes and not plan.in_process
    on_cordon = cordons_noted(store, [part.name for part in plan.studies], say)
    if uses_ray:
        connect(plan.verbose)
        if advice := advice_on_place():
            say(advice)
    execution, resources = execution_of(plan)
    # A node of several studies has the ranks of the first.
    ranks_of = {node.id: part.ranks for part in plan.studies[::-1] for node in part.entries}

    def place(node: Node) -> Placement:
        ranks, share = ranks_of.get(node.id, plan.studies[0].ranks), plan.resources.gpus_per_run
        return placement_of(node, ranks, execution.device, share, plan.compiled)

    placements = {node.id: place(node) for node in missing}
    if uses_ray:
        require_capacity(widest_missing(missing, placements, store), resources, say)
    if executes:
        note_device(plan, store, execution.device)
    folders = [store.study_dir(part.name).child(HISTORY) for part in plan.studies]
    for folder in (*folders, *(store.node(node.kind, node.id).folder for node in missing)):
        folder.require_rights()
    cordon = Cordon(resources, on_cordon)
    return Workplace(execution, cordon, executes, uses_ray, place, placements, done)


def executor_at(at: Workplace, retry_failed: bool) -> Executor:
    if at.uses_ray:
        return RayExecutor(at.execution, at.cordon, at.placements, retry_failed, at.done)
    return LocalExecutor(at.execution, at.placements, retry_failed, at.done)


def execution_of(plan: Plan) -> tuple[Execution, Resources]:
    device = plan.device or CPU
    execution = replace(plan.execution, device=device, code=str(code_of_process()))
    return execution, resources_on(plan, device)


def resources_on(plan: Plan, device: str) -> Resources:
    gpus = 0.0 if device == CPU else 1.0
    gpus_per_run = gpus * plan.resources.gpus_per_run
    return replace(plan.resources, gpus_per_rank=gpus, gpus_per_run=gpus_per_run)


def require_gpu(plan: Plan, store: Store) -> None:
    """Raises ValueError if nodes need a GPU, but there is neither a local GPU nor a Ray cluster.

    A cluster is enough, because it may start machines with GPUs.
    """
    if plan.device != CUDA or not find_left(plan, store):
        return
    if not (num_gpus() or connect(may_start=False)):
        raise invalid("device", CUDA, "cpu, because this machine has no GPU, and no Ray to join")


def with_ranks(plan: Plan, store: Store, is_dry: bool = False) -> tuple[Plan, int]:
    """Returns (plan with a number of ranks for each size, number of GPUs or CPU slots).

    The second number is 0 if it is unlimited, unknown or not needed. A dry run does not start Ray.
    Raises the errors of `Plan.with_ranks`.
    """
    open_sizes = {size for part in plan.studies for size in part.open_sizes}
    ids = {node_id for left in find_left(plan, store) for node_id in left.ids}
    runs = [n.id for n in plan.nodes if n.is_run and n.id in ids and n.size in open_sizes]
    if not (is_dry or runs):
        return plan.with_ranks(0, {}), 0
    num_slots = plan.num_slots or _slots_there(plan, is_dry)
    leases = store.concurrently(lambda run_id: store.run(run_id).progress() or {}, runs)
    pairs = zip(runs, leases, strict=True)
    begun = {run_id: lease["num_ranks"] for run_id, lease in pairs if "num_ranks" in lease}
    return plan.with_ranks(num_slots, begun), num_slots


def _slots_there(plan: Plan, is_dry: bool) -> int:
    """Returns how many ranks Ray or this machine can run at once, at most --max-gpus.

    If a GPU plan finds no GPUs, or a cluster's limit is unknown, returns --max-gpus (default: 0).
    """
    if plan.in_process:
        return 1
    device = plan.device or plan.studies[0].machine.device
    resources = resources_on(plan, device)
    if connect(plan.verbose, may_start=not is_dry):
        if device == CUDA:
            await_report()
        there = usable_resources(resources) if has_fixed_size() else largest_cluster()
    else:
        there = {"CPU": num_cpus(), "GPU": num_gpus()}
    return min(filter(None, (count_slots(resources, there), resources.max_gpus)), default=0)


def placement_of(
    node: Node,
    ranks: Ranks,
    device: str,
    gpu_share: float = 1.0,
    compiled: bool | None = None,
) -> Placement:
    """Returns the placement of a node on `device`, cpu or cuda.

    An evaluation has one rank. On GPUs, each rank gets the share `gpu_share` of a GPU's memory.
    `compiled` is as in `Plan`. Raises the errors of `Ranks.of`.
    """
    config = node.config
    if not isinstance(config, RunConfig):
        return Placement()
    machine = MACHINES[CPU]
    if device == ranks.machine.device == CUDA:
        machine = replace(ranks.machine, memory_bytes=gpu_share * ranks.machine.memory_bytes)
    choices = ranks.choices(config, node.size)
    divisions = (division_of(config, n, machine, device, ranks.checkpointing) for n in choices)
    hours = estimate_hours(node, machine) / choices[-1]
    return Placement(tuple(divisions), hours, is_compiled(node, ranks, device, compiled))


def is_compiled(node: Node, ranks: Ranks, device: str, compiled: bool | None) -> bool:
    if compiled is None and device == CUDA:
        hours = estimate_hours(node, ranks.machine) / ranks.choices(node.config, node.size)[-1]
        return pays_to_compile(node.config, hours)
    return bool(compiled)


def division_of(
    run: RunConfig, num_ranks: int, machine: Machine, device: str, checkpointing: bool
) -> Division:
    """Divides a run on `num_ranks` ranks into passes that fit into memory.

    The division includes the advice to print if memory runs out.
    """

    def gib(number: int, recomputes: bool) -> str:
        passes = plan_passes(run, number, machine, device, recomputes)
        return f"{passes.memory.total / GIB:.3g} GiB"

    larger = range(num_ranks + 1, run.micro_batch + 1)
    more = next((n for n in larger if run.micro_batch % n == 0), None)
    remedies = [] if checkpointing else [f"--activation-checkpointing: {gib(num_ranks, True)}"]
    remedies += [f"--num-workers {more}: {gib(more, checkpointing)} each"] if more else []
    each = f" on each of {num_ranks} ranks" if num_ranks > 1 else ""
    less = f"Less with {', or '.join(remedies)}; otherwise use" if remedies else "Use"
    advice = (
        f"The planner counts {gib(num_ranks, checkpointing)}{each}, and about 1 GiB for the process"
        f" itself. {less} a machine with more memory."
    )
    passes = plan_passes(run, num_ranks, machine, device, checkpointing)
    return Division(num_ranks, passes.num_passes, passes.num_merged, passes.memory.total, advice)


def machine_text(uses_ray: bool) -> str:
    if not uses_ray:
        return f"this process on {num_cpus()} cores"
    nodes, total = [node for node in ray.nodes() if node["Alive"]], ray.cluster_resources()
    kinds = sorted(name.partition(":")[2] for name in total if name.startswith("accelerator_type:"))
    gpus = f", {total['GPU']:g} GPUs ({', '.join(kinds)})" if total.get("GPU") else ""
    return (
        f"{len(nodes)} machine{'s' * (len(nodes) != 1)} of Ray with {total.get('CPU', 0.0):g}"
        f" CPUs{gpus}"
    )


def upload_of_job() -> str:
    """Returns the hash of a Ray job's uploaded files, or "" outside a job."""
    environment = ray.get_runtime_context().runtime_env if ray.is_initialized() else {}
    folder = environment.get("working_dir", "")
    return Path(folder).stem if folder.startswith("gcs://") else ""


# The resource of machines for drivers, as in `cluster/`.
DRIVER = "driver"


def advice_on_place() -> str:
    """Advises to start the driver on another machine if this one has no CPUs for Ray.

    Returns "" if Ray has CPUs here, or if the cluster cannot grow and has no machines for drivers.
    """
    here = ray.get_runtime_context().get_node_id()
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["NodeID"] == here)
    if cpus or not (DRIVER in ray.cluster_resources() or not has_fixed_size()):
        return ""
    flag = f"--entrypoint-resources '{json.dumps({DRIVER: 1})}'"
    return (
        "this driver is on a machine without CPUs for work, such as a head:"
        f" `ray job submit {flag}` starts it on a machine of its own"
    )


def cordons_noted(
    store: Store, studies: Sequence[str], say: Callable[[str], None]
) -> Callable[[ProbeReport], None]:
    """Returns a function that prints and stores each machine that this submission avoids.

    `gram status` and reports show these machines. Those of earlier submissions are removed first.
    """
    machines: list[dict] = []

    def keep() -> None:
        for study in studies:
            write_cordoned(store, study, machines)

    def note(report: ProbeReport) -> None:
        say(f"{report}; this submission starts no process there any more")
        machines.append({**asdict(report), "message": str(report), "time": time.time()})
        keep()

    keep()
    return note


def machine_hours(store: Store, node: Node) -> float:
    timing = store.node(node.kind, node.id).timing()
    return timing.get("elapsed_s", 0.0) * timing.get("num_ranks", 1) / 3600


# Each preset's device on each corpus, in the folder of a study or search.
FILE = "devices.json"
Devices = dict[str, Literal["cpu", "cuda"]]


def choose_device(plan: Plan, store: Store) -> str:
    """Returns --device, or else the device on which a study began, or else an available one.

    May return "" if no work remains. Raises ValueError in these cases:

    - A study began on another device.
    - The device is cuda, but --in-process finds no GPU.
    - The cluster starts machines on demand, and a study for GPUs has no device yet.
    """
    ended = find_ended(plan, store)
    known = (find_device(part, store, ended) for part in plan.studies)
    device = plan.device or next(filter(None, known), "")
    for part in plan.studies:
        _require_same(part, store, device)
    left = work_left(plan.studies, ended)
    if not left:
        return device
    if plan.in_process:
        device = device or (CUDA if num_gpus() else CPU)
        if device == CUDA and not num_gpus():
            expected = "cpu with --in-process, because torch finds no GPU on this machine"
            raise invalid("device", device, expected)
    if device:
        return device
    connect(plan.verbose)
    has_gpus = lambda: bool(ray.cluster_resources().get("GPU"))  # noqa: E731
    if not any(work.part.machine.device == CUDA for work in left):
        return CUDA if has_gpus() else CPU
    if has_fixed_size() and has_gpus():
        return CUDA
    # Waits for an autoscaler that has just started.
    await_report()
    if has_fixed_size():
        return CPU
    # The present machines say nothing about those that start on demand.
    presets = ", ".join(dict.fromkeys(work.part.preset_name for work in left))
    on_gpus, on_cpus = price(left)[0], price(left, MACHINES[CPU])[0]
    expected = (
        f"--device cuda or --device cpu: the preset {presets} plans for GPUs, and this cluster"
        f" starts machines on demand. cuda asks for machines with GPUs ({on_gpus}), cpu for none"
        f" ({on_cpus})"
    )
    raise invalid("device", "", expected)


def find_ended(plan: Plan, store: Store) -> set[str]:
    """Returns the ids of nodes that need not be executed."""
    return find_ended_ids(plan.nodes, store, plan.retry_failed)


def find_left(plan: Plan, store: Store) -> list[Left]:
    return work_left(plan.studies, find_ended(plan, store))


def find_device(part: StudyPlan, store: Store, ended: Collection[str]) -> str:
    """Returns the device on which a study began, or else an ended run's device, or else ""."""
    if began := began_on(part, store):
        return began
    # Runs from a handover come without devices.json.
    runs = (store.run(node.id) for node in part.nodes if node.is_run and node.id in ended)
    name = next(filter(None, (run.timing().get("device", "") for run in runs)), "")
    return CUDA if name not in ("", CPU) else name


def device_rule(plan: Plan, part: StudyPlan, device: str) -> str:
    if device:
        return device if device == plan.device else f"{device}, on which it began"
    rule = "cuda if Ray has a GPU at the start, else cpu"
    if part.machine.device == CUDA:
        rule += (
            "; on a cluster that starts machines on demand --device cuda or --device cpu must be"
            " given"
        )
    return rule


def began_on(part: StudyPlan, store: Store) -> str:
    return part.folder(store).read_or_set_aside(FILE, Devices).get(_key(part), "")


def _require_same(part: StudyPlan, store: Store, device: str) -> None:
    began = began_on(part, store)
    if began not in ("", device):
        expected = (
            f"{began}, on which {part.name} ({_key(part)}) began: results of two devices are not"
            f" comparable. Use another --storage for {device}, or remove"
            f" {part.folder(store).path}/{FILE} to mix them"
        )
        raise invalid("device", device, expected)


def note_device(plan: Plan, store: Store, device: str) -> None:
    """Stores the device of the plan's studies. Raises ValueError if another device is stored."""
    for part in plan.studies:
        folder = part.folder(store)
        if began_on(part, store) != device:
            with folder.lock("devices"):
                _require_same(part, store, device)
                devices = folder.read_or_set_aside(FILE, Devices)
                folder.write_json(FILE, {**devices, _key(part): device})


def _key(part: StudyPlan) -> str:
    corpus = f"corpus {mask_secrets(part.choice.corpus)}"
    return ", ".join([f"preset {part.preset_name}", *part.changes, corpus])
