"""The groups of machines that the files describe, under Ray's own autoscaler with pretended machines on this one.

Ray's test provider starts a real raylet for each machine that the autoscaler asks for: nothing is simulated but the
cloud, and the GPUs, which are numbers here.
"""

import json
import subprocess
import sys
import time

import pytest
from ray.util import get_node_ip_address

from gram_platform.engine.local_cluster import head, state
from tests.cluster.files import launcher

HEAD_ID = "f" * 51 + "00000"  # what Ray's test provider calls its head
UP_S, DOWN_S = 120, 120
COMMANDS = ("setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands")
COMMANDS += ("head_start_ray_commands", "worker_start_ray_commands")
PROBE = """
import json, os, ray
ray.init(log_to_driver=False)
where = lambda: os.environ.get("RAY_NODE_TYPE_NAME", "head")
def groups():
    return sorted(key for node in ray.nodes() if node["Alive"] for key in node["Resources"] if key in ("driver", "GPU"))
before = groups()
one = ray.get(ray.remote(num_gpus=1)(where).remote())
many = ray.get([ray.remote(num_gpus=8)(where).remote() for _ in range(2)])
print("SEEN", json.dumps({"driver": where(), "before": before, "one": one, "many": many}))
"""


def autoscaling_config(port: int) -> dict:
    """The machine types of aws.yaml, with a provider that pretends them; idle ones go after 3 seconds."""
    config = launcher("aws.yaml")
    types = {
        name: {key: value for key, value in kind.items() if key in ("resources", "min_workers", "max_workers")}
        | {"node_config": {}}
        for name, kind in config["available_node_types"].items()
        if name != config["head_node_type"]
    }
    types["ray.head.default"] = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": config["cluster_name"],
        "max_workers": config["max_workers"],
        "file_mounts": {},
        "cluster_synced_files": [],
        **{key: [] for key in COMMANDS},
        "idle_timeout_minutes": 0.05,
        "head_node_type": "ray.head.default",
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
            "gcs_address": f"{get_node_ip_address()}:{port}",
        },
        "available_node_types": types,
    }


@pytest.fixture
def pretended_cluster(tmp_path, monkeypatch):
    port = head.free_port()
    file = tmp_path / "autoscaling.json"
    file.write_text(json.dumps(autoscaling_config(port)))
    plain = head.head_command

    def command(cluster: state.Cluster) -> list[str]:
        kept = [option for option in plain(cluster) if not option.startswith(("--port=", "--num-cpus="))]
        options = {"port": port, "num-cpus": 0, "autoscaling-config": file}
        return [*kept, *(f"--{name}={value}" for name, value in options.items())]

    plain_environment = head.environment
    pretended = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    monkeypatch.setattr(head, "head_command", command)
    monkeypatch.setattr(head, "environment", lambda cluster: plain_environment(cluster) | pretended)
    cluster = head.start()
    yield cluster
    state.stop(cluster)


def num_machines(cluster: state.Cluster) -> int:
    """Nodes that Ray counts as alive, the head among them."""
    answer = head.ask(cluster, "/nodes?view=summary")
    return sum(node["raylet"]["state"] == "ALIVE" for node in answer["data"]["summary"])


def wait_for(what, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "in time"
        time.sleep(1)


@pytest.mark.ray
@pytest.mark.slow
def test_machines_come_from_zero_and_go(pretended_cluster, tmp_path):
    """A job's driver gets its own machine, tasks get the groups that fit them, and all are gone after the job."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job/probe.py").write_text(PROBE)
    wait_for(lambda: num_machines(pretended_cluster) == 1, UP_S)
    command = ["ray", "job", "submit", "--address", pretended_cluster.address, "--working-dir", tmp_path / "job"]
    done = subprocess.run(
        [*command, "--entrypoint-resources", '{"driver": 1}', "--", sys.executable, "probe.py"],
        env=head.environment(pretended_cluster),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=UP_S,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    seen = json.loads(done.stdout.split("SEEN ", 1)[1].splitlines()[0])
    assert seen["driver"] == "driver"
    assert seen["before"] == ["driver"], "a machine with GPUs was there before anything asked for one"
    assert seen["one"] in ("gpu-1", "gpu-8")
    assert set(seen["many"]) == {"gpu-8"}
    wait_for(lambda: num_machines(pretended_cluster) == 1, DOWN_S)
