"""Which machines Ray's own autoscaler starts for our requests, by the node types of all three
cluster files.

The scheduler is Ray's; a request has the form in which Ray reports a placement group or an actor
that waits.
"""

import math
import os
import subprocess
import sys
from collections import Counter

import pytest
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import (
    ClusterResourceState,
    GangResourceRequest,
    ResourceRequestByCount,
)

from gram_platform.engine import capacity, part_workers
from gram_platform.engine.execution import Resources
from gram_platform.engine.part_workers import STARTS_PACK_MACHINES, placement
from tests.cluster.files import CLUSTER_FILE, ROOT, launcher, the

GPU = Resources(cpus_per_rank=1.0, gpus_per_rank=1.0, gpus_per_run=1.0)
FILES = {
    "aws.yaml": lambda: launcher("aws.yaml"),
    "gcp.yaml": lambda: launcher("gcp.yaml"),
    CLUSTER_FILE: lambda: _derive_autoscaling_config_from_ray_cr(the("RayCluster", "gram")),
}


@pytest.fixture(params=FILES)
def node_types(request) -> dict[str, NodeTypeConfig]:
    config = FILES[request.param]()
    return {
        name: NodeTypeConfig(
            name=name,
            min_worker_nodes=0,
            max_worker_nodes=kind.get("max_workers", 0),
            resources={
                key: float(value) for key, value in kind["resources"].items() if key != "memory"
            },
        )
        for name, kind in config["available_node_types"].items()
        if name != config["head_node_type"]
    }


@pytest.fixture(autouse=True)
def growing(monkeypatch):
    monkeypatch.setattr(capacity, "has_fixed_size", lambda: False)


def gang(number: int, num_ranks: int) -> GangResourceRequest:
    """A run's ranks, as Ray reports the placement group that Ray Train makes for them."""
    constraints = None
    if capacity.placement_strategy(GPU, num_ranks) == capacity.STRICT_PACK:
        constraints = [(ResourceRequestUtil.PlacementConstraintType.AFFINITY, f"_PG_{number}", "")]
    requests = [ResourceRequestUtil.make(GPU.of_rank, constraints) for _ in range(num_ranks)]
    return GangResourceRequest(requests=requests)


def machines(
    node_types, gangs=(), num_slots: int = 0, asked: dict = GPU.of_slot, constraints=()
) -> Counter:
    """The machines that are started, from zero. `asked`: by each slot or task, as options for Ray.

    `constraints`: what `ray.autoscaler.sdk.request_resources` asks for.
    """
    amounts = {"CPU": asked["num_cpus"], "GPU": asked.get("num_gpus", 0)} | asked.get(
        "resources", {}
    )
    slot = ResourceRequestUtil.make(
        {name: float(amount) for name, amount in amounts.items() if amount}
    )
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=node_types,
        max_num_nodes=1000,
        resource_requests=(
            [ResourceRequestByCount(request=slot, count=num_slots)] if num_slots else []
        ),
        gang_resource_requests=list(gangs),
        cluster_resource_constraints=list(constraints),
    )
    reply = ResourceDemandScheduler().schedule(request)
    return Counter({launch.instance_type: launch.count for launch in reply.to_launch})


GANGS = {2: {"gpu-8": 1}, 3: {"gpu-8": 1}, 4: {"gpu-8": 1}, 8: {"gpu-8": 1}, 16: {"gpu-8": 2}}


@pytest.mark.parametrize("num_ranks", GANGS)
def test_the_ranks_of_a_run_get_one_machine_or_whole_machines(node_types, num_ranks):
    assert machines(node_types, [gang(0, num_ranks)]) == GANGS[num_ranks]


@pytest.mark.parametrize(("num_gangs", "num_machines"), [(10, 5), (12, 6)])
def test_many_runs_of_four_ranks_get_no_small_machine(node_types, num_gangs, num_machines):
    most = node_types["gpu-8"].max_worker_nodes
    assert machines(node_types, [gang(k, 4) for k in range(num_gangs)]) == {
        "gpu-8": min(most, num_machines)
    }


