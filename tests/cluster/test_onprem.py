"""`cluster/onprem.yaml` against Ray's reader and the clouds' files;
`tests/cluster/box/test_onprem.py` executes it.
"""

import copy
import json
import re

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.cluster.files import LAUNCHER_FILES, ONPREM_FILE, launcher, onprem

START_COMMANDS = ("head_start_ray_commands", "worker_start_ray_commands")


def test_ray_takes_the_file_as_it_is():
    """Of another local cluster Ray's reader replaces the types of machines by one without
    resources.
    """
    config = yaml.safe_load(onprem("10.0.0.1", "10.0.0.2", "10.0.0.3"))
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    assert prepared == config


@pytest.mark.parametrize("cloud", LAUNCHER_FILES)
def test_the_clouds_start_ray_with_the_same_commands(cloud):
    """Word for word.

    Before them stand variables that containers of a cloud have too, after them what workers offer.
    """
    here, there = launcher(ONPREM_FILE), launcher(cloud)
    variables = set(re.findall(r"--env (\S+)", " ".join(there["docker"]["run_options"])))
    for name, offered in zip(START_COMMANDS, ({}, {"driver": 1}), strict=True):
        *others, start = there[name]
        assert here[name][:-1] == others
        parts = re.fullmatch(
            rf"export ([^;]+); {re.escape(start)}(?: --resources='(.+)')?", here[name][-1]
        )
        own = set(re.findall(r"RAY_AUTOSCALER\w+=\d+", parts[1]))
        assert {"RAY_AUTH_MODE=token"} < set(parts[1].split()) - own <= variables
        assert len(own) == (2 if "head" in name else 0)
        assert json.loads(parts[2] or "{}") == offered


def test_the_parts_of_the_file_agree():
    config = launcher(ONPREM_FILE)
    types = config["available_node_types"]
    head, worker = types.pop(config["head_node_type"]), types["local.cluster.node"]
    assert len(types) == 1
    assert head["resources"] == {"CPU": 0}
    assert worker["resources"]["driver"] == 1
    assert config["max_workers"] == worker["max_workers"] == len(config["provider"]["worker_ips"])
    state = f"/tmp/ray/cluster-{config['cluster_name']}.state"
    assert config["file_mounts"] == {path: path for path in ("~/.ray/auth_token", state)}
