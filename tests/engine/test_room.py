"""How much of a study or a search is handed to Ray at once when its runs have different numbers of ranks."""

import dataclasses
from collections import Counter

import pytest

from gram_platform.engine import capacity, graph
from gram_platform.engine.execution import Resources
from gram_platform.engine.graph import Progress
from gram_platform.engine.proposals import PointList
from gram_platform.engine.search import Tuning, _Searcher, trial_ranks
from gram_platform.nodes import method_nodes
from gram_platform.planner import Ranks
from tests.engine.conftest import TINY


@pytest.fixture
def nodes(setting):
    """Three baselines on four ranks and twelve on one, narrow ones first."""
    sizes = [dataclasses.replace(TINY, name=name) for name in ("narrow", "wide")]
    settings = [dataclasses.replace(setting, size=sizes[0], seed=seed) for seed in range(12)]
    settings += [dataclasses.replace(setting, size=sizes[1], seed=seed) for seed in range(12, 15)]
    return [method_nodes("baseline", setting)[0] for setting in settings]


ROOM = [  # (CPUs now, CPUs at most, wide nodes in flight) -> sizes that are handed over
    (4, 4, 0, {"wide": 1}),
    (10, 10, 0, {"wide": 2, "narrow": 2}),
    (10, 10, 1, {"wide": 1, "narrow": 2}),
    (3, 3, 0, {"wide": 1}),  # it does not fit; Ray Train says so
    (4, 40, 0, {"wide": 2}),  # twice what is there, as an autoscaler may grow
    (40, 40, 0, {"wide": 3, "narrow": 12}),
]


@pytest.mark.parametrize(("now", "most", "in_flight", "handed"), ROOM)
def test_room_is_counted_in_ranks(nodes, execution, monkeypatch, now, most, in_flight, handed):
    monkeypatch.setattr(capacity.ray, "cluster_resources", lambda: {"CPU": float(now)})
    monkeypatch.setattr(capacity, "largest_cluster", lambda: {"CPU": most})
    own = dataclasses.replace(execution, ranks=Ranks(1, (("wide", 4),)))
    study = graph._Graph(Progress(nodes), own, Resources(), retry_diverged=False)
    monkeypatch.setattr(study, "_submit", lambda task: task[0].id)
    study.in_flight = {node.id: (node,) for node in nodes[12 : 12 + in_flight]}
    study.waiting = [node for node in nodes if node.id not in study.in_flight]
    before = set(study.in_flight)
    study.advance()
    started = [dict(task[0].tags)["size"] for node_id, task in study.in_flight.items() if node_id not in before]
    assert Counter(started) == handed


def test_nodes_of_one_rank_alone_are_queued_twice_over(nodes, execution, monkeypatch):
    monkeypatch.setattr(capacity.ray, "cluster_resources", lambda: {"CPU": 3.0})
    monkeypatch.setattr(capacity, "largest_cluster", dict)
    study = graph._Graph(Progress(nodes[:12]), execution, Resources(), retry_diverged=False)
    assert len(study._fitting([(node,) for node in nodes[:12]])) == 6


def test_trials_leave_room_for_the_widest_so_far(nodes, execution):
    class Problem:
        def nodes(self, point):
            return [nodes[point["index"]]]

    own = dataclasses.replace(execution, ranks=Ranks(1, (("wide", 4),)))
    ranks_of = lambda point: trial_ranks(Problem(), own, point)
    points = [(str(i), {"index": i}) for i in (12, 0, 13, 1)]
    told = []
    searcher = _Searcher(PointList(points), Tuning("a"), ranks_of, lambda: 8, told.append, told.append)
    first, second, third = (searcher.suggest(trial) for trial in "abc")
    assert (first["point"], second["point"], third) == ({"index": 12}, {"index": 0}, None)  # 4 + 1 of 8 are in use
    searcher.on_trial_complete("a")  # cancelled
    assert searcher.suggest("c")["point"] == {"index": 13}
    assert searcher.suggest("d") is None
    searcher.on_trial_complete("b")
    assert searcher.suggest("d")["point"] == {"index": 1}
