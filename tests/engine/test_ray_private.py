"""What the platform uses of Ray beside its public calls: a failure here names what a new version has changed."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import ray

from gram_platform.engine.ray_private import WRITTEN_FOR

PACKAGE = Path(__file__).parents[2] / "gram_platform"
NAMES = (
    "ray._common.network_utils:build_address",
    "ray._common.tls_utils:load_certs_from_env",
    "ray._private.services:canonicalize_bootstrap_address",
    "ray._private.services:find_node_ids",
    "ray._private.state:state.get_draining_nodes",
    "ray._private.state:state.get_max_resources_from_cluster_config",
    "ray._private.utils:get_ray_address_file",
    "ray.air.execution._internal.actor_manager:RayActorError",
    "ray.core.generated.gcs_service_pb2_grpc:NodeInfoGcsServiceStub",
    "ray.experimental.internal_kv:_internal_kv_get",
    "ray.train.torch:TorchTrainer._initialize_and_run_controller",
    "ray.train.v2._internal.execution.scaling_policy:FixedScalingPolicy._maybe_send_resource_request",
    "ray.train.v2._internal.execution.scaling_policy:FixedScalingPolicy.after_controller_start",
    "ray.train.v2._internal.execution.worker_group:WorkerGroup.execute",
    "ray.tune.experiment.trial:Trial.pickled_error_file",
)


@pytest.mark.parametrize("name", NAMES)
def test_ray_still_has_what_it_keeps_private(name):
    module, path = name.split(":")
    found = import_module(module)
    for part in path.split("."):
        assert hasattr(found, part), f"Ray {ray.__version__} has no {name}; {WRITTEN_FOR} had it"
        found = getattr(found, part)


def test_one_module_imports_private_names_of_ray():
    found = {path for path in PACKAGE.rglob("*.py") if any(map(is_private, imported(path)))}
    assert {path.name for path in found} == {"ray_private.py"}, found


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_private(name: str) -> bool:
    library, *parts = name.split(".")
    return library == "ray" and any(part.startswith("_") or part == "generated" for part in parts)
