"""Chooses the device on which a submission executes nodes: the one that its studies began on."""

from collections.abc import Collection, Iterable
from typing import Literal

import ray

from gram_platform.config.identity import invalid, masked
from gram_platform.engine.capacity import await_report, has_fixed_size
from gram_platform.engine.cluster import connect
from gram_platform.engine.in_process import has_gpu
from gram_platform.engine.life import ended_ids
from gram_platform.methods.nodes import unique
from gram_platform.planner import MACHINES
from gram_platform.store import Store
from gram_platform.studies.plan import CPU, Plan, StudyPlan
from gram_platform.studies.price import Left, price, work_left

CUDA = "cuda"
# A file beside the record of a study or a search: the device of each preset on each corpus.
FILE = "devices.json"
Devices = dict[str, Literal["cpu", "cuda"]]


def choose_device(plan: Plan, store: Store) -> str:
    """Returns --device, else the device that the studies began on or that has trained runs of
    theirs.

    Else it is what this process has, or what Ray has: then it connects to Ray. "" if nothing is
    left to execute. ValueError for another device than a study began on, where none is given and
    machines start on demand, and for a GPU that this process lacks.
    """
    ended = ended_of(plan.studies, store, plan.options.retry_failed)
    known = (known_device(part, store, ended) for part in plan.studies)
    device = plan.device or next(filter(None, known), "")
    for part in plan.studies:
        _require_same(part, store, device)
    left = work_left(plan.studies, ended)
    if not left:
        return device
    if not plan.needs_ray:
        device = device or (CUDA if has_gpu() else CPU)
        if device == CUDA and not has_gpu():
            expected = "cpu beside --in-process: torch finds no GPU on this machine"
            raise invalid("device", device, expected)
    if device:
        return device
    connect(plan.options.verbose)
    has_gpus = lambda: bool(ray.cluster_resources().get("GPU"))  # noqa: E731
    if not any(one.part.machine.device == CUDA for one in left):
        return CUDA if has_gpus() else CPU
    if has_fixed_size() and has_gpus():
        return CUDA
    # Waits for an autoscaler that has just started.
    await_report()
    if not has_fixed_size():
        raise _undecided(left)
    return CPU


def _undecided(left: Collection[Left]) -> ValueError:
    """Makes the error that asks for --device: what is up now says nothing about machines that start
    on demand."""
    presets = ", ".join(dict.fromkeys(one.part.preset_name for one in left))
    on_gpus, on_cpus = price(left)[0], price(left, MACHINES[CPU])[0]
    expected = (
        f"--device cuda or --device cpu: the preset {presets} plans for GPUs, and this cluster"
        f" starts machines on demand. cuda asks it for machines with GPUs ({on_gpus}); cpu trains"
        f" on CPU cores and asks for no GPU ({on_cpus})"
    )
    return invalid("device", "", expected)


def ended_of(studies: Iterable[StudyPlan], store: Store, retry_failed: bool) -> set[str]:
    """Returns the ids of the nodes that a submission of the studies leaves as they are."""
    return ended_ids(unique(node for part in studies for node in part.nodes), store, retry_failed)


def known_device(part: StudyPlan, store: Store, ended: Collection[str]) -> str:
    """Reads the device on which the study or search began with this preset and corpus.

    Else that of one finished run, which a handover may have brought; "" without any.
    """
    if began := began_on(part, store):
        return began
    runs = (store.run(node.id) for node in part.nodes if node.is_run and node.id in ended)
    name = next(filter(None, (run.timing().get("device", "") for run in runs)), "")
    return CUDA if name not in ("", CPU) else name


def device_rule(plan: Plan, part: StudyPlan, device: str) -> str:
    """Returns in words on which device a submission would execute the study."""
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
    """ValueError for another device than the study or search began on."""
    if not (began := began_on(part, store)) or began == device:
        return
    expected = (
        f"{began}, on which {part.name} ({_key(part)}) began: results of two devices are not"
        f" comparable. For {device} give another --storage, or remove"
        f" {part.folder(store).path}/{FILE} to mix them"
    )
    raise invalid("device", device, expected)


def note_device(plan: Plan, store: Store, device: str) -> None:
    """Stores the device on which studies or a search begin.

    ValueError if another driver has begun one on another device.
    """
    for part in plan.studies:
        if began_on(part, store) == device:
            continue
        folder = part.folder(store)
        with folder.lock("devices"):
            _require_same(part, store, device)
            devices = folder.read_or_set_aside(FILE, Devices)
            folder.write_json(FILE, {**devices, _key(part): device})


def _key(part: StudyPlan) -> str:
    corpus = f"corpus {masked(part.choice.corpus)}"
    return ", ".join([f"preset {part.preset_name}", *part.changes, corpus])
