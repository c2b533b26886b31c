"""The files of `ray up` against Ray's own schema and reader, and against what we ask of them."""

import copy
import re
import subprocess

import pytest
from ray.autoscaler._private.util import prepare_config, validate_config

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
