"""What Ray's own autoscaler does for a driver that avoids a machine whose device does not work."""

import dataclasses

import pytest
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus, ResourceRequestByCount
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

from gram_platform.engine.execution import NODE_ID
from tests.cluster.test_autoscaling import pretended_cluster, seen_by  # noqa: F401
from tests.cluster.test_demand import GPU, node_types  # noqa: F401

BROKEN = "b" * 56


def idle_machine(kind) -> AutoscalerInstance:
    """One that is there, without work."""
    resources = dict(kind.resources)
    state = NodeState(node_id=BROKEN.encode(), total_resources=resources, available_resources=resources)
    state.status = NodeStatus.IDLE
    state.labels[NODE_ID] = BROKEN
    known = {"instance_id": "1", "instance_type": kind.name, "node_kind": NodeKind.WORKER, "node_id": BROKEN}
    return AutoscalerInstance(ray_node=state, im_instance=Instance(status=Instance.RAY_RUNNING, **known))


@pytest.mark.parametrize(("cordoned", "started"), [((), []), ((BROKEN,), [1])])
def test_a_machine_starts_in_place_of_a_cordoned_one(node_types, cordoned, started):  # noqa: F811
    resources = dataclasses.replace(GPU, cordoned=cordoned)
    asked = resources.of_slot
    avoided = [(NODE_ID, LabelSelectorOperator.LABEL_OPERATOR_NOT_IN, list(resources.cordoned))]
    assert ("label_selector" in asked) == bool(cordoned)
    slot = {"CPU": asked["num_cpus"], "GPU": asked["num_gpus"]}
    demand = ResourceRequestUtil.make(slot, None, [avoided] if cordoned else None)
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=node_types,
        max_num_nodes=1000,
        resource_requests=[ResourceRequestByCount(request=demand, count=1)],
        current_instances=[idle_machine(node_types["gpu-8"])],
    )
    reply = ResourceDemandScheduler().schedule(request)
    assert [launch.count for launch in reply.to_launch] == started


ONE_GPU = {"gpu-1": {"resources": {"CPU": 2, "GPU": 1}, "min_workers": 0, "max_workers": 9, "node_config": {}}}
JOB = """
import json, sys
from gram_platform.engine.cluster import ClusterLost
from gram_platform.store.machines import read_cordoned
from gram_platform.store import Store
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.flags import parse
from gram_platform.studies.run import run_study

arguments = ["--preset", "smoke", "--sizes", "tiny", "--methods", "baseline", "--storage", sys.argv[1],
             "--device", "cuda", "--max-gpus", "1"]
text = ""
try:
    run_study(STUDY, parse(STUDY, arguments))
except ClusterLost as error:
    text = str(error)
found = [machine["machine"] for machine in read_cordoned(Store(sys.argv[1]), "scaling")]
print("SEEN", json.dumps({"text": text, "cordoned": found, "runs": Store(sys.argv[1]).list_runs()}))
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("pretended_cluster", [ONE_GPU], indirect=True)
def test_a_growing_cluster_is_asked_for_three_replacements(pretended_cluster, tmp_path):  # noqa: F811
    """Ray counts a GPU of each machine, torch sees none: as with a broken driver in the image."""
    seen, said = seen_by(JOB, pretended_cluster, tmp_path)
    assert "no machine " in seen["text"], said[-6000:]
    assert seen["text"].count("product on cuda") == 4
    assert len(set(seen["cordoned"])) == 4
    assert seen["runs"] == []
