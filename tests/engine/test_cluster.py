"""Which Ray a command joins: every address answers, or is refused within seconds, whoever is behind
it.
"""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import psutil
import pytest
import ray
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from gram_platform.config.identity import InvalidField
from gram_platform.engine import cluster, ray_private
from gram_platform.engine.cluster import ClusterLost
from gram_platform.engine.ray_private import address_of

HERE = bytes(range(28))  # the id of Ray's process on this machine


class Gcs(gcs_service_pb2_grpc.NodeInfoGcsServiceServicer):
    """What Ray's head answers."""

    # Where it listens, and Ray's process on this machine too, unless `raylet` names another.
    port = 0

    def __init__(self, token="", version=ray.__version__, nodes=(HERE,), delay_s=0.0, raylet=0):
        self.token, self.version, self.nodes, self.delay_s, self.raylet = (
            token,
            version,
            nodes,
            delay_s,
            raylet,
        )

    def CheckAlive(self, request, context):
        self._admit(context)
        return gcs_service_pb2.CheckAliveReply(ray_version=self.version)

    def GetAllNodeInfo(self, request, context):
        self._admit(context)
        at = {"node_manager_address": "127.0.0.1", "node_manager_port": self.raylet or self.port}
        nodes = [GcsNodeInfo(node_id=node, **at) for node in self.nodes]
        return gcs_service_pb2.GetAllNodeInfoReply(node_info_list=nodes)

    def _admit(self, context):
        time.sleep(self.delay_s)
        if (
            self.token
            and ("authorization", f"Bearer {self.token}") not in context.invocation_metadata()
        ):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")


@contextlib.contextmanager
def answering(**how):
    """The address of a head."""
    server, gcs = grpc.server(ThreadPoolExecutor(2)), Gcs(**how)
    gcs_service_pb2_grpc.add_NodeInfoGcsServiceServicer_to_server(gcs, server)
    gcs.port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    try:
        yield address_of(f"127.0.0.1:{gcs.port}")
    finally:
        server.stop(None)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user of this machine without a Ray and without a token; returns the calls of `ray.init`."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(cluster, "MAX_FOLDER_BYTES", 200)
    calls = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", lambda **options: calls.append({**options, "TMPDIR": os.environ.get("TMPDIR")})
    )
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # of the Ray that other tests share
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0, "GPU": 1.0})
    monkeypatch.setattr(ray_private, "find_node_ids", lambda: [HERE.hex()])
    monkeypatch.setattr(cluster, "PROBE_S", 1.0)
    yield calls
    while cluster._own_folders:
        cluster._own_folders.pop().remove()


def record(tmp_path, address: str) -> None:
    """What `ray start --head` leaves."""
    (tmp_path / "ray").mkdir(exist_ok=True)
    (tmp_path / "ray/ray_current_cluster").write_text(address)


def own_token(tmp_path, token: str) -> None:
    (tmp_path / "home/.ray").mkdir(parents=True)
    (tmp_path / "home/.ray/auth_token").write_text(token)


def test_a_dead_ray_that_nobody_named_is_passed_over(user, tmp_path, capsys):
    record(tmp_path, "127.0.0.1:9")
    cluster.connect()
    assert [call["address"] for call in user] == ["local"]
    passed, _ = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/ray/ray_current_cluster" in passed


def test_a_ray_that_answers_is_joined_with_a_line(user, tmp_path, capsys):
    with answering() as address:
        record(tmp_path, address)
        cluster.connect()
    assert [call["address"] for call in user] == [None]  # then Ray looks for the user's token
    assert address in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "token"),
    [
        ({"token": "theirs"}, ""),
        ({"token": "theirs"}, "mine"),
        ({}, "mine"),
        ({"version": "2.9.1"}, ""),
        ({"nodes": ()}, ""),
        ({"nodes": (HERE[::-1],)}, ""),
        ({"delay_s": 3.0}, ""),
    ],
)
def test_a_ray_that_cannot_be_joined_is_passed_over_and_refused_by_name(
    user, tmp_path, monkeypatch, capsys, head, token
):
    if token:
        own_token(tmp_path, token)
    with answering(**head) as address:
        record(tmp_path, address)
        cluster.connect()
        assert [call["address"] for call in user] == ["local"]
        assert address in capsys.readouterr().err
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        monkeypatch.setenv("RAY_ADDRESS", address)
        if token:
            monkeypatch.setenv("RAY_AUTH_MODE", "token")
        assert refused_address() == address
    assert len(user) == 1


