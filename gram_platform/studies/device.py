"""Settles on which device a study's nodes are executed: on the one that it began on."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import ray

from gram_platform.config.identity import invalid
from gram_platform.engine.capacity import await_report, has_fixed_size
from gram_platform.engine.cluster import connect
from gram_platform.engine.in_process import has_gpu
from gram_platform.engine.life import ended_ids
from gram_platform.methods.nodes import unique
from gram_platform.planner import MACHINES
from gram_platform.store import Store
from gram_platform.studies.build import Graph
from gram_platform.studies.flags import CommonFlags, with_device
from gram_platform.studies.packing import require_supply
from gram_platform.studies.price import Work, predicted, price, require_approval, work_left

CPU, CUDA = "cpu", "cuda"
# A file beside the record of a study or a search: the device of each preset on each corpus.
FILE = "devices.json"
Devices = dict[str, Literal["cpu", "cuda"]]


def settled(graphs: Sequence[Graph], store: Store) -> tuple[Graph, ...]:
    """Returns the graphs with the device that executes what is left of them, after printing its
    predicted price.

    Without a device Ray decides when it starts. ValueError as `require_supply`, `_settled_device`,
    `require_approval`.
    """
    require_supply(graphs)
    ended = ended_of(graphs, store)
    device = _settled_device(graphs, store, work_left(graphs, ended), ended)
    graphs = tuple(replace(graph, flags=with_device(graph.flags, device)) for graph in graphs)
    if graphs:
        require_approval(work_left(graphs, ended), graphs[0].flags.limits)
    return graphs


def ended_of(graphs: Sequence[Graph], store: Store) -> set[str]:
    """Returns the ids of the nodes that a submission of the graphs leaves as they are."""
    nodes = unique(node for graph in graphs for node in graph.nodes)
    return ended_ids(nodes, store, any(graph.flags.retry_failed for graph in graphs))


def _settled_device(
    graphs: Sequence[Graph], store: Store, work: Sequence[Work], ended: Collection[str]
) -> str:
    """Returns --device, else the device that the studies began on or that has trained runs of
    theirs.

    Else, if a preset plans for a GPU, what Ray has; "" where none of these applies. ValueError for
    another device than a study began on, where none is given and machines start on demand, and for
    a GPU that this process lacks.
    """
    device = graphs[0].flags.device if graphs else ""
    for graph in graphs:
        device = device or began_on(graph, store)
        _require_same(graph, store, device)
    device = device or next(
        filter(None, (_trained_on(graph, store, ended) for graph in graphs)), ""
    )
    if not work:
        return device
    flags = graphs[0].flags
    if not flags.needs_ray:
        device = device or (CUDA if has_gpu() else CPU)
        if device == CUDA and not has_gpu():
            raise invalid(
                "device", device, "cpu beside --in-process: torch finds no GPU on this machine"
            )
    elif not device and any(one.graph.flags.hardware.device == CUDA for one in work):
        connect(flags.verbose)
        if has_fixed_size() and ray.cluster_resources().get("GPU"):
            return CUDA
        # Waits for an autoscaler that has just started.
        await_report()
        if not has_fixed_size():
            raise _undecided(work)
        device = CPU
    return device


def _undecided(work: Sequence[Work]) -> ValueError:
    """Makes the error that asks for --device: what is up now says nothing about machines that start
    on demand."""
    presets = ", ".join(dict.fromkeys(one.graph.flags.preset for one in work))
    on_gpus, on_cpus = price(work)[0], price(work, MACHINES[CPU])[0]
    expected = (
        f"--device cuda or --device cpu: the preset {presets} plans for GPUs, and this cluster"
        " starts machines "
    )
    expected += (
        f"on demand. cuda asks it for machines with GPUs ({on_gpus}); cpu trains on CPU cores and"
        " asks for no "
    )
    return invalid("device", "", f"{expected}GPU ({on_cpus})")


def began_on(graph: Graph, store: Store) -> str:
    """Reads the device on which the study or search began with this preset and corpus; "" if it has
    not begun."""
    return graph.folder(store).read_or_set_aside(FILE, Devices).get(_key(graph.flags), "")


def _require_same(graph: Graph, store: Store, device: str) -> None:
    """ValueError for another device than the study or search began on."""
    if not (began := began_on(graph, store)) or began == device:
        return
    place = f"{graph.folder(store).path}/{FILE}"
    expected = (
        f"{began}, on which {graph.study.name} ({_key(graph.flags)}) began: results of two devices"
        " are "
    )
    expected += (
        f"not comparable. For {device} give another --storage, or remove {place} to mix them"
    )
    raise invalid("device", device, expected)


def _trained_on(graph: Graph, store: Store, ended: Collection[str]) -> str:
    """Reads the device of one finished run, which a handover may have brought; "" without any."""
    runs = (store.run(node.id) for node in graph.nodes if node.is_run and node.id in ended)
    name = next(filter(None, (run.timing().get("device", "") for run in runs)), "")
    return CUDA if name not in ("", CPU) else name


def note_device(graph: Graph, store: Store, device: str) -> None:
    """Stores the device on which a study or search begins.

    ValueError if another driver has begun it on another one.
    """
    if began_on(graph, store) == device:
        return
    folder = graph.folder(store)
    with folder.lock("devices"):
        _require_same(graph, store, device)
        folder.write_json(
            FILE, {**folder.read_or_set_aside(FILE, Devices), _key(graph.flags): device}
        )


def on_known_device(graph: Graph, store: Store, ended: Collection[str]) -> tuple[Graph, str]:
    """Returns the graph as a submission would plan it, without asking Ray, and on which device in
    words.

    `ended`: ids of nodes that a submission leaves as they are.
    """
    if graph.flags.device:
        return graph, graph.flags.device
    if began := began_on(graph, store) or _trained_on(graph, store, ended):
        return replace(graph, flags=with_device(graph.flags, began)), f"{began}, on which it began"
    rule = "cuda if Ray has a GPU at the start, else cpu"
    if graph.flags.hardware.device == CUDA:
        rule += (
            "; on a cluster that starts machines on demand --device cuda or --device cpu must be"
            " given"
        )
    return graph, rule


def price_line(graphs: Sequence[Graph]) -> str:
    """Returns what a submission of one or more graphs has left to execute, as `predicted`, without
    asking Ray."""
    store = Store(graphs[0].flags.storage)
    ended = ended_of(graphs, store)
    return predicted(
        work_left((on_known_device(graph, store, ended)[0] for graph in graphs), ended)
    )


def _key(flags: CommonFlags) -> str:
    return ", ".join([f"preset {flags.preset}", *flags.changes, f"corpus {flags.corpus}"])
