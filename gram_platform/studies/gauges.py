"""Gives a study's progress to Ray's metrics, for Prometheus; `dashboards/grafana.json` draws them beside Ray's own."""

from collections.abc import Mapping

from ray.util.metrics import Gauge

NODES, RATE = "gram_nodes", "gram_tokens_per_second"  # Ray's exporter puts `ray_` before them


class ProgressGauges:
    """The gauges of one driver; needs a connection to Ray."""

    def __init__(self, study: str):
        self.study = study
        self._nodes = Gauge(NODES, "Runs and evaluations of a study, by state.", ("study", "state"))
        self._rate = Gauge(RATE, "Tokens a second that the running runs of a study train on.", ("study",))

    def set(self, num_nodes: Mapping[str, int], tokens_per_second: float) -> None:
        """Sets the numbers of nodes by state, and the rate."""
        for state, number in num_nodes.items():
            self._nodes.set(number, {"study": self.study, "state": state})
        self._rate.set(tokens_per_second, {"study": self.study})
