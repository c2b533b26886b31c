"""What Ray's exporter shows of a study, and the board that draws it."""

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest
from ray.dashboard.modules.reporter import reporter_agent

from gram_platform.studies.live import progress_gauges

BOARD = Path(__file__).parents[2] / "dashboards" / "grafana.json"
METRIC = re.compile(r"ray_\w+")


def exported(ray, label: str) -> str:
    """What the exporter of this machine shows, once a metric has the label: other tests' metrics may be there too."""
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
def test_the_exporter_shows_every_metric_of_the_board(ray_cluster):
    """On a machine without a GPU, Ray's source names the metrics of GPUs."""
    set_gauges = progress_gauges("a study")
    set_gauges({"done": 3, "waiting": 4}, 1250.0, {("gram", "0.6M"): 2.5})
    text = exported(ray_cluster, 'study="a study"')
    values = {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if 'study="a study"' in line
    }
    of_state = {re.search(r'state="(\w+)"', key)[1]: v for key, v in values.items() if key.startswith("ray_gram_nodes")}
    assert of_state == {"done": 3.0, "waiting": 4.0}
    assert [v for key, v in values.items() if key.startswith("ray_gram_tokens")] == [1250.0]
    assert [(v, 'method="gram"' in key) for key, v in values.items() if "ray_gram_training_loss{" in key] == [
        (2.5, True)
    ]
    board = json.loads(BOARD.read_text())
    drawn = {
        name for panel in board["panels"] for target in panel["targets"] for name in METRIC.findall(target["expr"])
    }
    assert len(drawn) == 7
    absent = {name for name in drawn if f"{name}{{" not in text}
    assert absent == {"ray_node_gpus_utilization", "ray_node_gram_used"}
    assert absent <= {f"ray_{name}" for name in reporter_agent.METRICS_GAUGES}