def refused_address() -> str:
    """Returns the $RAY_ADDRESS that is refused."""
    with pytest.raises(InvalidField) as caught:
        cluster.connect()
    assert caught.value.field == "RAY_ADDRESS"
    return caught.value.value


def test_a_token_of_ones_own_joins_ones_own_ray(user, tmp_path, monkeypatch):
    own_token(tmp_path, "mine\n")
    with answering(token="mine") as address:
        record(tmp_path, address)
        cluster.connect()
        monkeypatch.setenv("RAY_ADDRESS", address)
        # Ray would not send the token to a named address.
        assert refused_address() == address
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        cluster.connect()
    assert [call["address"] for call in user] == [None, address]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:9",
        "nowhere.invalid:6379",
        "ray://127.0.0.1:10001",
        "http://127.0.0.1:8265",
        "no-port",
        "::1:6379",
        "127.0.0.1:6379\n",
    ],
)
def test_an_address_without_a_ray_is_refused_by_name(user, monkeypatch, caplog, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    assert refused_address() == address
    assert time.monotonic() - started < 10.0
    assert not user
    assert not caplog.text  # Ray has logged no traceback either


def test_a_ray_whose_process_on_this_machine_is_stopped_is_passed_over(user, tmp_path):
    """It is there, and the system accepts connections for it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as stopped,
        answering(raylet=stopped.getsockname()[1]) as address,
    ):
        record(tmp_path, address)
        cluster.connect()
    assert [call["address"] for call in user] == ["local"]


LEAVES = """
import time, ray
from gram_platform.engine import cluster
ray.init = lambda **options: None
ray.cluster_resources = lambda: {}
ray.shutdown = lambda *_: time.sleep(60)
cluster.LEAVE_S = 0.2
cluster.connect()
print("done", flush=True)
"""


def test_a_ray_that_does_not_let_go_ends_the_command_with_a_line(tmp_path):
    home = os.environ | {"RAY_ADDRESS": "local", "RAY_TMPDIR": "/tmp", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], env=home, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout) == (1, "done\n")
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_local_starts_one_whatever_was_left(user, tmp_path, monkeypatch):
    record(tmp_path, "127.0.0.1:9")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(cluster, "num_cpus", lambda: 5)
    cluster.connect()
    (call,) = user
    assert (call["address"], call["num_cpus"]) == ("local", 5)
    assert Path(call["_temp_dir"]).is_relative_to(tmp_path)


def test_another_users_ray_is_never_joined_by_itself(user, tmp_path, monkeypatch):
    with answering() as address:
        record(tmp_path, address)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        if os.geteuid() == 0:
            os.chown(tmp_path / "ray/ray_current_cluster", 54321, -1)
        cluster.connect()
    assert [call["address"] for call in user] == ["local"]


def test_a_ray_that_does_not_start_is_one_error_and_leaves_its_logs(user, tmp_path, monkeypatch):
    def fail(**options):
        raise OSError("no room")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ClusterLost):
        cluster.connect()
    assert list(tmp_path.glob("ray-*"))


@pytest.mark.parametrize("place", ["x" * 200, "file"])
def test_a_folder_that_sockets_cannot_be_in_is_refused_or_replaced(
    user, tmp_path, monkeypatch, place
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / place))
    with pytest.raises(InvalidField) as caught:
        cluster.connect()
    assert caught.value.field == "RAY_TMPDIR"
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path / place))
    cluster.connect()
    assert Path(user[0]["_temp_dir"]).parents[1] == Path("/tmp")
    # Python's processes below Ray have sockets too.
    assert Path(user[0]["TMPDIR"]) == Path(user[0]["_temp_dir"]).parent
    assert os.environ["TMPDIR"] == str(tmp_path / place)


def test_the_handler_of_sigterm_is_kept(user, monkeypatch):
    monkeypatch.setattr(
        ray, "init", lambda **options: signal.signal(signal.SIGTERM, lambda *_: None)
    )
    own, before = lambda *_: None, signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, own)
    try:
        cluster.connect()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_that_nobody_can_look_at_is_not_dead(monkeypatch):
    """Without free files nothing can be read of it; its Ray would be given up."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(cluster.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(cluster, "_processes", {"here": [psutil.Process(child.pid)]})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        cluster.require_ray()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        child.communicate()
    with pytest.raises(ClusterLost):
        cluster.require_ray()