# Three trainers as studies make them, on a Ray without GPUs: their placement groups wait, and Ray
# Train's controllers have made all their requests before.
TRAINERS = """
import os, sys, threading, time
import ray
from ray._raylet import GcsClient
from ray.autoscaler.v2.sdk import get_cluster_resource_state
from gram_platform.engine import dispatch
from gram_platform.engine.execution import Division, Execution, Placement, Resources
from tests import tiny

ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False)
# As where machines may come.
dispatch.placement_strategy = lambda resources, num_ranks: "STRICT_PACK"
for number, num_ranks in enumerate((2, 4, 8)):
    execution = Execution(sys.argv[1], placement=Placement((Division(num_ranks),)))
    run, resources = tiny.run_config(seed=number), Resources(1.0, 1.0, 1.0)
    trainer = dispatch._trainer(run, execution, resources, 1e7)
    threading.Thread(target=trainer.fit, daemon=True).start()
gcs, deadline = GcsClient(ray.get_runtime_context().gcs_address), time.monotonic() + 200
while True:
    state = get_cluster_resource_state(gcs)
    if len(state.pending_gang_resource_requests) == 3:
        break
    assert time.monotonic() < deadline, state
    time.sleep(0.2)
print("SEEN", state.SerializeToString().hex())
sys.stdout.flush()
ray.shutdown()
os._exit(0)
"""


@pytest.fixture(scope="module")
def real_demand(tmp_path_factory) -> ClusterResourceState:
    """What Ray tells its autoscaler while three real runs, of 2, 4 and 8 ranks, wait for
    machines."""
    environment = os.environ | {"RAY_enable_autoscaler_v2": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", TRAINERS, tmp_path_factory.mktemp("storage")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert "SEEN " in done.stdout, done.stdout[-3000:]
    return ClusterResourceState.FromString(
        bytes.fromhex(done.stdout.split("SEEN ", 1)[1].split()[0])
    )


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_real_run_asks_for_its_ranks_by_their_placement_group_alone(real_demand, node_types):
    constraints = [
        request
        for one in real_demand.cluster_resource_constraints
        for request in one.resource_requests
    ]
    assert not constraints, "Ray Train has asked a second time, for each rank alone"
    gangs = sorted(real_demand.pending_gang_resource_requests, key=lambda gang: len(gang.requests))
    assert [len(gang.requests) for gang in gangs] == [2, 4, 8]
    for one in gangs:
        assert machines(
            node_types, [one], constraints=real_demand.cluster_resource_constraints
        ) == {"gpu-8": 1}


@pytest.mark.parametrize("num_tasks", [1, 40, 512])
def test_packing_starts_machines_for_packing_alone(node_types, monkeypatch, num_tasks):
    """As many as have a core for every task, up to the most; what the files set tells the driver
    that it may ask.
    """
    monkeypatch.setenv(STARTS_PACK_MACHINES, "1")
    monkeypatch.setattr(part_workers.ray, "cluster_resources", dict)  # none is up
    monkeypatch.setattr(part_workers, "await_report", lambda: None)
    monkeypatch.setattr(part_workers, "has_fixed_size", lambda: False)
    place = placement(anywhere=True)
    pack = node_types["pack"]
    wanted = math.ceil(min(num_tasks, place.at_once) / pack.resources["pack"])
    started = machines(node_types, num_slots=num_tasks, asked=place.options)
    assert started == {"pack": min(wanted, pack.max_worker_nodes)}


def test_nothing_but_packing_starts_a_machine_for_packing(node_types):
    tasks = machines(node_types, num_slots=64, asked={"num_cpus": 1.0})
    assert not {"pack", "driver"} & set(
        tasks + machines(node_types, [gang(0, 4)]) + machines(node_types, num_slots=64)
    )
