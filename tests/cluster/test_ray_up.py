"""The files of `ray up` against Ray's own schema and reader, and against what we ask of them."""

import copy
import os
import re
import shlex
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import drain_node

from tests.cluster import rules
from tests.cluster.files import LAUNCHER_FILES, launcher


@pytest.fixture(params=LAUNCHER_FILES)
def config(request) -> dict:
    return launcher(request.param)


def test_ray_reads_it(config):
    """Through Ray's defaults, its merging of commands and its schema; every list that Ray would
    fill is ours.
    """
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    assert prepared["head_setup_commands"] == prepared["worker_setup_commands"] == [], (
        "Ray would install packages"
    )
    assert set(prepared["available_node_types"]) == {"head", "driver", "pack", "gpu-1", "gpu-8"}
    assert prepared["head_start_ray_commands"] == config["head_start_ray_commands"]


def test_rules(config):
    assert rules.machines(config) == []


def test_only_the_driver_knows_mlflow(config):
    """The password of MLflow reaches the machine that writes to MLflow, and no other."""
    for name, kind in config["available_node_types"].items():
        commands = " ".join(kind.get("initialization_commands", config["initialization_commands"]))
        assert ("gram-mlflow" in commands) == (name == "driver"), name
        assert ("--env-file /opt/gram/mlflow.env" in str(kind.get("docker"))) == (
            name == "driver"
        ), name
        assert "gram-ray-token" in commands, name
    assert "mlflow.env" not in str(config["docker"])


def written_by(command: str, secret: str) -> str:
    """What a command writes whose secret manager answers with this text; "" stands for an error."""
    answered = re.sub(
        r"[^;|]*(get-secret-value|secrets versions access)[^|]*\|",
        f"{secret or 'false'} |",
        command,
    )
    commands = answered.replace("| sudo install", "| cat #")
    return subprocess.run(
        ["bash", "-c", commands], capture_output=True, check=True, text=True
    ).stdout


def test_who_fetches_text_has_the_hubs_token(config):
    """If there is one: without the secret the file is empty, and the machine starts all the
    same."""
    for name, kind in config["available_node_types"].items():
        fetches, commands = name in ("driver", "pack"), kind.get("initialization_commands", [])
        of_hub = [c for c in commands or config["initialization_commands"] if "gram-hub" in c]
        assert len(of_hub) == fetches, name
        assert ("--env-file /opt/gram/hub.env" in str(kind.get("docker"))) == fetches, name
        for command in of_hub:
            assert written_by(command, "") == ""
            assert written_by(command, r"printf 'hf_a$/\n\n'") == "HF_TOKEN=hf_a$/\n", (
                "docker would take the last line"
            )


def test_a_secret_that_ends_with_a_line_is_whole(config):
    """A file's last line break becomes a part of the secret, and the clouds' tools print another
    one.
    """
    (command,) = (
        c
        for c in config["available_node_types"]["driver"]["initialization_commands"]
        if "gram-mlflow" in c
    )
    written = written_by(command, r"printf 'a$/=\n\n'")
    assert written == "MLFLOW_TRACKING_USERNAME=admin\nMLFLOW_TRACKING_PASSWORD=a$/=\n"


def drain_unit(config: dict) -> str:
    """The command that makes a spot machine's unit, the same for both types."""
    kinds = config["available_node_types"]
    of_kind = {
        name: [c for c in kind.get("initialization_commands", ()) if "gram-drain" in c]
        for name, kind in kinds.items()
    }
    assert {name for name, found in of_kind.items() if found} == set(rules.SPOT_GROUPS)
    assert of_kind["gpu-1"] == of_kind["gpu-8"]
    (command,) = of_kind["gpu-1"]
    return command


class Metadata(BaseHTTPRequestHandler):
    """AWS's metadata of a spot machine, whose notice comes at the third question."""

    questions = 0

    def answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self) -> None:
        lifetime = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200 if self.path == "/latest/api/token" and lifetime else 400, b"a-token")

    def do_GET(self) -> None:
        assert self.path == "/latest/meta-data/spot/instance-action"
        Metadata.questions += self.headers["X-aws-ec2-metadata-token"] == "a-token"
        self.answer(200 if Metadata.questions == 3 else 404)

    def log_message(self, *_) -> None: ...


def test_a_spot_notice_drains_the_machine(config, tmp_path):
    """What the unit runs, with another address of the metadata: it ends with a command that Ray's
    own parser takes, in the container, when the notice is there.
    """
    command = drain_unit(config)
    (tmp_path / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > drained\n')
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Metadata.questions = 0
    _, unit = command.split("sudo systemd-run ")
    arguments = shlex.split(unit.replace("169.254.169.254", f"127.0.0.1:{server.server_port}"))
    stops = [a.split("=", 2)[2] for a in arguments if a.startswith("--property=ExecStop=")]
    started = shlex.split(stops[0]) if stops else arguments[arguments.index("bash") :]
    assert not stops or "--property=After=docker.service" in arguments
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(started, cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, timeout=60)
    server.shutdown()
    assert Metadata.questions == (0 if stops else 3)
    docker, container, ray, name, *flags = (tmp_path / "drained").read_text().splitlines()
    assert (docker, container, ray) == ("exec", config["docker"]["container_name"], "ray")
    assert name == drain_node.name
    parsed = drain_node.make_context(name, flags).params
    assert parsed["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert 0 < parsed["deadline_remaining_seconds"] < 120


def test_efa_is_a_change_of_the_large_machines():
    """Pasted as the file says, Ray reads it; each of the 32 network cards has one EFA device, and
    one interface has an address.
    """
    config, efa = launcher("aws.yaml"), launcher("aws-efa.yaml")
    large = config["available_node_types"]["gpu-8"]
    for name in ("SubnetIds", "SecurityGroupIds"):
        del large["node_config"][name]
    large["node_config"] |= efa.pop("node_config")
    large["initialization_commands"] += efa.pop("initialization_commands")
    large |= efa
    validate_config(prepare_config(copy.deepcopy(config)))
    assert rules.machines(config) == []
    cards = {"interface": [], "efa-only": []}
    for interface in large["node_config"]["NetworkInterfaces"]:
        cards[interface["InterfaceType"]].append(interface["NetworkCardIndex"])
    assert cards == {"interface": [0], "efa-only": list(range(32))}
    places = [
        (i["NetworkCardIndex"], i["DeviceIndex"]) for i in large["node_config"]["NetworkInterfaces"]
    ]
    assert len(set(places)) == len(places)
    aws = pytest.importorskip("ray.autoscaler._private.aws.config", exc_type=ImportError)
    aws._configure_from_network_interfaces(config)


@pytest.mark.parametrize("with_efa", [False, True])
def test_ec2_knows_every_field_of_its_machines(with_efa):
    """By EC2's own description of the request that Ray makes."""
    session = pytest.importorskip("botocore.session").get_session()
    from botocore.validate import ParamValidator

    request = session.get_service_model("ec2").operation_model("RunInstances").input_shape
    for name, kind in launcher("aws.yaml")["available_node_types"].items():
        node = {"MinCount": 1, "MaxCount": 1, **kind["node_config"]}
        # Ray's own name: it tries one after another.
        (node["SubnetId"],) = node.pop("SubnetIds")
        if with_efa and name == "gpu-8":
            node |= launcher("aws-efa.yaml")["node_config"]
        assert ParamValidator().validate(node, request).generate_report() == "", name
