"""What Ray's exporter shows of a study, and the board that draws it."""

import json
import re
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from gram_platform.studies.live import progress_gauges

BOARD = Path(__file__).parents[2] / "dashboards" / "grafana.json"


def exported(ray, label: str) -> str:
    """What the exporter of this machine shows, once a metric has the label: other tests' metrics
    may be there too."""
    node = ray.nodes()[0]
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    deadline = time.monotonic() + 90.0
    while time.monotonic() < deadline:
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        if label in text:
            return text
        time.sleep(1.0)
    raise AssertionError(f"no {label} at {address}")


@pytest.mark.ray
def test_the_exporter_shows_what_the_board_draws_of_a_study(ray_cluster):
    node = SimpleNamespace(method="gram", size="0.6M")
    running = [
        (node, {"tokens_per_second": 1000.0, "loss": 2.0}),
        (node, {"tokens_per_second": 250.0, "loss": 3.0}),
    ]
    progress_gauges("a study")({"done": 3, "waiting": 4}, running)
    text = exported(ray_cluster, 'study="a study"')
    found = dict(re.findall(r'^(ray_gram_\w+\{.*study="a study".*\}) (\S+)$', text, re.MULTILINE))
    values = {
        key.partition("{")[0]: float(value) for key, value in found.items() if "state=" not in key
    }
    assert values == {"ray_gram_tokens_per_second": 1250.0, "ray_gram_training_loss": 2.5}
    states = {
        re.search(r'state="(\w+)"', key)[1]: float(value)
        for key, value in found.items()
        if "state=" in key
    }
    assert states == {"done": 3.0, "waiting": 4.0}
    drawn = set(re.findall(r"ray_gram_\w+", json.dumps(json.loads(BOARD.read_text()))))
    assert drawn == {key.partition("{")[0] for key in found}
