"""Wraps Ray's private functions for which Ray 2.60 has no public equivalent.

No other module imports a private name of Ray. Ray Train and Ray Tune are imported inside functions,
because importing them takes a second.
"""

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import ray
from ray._common.network_utils import build_address
from ray._common.tls_utils import load_certs_from_env
from ray._private.services import canonicalize_bootstrap_address, find_node_ids
from ray._private.state import state
from ray._private.utils import get_ray_address_file
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.core.generated.gcs_service_pb2 import CheckAliveRequest, GetAllNodeInfoRequest
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
from ray.exceptions import OutOfMemoryError, RayActorError, RayError
from ray.experimental.internal_kv import _internal_kv_get
from ray.job_config import JobConfig

# The key of the report of a version 1 autoscaler, which `ray status` prints.
MONITOR_KEY = "__autoscaling_status"


class _OwnPath(list[str]):
    """A list whose `extend` skips folders that are not on this process's `sys.path`."""

    def extend(self, folders: Iterable[str]) -> None:
        paths = set(map(os.path.abspath, sys.path))
        super().extend(folder for folder in folders if os.path.abspath(folder) in paths)


def own_job() -> JobConfig:
    """Returns a job config that keeps workers from importing from the current folder first."""
    job = JobConfig()
    job._py_driver_sys_path = _OwnPath()
    return job


def largest_cluster() -> dict[str, float]:
    """Returns the cluster's maximum resources, or {} if no autoscaler has reported them.

    The autoscalers of `ray up` and KubeRay never report them, but a vendor's autoscaler might.
    """
    return (state.get_max_resources_from_cluster_config() or {}) if ray.is_initialized() else {}


def draining_machines() -> set[str]:
    """Returns the ids of the machines that Ray is draining, as it does before a preemption.

    Workers of Ray Train ask Ray Train instead.
    """
    return set(state.get_draining_nodes())


def machine_types() -> set[str]:
    """Returns the machine types that Ray's autoscaler has reported, by their names in its config.

    Without an autoscaler, Ray may report `node_<id>` as each machine's type.
    """
    if is_autoscaler_v2(fetch_from_server=True):
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        has_reported = status.stats.autoscaler_version not in (None, "0")
        machines = (*status.active_nodes, *status.idle_nodes)
        return {machine.ray_node_type_name for machine in machines} if has_reported else set()
    report = json.loads(_internal_kv_get(MONITOR_KEY) or "{}").get("autoscaler_report") or {}
    return set(report.get("active_nodes") or ())


def address_record() -> Path:
    """Returns the path of the file where `ray start` stores its cluster's address."""
    return Path(get_ray_address_file(None))


def address_of(given: str | None) -> str:
    """Returns the HOST:PORT that `ray.init(address=given)` uses; raises ConnectionError if none."""
    return canonicalize_bootstrap_address(given)


def refusal(address: str, token: str, timeout_s: float) -> str:
    """Returns why the cluster at `address` cannot be joined, or "" if it can.

    Takes at most `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with _channel(address) as channel:
            gcs = NodeInfoGcsServiceStub(channel)

            def ask(call: Callable, request: object, with_token: bool) -> Any:
                header = [("authorization", f"Bearer {token}")] if with_token else []
                return call(request, timeout=max(0.1, deadline - time.monotonic()), metadata=header)

            needs_token = False
            try:
                alive = ask(gcs.CheckAlive, CheckAliveRequest(), False)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
                if not token:
                    cure = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the token's file"
                    return f"it wants a token: {cure}"
                needs_token, alive = True, ask(gcs.CheckAlive, CheckAliveRequest(), True)
            if token and not needs_token:
                cure = "RAY_AUTH_MODE=disabled joins it all the same"
                return f"it has no token, and this user has one: {cure}"
            if alive.ray_version != ray.__version__:
                return f"its version is {alive.ray_version}, here it is {ray.__version__}"
            request = GetAllNodeInfoRequest(state_filter=GcsNodeInfo.ALIVE)
            nodes = ask(gcs.GetAllNodeInfo, request, needs_token).node_info_list
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return "it has another token than this user's"
        return "it does not answer"
    alive_here = set(find_node_ids())
    here = [node for node in nodes if node.node_id.hex() in alive_here]
    if not here:
        return "no process of it is alive on this machine"
    for node in here:
        with _channel(build_address(node.node_manager_address, node.node_manager_port)) as channel:
            try:
                grpc.channel_ready_future(channel).result(max(0.1, deadline - time.monotonic()))
            except grpc.FutureTimeoutError:
                return "its process on this machine does not answer"
    return ""


def _channel(address: str) -> grpc.Channel:
    # Ray's own connections have this option too.
    options = [("grpc.enable_http_proxy", 0)]
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        chain, key, authority = load_certs_from_env()
        return grpc.secure_channel(
            address, grpc.ssl_channel_credentials(authority, key, chain), options
        )
    return grpc.insecure_channel(address, options)


def adapt(trainer: Any) -> Any:
    """Makes a trainer request its ranks only once, as a placement group; returns the trainer.

    Otherwise Ray Train would also request each rank separately, and an autoscaler would start
    one-GPU machines that stay unused. Also removes Ray Train's unused process for datasets.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    policy = FixedScalingPolicy(trainer.scaling_config)
    run_controller = trainer._initialize_and_run_controller
    policy.after_controller_start = policy._maybe_send_resource_request = lambda *_: None

    def run(callbacks: list, **given: Any) -> Any:
        callbacks = [c for c in callbacks if not isinstance(c, DatasetsCallback)]
        return run_controller(callbacks=callbacks, **given | {"scaling_policy": policy})

    trainer._initialize_and_run_controller = run
    return trainer


def error_of_trial(trial: Any) -> Exception:
    """Loads the error that ended a trial's process, which Ray Tune stored in a file."""
    # Ray Tune writes every error as text, and pickles only the errors of tasks and actors.
    if not trial.pickled_error_file:
        last = Path(trial.error_file).read_text().rpartition("Failure # ")[2]
        return RayError(last.partition("\n")[2].strip())
    with open(trial.pickled_error_file, "rb") as file:
        return pickle.load(file)


def treat_memory_kill_as_crash() -> None:
    """Makes Ray Tune restart a trial whose process was killed by Ray's memory monitor.

    Otherwise the search would end, because Ray Tune does not handle the error that Ray raises.
    """
    from ray.air.execution._internal import actor_manager

    actor_manager.RayActorError = (RayActorError, OutOfMemoryError)
