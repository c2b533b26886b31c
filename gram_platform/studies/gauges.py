"""Gives a study's progress to Ray's metrics, which `dashboards/grafana.json` draws."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ray.util.metrics import Gauge

from gram_platform.methods.nodes import Node


class ProgressGauges:
    """The gauges of one study. Needs Ray, whose exporter puts `ray_` before their names."""

    def __init__(self, study: str):
        self.study = study
        about = "Runs and evaluations of a study, by state."
        self.nodes = Gauge("gram_nodes", about, ("study", "state"))
        about = "Tokens a second that the running runs of a study train on."
        self.rate = Gauge("gram_tokens_per_second", about, ("study",))
        about = "Mean of the last training losses of a study's running runs, in nats a token."
        self.loss = Gauge("gram_training_loss", about, ("study", "method", "size"))

    def set(self, num_nodes: Mapping[str, int], running: Sequence[tuple[Node, Mapping]]) -> None:
        """Sets all gauges: the number of nodes by state, and from heartbeats speed and losses."""
        for state, number in num_nodes.items():
            self.nodes.set(number, {"study": self.study, "state": state})
        rate = sum(beat["tokens_per_second"] for _, beat in running)
        self.rate.set(rate, {"study": self.study})
        losses: dict[tuple[str, str], list[float]] = defaultdict(list)
        for node, beat in running:
            if "loss" in beat:
                losses[node.method, node.size].append(beat["loss"])
        for (method, size), found in losses.items():
            tags = {"study": self.study, "method": method, "size": size}
            self.loss.set(sum(found) / len(found), tags)
