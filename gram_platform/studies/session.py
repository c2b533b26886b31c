"""Starts and ends a command: Ray and how nodes execute there, cordoned machines, the site."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import ray

from gram_platform.config.provenance import code_of_process
from gram_platform.engine.capacity import has_fixed_size
from gram_platform.engine.cluster import connect
from gram_platform.engine.devices import ProbeReport
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.machine import num_cpus
from gram_platform.methods.nodes import Node
from gram_platform.pages.index import write_index
from gram_platform.pages.link_page import LINK_PAGE, link_page
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.store.machines import write_cordoned
from gram_platform.studies.flags import CommonFlags
from gram_platform.tracking.connection import opened_by


def execution_of(flags: CommonFlags, has_gpu: bool) -> tuple[Execution, Resources]:
    """Returns how the flags execute nodes, and the resources of a rank.

    `has_gpu`: whether Ray has a GPU now.
    """
    device = flags.device or ("cuda" if has_gpu else "cpu")
    interval_s, commit_share = flags.checkpoint_interval
    execution = Execution(
        flags.storage,
        num_threads=flags.threads,
        checkpoint_every_s=interval_s,
        commit_share=commit_share,
        collective_timeout_s=flags.collective_timeout,
        stall_timeout_s=flags.stall_timeout,
        activation_checkpointing=flags.activation_checkpointing,
        compiled=flags.compile,
        deterministic=flags.deterministic,
        device=device,
        code=str(code_of_process()),
    )
    is_gpu = device == "cuda"
    resources = Resources(
        cpus_per_rank=float(flags.threads),
        gpus_per_rank=float(is_gpu),
        gpus_per_run=flags.gpus_per_run * is_gpu,
        gpus_per_machine=flags.gpus_per_machine,
        max_gpus=flags.max_gpus,
    )
    return execution, resources


def machine_text(uses_ray: bool) -> str:
    """Says where nodes are executed: Ray's machines, CPUs and GPUs as they are now, or this
    machine's."""
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
    """Returns the name of this job's files at Ray, which is a hash of them; "" for a driver that is
    no job."""
    folder = (
        ray.get_runtime_context().runtime_env.get("working_dir", "") if ray.is_initialized() else ""
    )
    return Path(folder).stem if folder.startswith("gcs://") else ""


def start_ray(flags: CommonFlags, say: Callable[[str], None]) -> tuple[Execution, Resources]:
    """Connects to Ray; returns how to execute nodes there."""
    connect(flags.verbose)
    if advice := advice_on_place():
        say(advice)
    return execution_of(flags, bool(ray.cluster_resources().get("GPU")))


# The resource of the machines that are meant for drivers, in the files of cluster/.
DRIVER = "driver"


def advice_on_place() -> str:
    """Returns advice how a job gets a driver's machine, if this one takes no work, as a cluster's
    head; else "".

    The driver works here too, on a machine that is small and whose end would end the cluster.
    """
    here = ray.get_runtime_context().get_node_id()
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["NodeID"] == here)
    if cpus or not (DRIVER in ray.cluster_resources() or not has_fixed_size()):
        return ""
    flag = f"--entrypoint-resources '{json.dumps({DRIVER: 1})}'"
    return (
        f"this driver is on a machine without CPUs for work, as a head: `ray job submit {flag}`"
        " gives it its own"
    )


def cordons_noted(
    store: Store, studies: Sequence[str], say: Callable[[str], None]
) -> Callable[[ProbeReport], None]:
    """Returns a function that says on which machine nothing more is started, for the driver to
    call.

    It keeps the machines for `gram status` and the studies' reports, which forget those of the last
    submission now.
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
    """Returns the machine hours of a node that is done, over all its ranks."""
    timing = store.node(node.kind, node.id).timing()
    return timing.get("elapsed_s", 0.0) * timing.get("num_ranks", 1) / 3600


def refresh_site(store: Store, tracking_uri: str, say: Callable[[str], None]) -> None:
    """Writes the index of the storage, and the page to which reports link until MLflow is open;
    says where they are.

    The tables are written by now, so an error here is only said.
    """
    try:
        root = open_folder(store.root, writable=True)
        if not tracking_uri.startswith("http") and not root.exists(LINK_PAGE):
            root.write(LINK_PAGE, link_page("", opened_by(tracking_uri)), durable=False)
        say(f"{'site':12} {write_index(store)}")
    except (OSError, ValueError) as error:
        say(f"the site was not built ({error}); `gram report` builds it")
