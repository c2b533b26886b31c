"""How much of a study or a search is handed to Ray at once when its runs have different numbers of ranks."""

import dataclasses
import json
from collections import Counter
from types import SimpleNamespace

import pytest

from gram_platform.engine import capacity, graph
from gram_platform.engine.execution import Resources
from gram_platform.engine.life import MAX_CRASHES, Progress
from gram_platform.engine.proposals import PointList
from gram_platform.engine.search import Tuning, _CrashCount, _Searcher
from gram_platform.engine.trials import most_ranks, trial_ranks
from gram_platform.methods.nodes import method_nodes
from gram_platform.planner import Ranks
from gram_platform.store.files import seal
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
    started = [task[0].size for node_id, task in study.in_flight.items() if node_id not in before]
    assert Counter(started) == handed


def test_room_is_asked_for_what_is_missing(nodes, execution):
    own = dataclasses.replace(execution, ranks=Ranks(1, (("wide", 4),)))
    assert capacity.widest_missing(nodes, own) == 4
    assert capacity.widest_missing(nodes[:12], own) == 1
    directory = own.store().run(nodes[12].id)
    directory.publish(seal({"run_id": nodes[12].id}))
    assert capacity.widest_missing(nodes[:13], own) == 1
    assert capacity.widest_missing(nodes[12:13], own) == 0


def test_nodes_of_one_rank_alone_are_queued_twice_over(nodes, execution, monkeypatch):
    monkeypatch.setattr(capacity.ray, "cluster_resources", lambda: {"CPU": 3.0})
    monkeypatch.setattr(capacity, "largest_cluster", dict)
    study = graph._Graph(Progress(nodes[:12]), execution, Resources(), retry_diverged=False)
    assert len(study._fitting([(node,) for node in nodes[:12]])) == 6


# --------------------------------------------------------------------------------- what can never be placed

BIG, GPU_BOX = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}
TOO_MUCH = [  # machines, CPUs and GPUs of a rank, ranks -> what is said
    ([BIG], 8.0, 0.0, 1, r"threads=8.*at most 4,"),
    ([BIG, BIG], 8.0, 0.0, 1, r"threads=8.*at most 4,"),  # a rank is on one machine
    ([BIG], 1.0, 1.0, 1, r"device='cuda'.*GPU"),
    ([{"CPU": 64.0}, GPU_BOX], 16.0, 1.0, 1, r"threads=16.*at most 8,"),  # of the machine with the GPU
    ([BIG], 1.0, 0.0, 8, r"num_workers=8.*at most 4,"),
    ([BIG, BIG], 3.0, 0.0, 4, r"num_workers=4.*at most 2,"),
]


@pytest.fixture
def machines(monkeypatch):
    """Sets the machines that Ray has, and the types that its monitor calls them; None: the cluster's own names."""
    monkeypatch.setattr(capacity, "MONITOR_TIMEOUT_S", 0.0)
    monkeypatch.setattr(capacity, "largest_cluster", dict)

    def set_machines(resources, types=None, report=True):
        nodes = [{"NodeID": f"{k}", "Alive": True, "Resources": one} for k, one in enumerate(resources)]
        nodes.append({"NodeID": "dead", "Alive": False, "Resources": {"CPU": 99.0, "GPU": 9.0}})
        active = types or {f"node_{k}": 1 for k in range(len(resources))}
        status = json.dumps({"autoscaler_report": {"active_nodes": active}}).encode() if report else None
        monkeypatch.setattr(capacity.ray, "nodes", lambda: nodes)
        monkeypatch.setattr(capacity, "_internal_kv_get", lambda key: status)

    return set_machines


@pytest.mark.parametrize(("present", "cpus", "gpus", "ranks", "message"), TOO_MUCH)
def test_what_a_cluster_of_fixed_size_can_never_place_is_refused(machines, present, cpus, gpus, ranks, message):
    machines(present)
    said = []
    with pytest.raises(ValueError, match=f"^{message}"):
        capacity.require_room(ranks, Resources(cpus, gpus), said.append)
    capacity.require_room(1, Resources(4.0), said.append)
    assert not said


@pytest.mark.parametrize("unknown", [{"types": {"gpu-8": 1}}, {"report": False}])
def test_a_cluster_that_may_grow_is_waited_for(machines, unknown):
    """Its autoscaler has types of its own, or (version 2) reports elsewhere: GPUs may come from zero."""
    machines([BIG], **unknown)
    said = []
    capacity.require_room(1, Resources(1.0, 1.0), said.append)
    assert len(said) == 1
    assert "waiting for machines" in said[0]
    assert "device='cuda'" in said[0]


def test_what_an_autoscaler_says_it_can_place_is_not_spoken_of(machines, monkeypatch):
    machines([BIG], types={"big": 1})
    monkeypatch.setattr(capacity, "largest_cluster", lambda: {"CPU": 64.0, "GPU": 8.0})
    said = []
    capacity.require_room(8, Resources(8.0, 1.0), said.append)
    assert not said
    capacity.require_room(9, Resources(8.0, 1.0), said.append)
    assert "num_workers=9" in said[0]


@pytest.mark.ray
def test_a_local_cluster_has_a_fixed_size(ray_cluster):
    """As Ray's own monitor reports it: its key and its words are not documented."""
    assert capacity.has_fixed_size()
    with pytest.raises(ValueError, match=r"^threads=3.*at most 2,"):
        capacity.require_room(1, Resources(3.0), print)


# ------------------------------------------------------------------------------------------------------ trials


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


@pytest.mark.parametrize(("types", "at_once"), [(None, 4), ({"cpu-4": 1}, 6)])
def test_trials_wait_only_for_machines_that_may_yet_come(machines, monkeypatch, types, at_once):
    """A pause or a limit does not hold up what was handed to Ray."""
    machines([BIG], types)
    monkeypatch.setattr(capacity.ray, "cluster_resources", lambda: BIG)
    tuning, points, told = Tuning("a", max_concurrent=6), [(name, {}) for name in "abcdefgh"], []
    most = most_ranks(tuning.max_concurrent, Resources())
    searcher = _Searcher(PointList(points), tuning, lambda point: 1, most, told.append, told.append)
    assert sum(searcher.suggest(name) is not None for name, _ in points) == at_once == len(told)


def test_deaths_of_a_trials_process_count_since_its_last_checkpoint():
    """As those of a study's node: a long trial on machines that come and go is not failed by their number."""
    step = [0]
    patience = _CrashCount(lambda point: step[0])
    trial = SimpleNamespace(trial_id="a", config={"point": {}}, num_failures=0, max_failures=MAX_CRASHES - 1)

    def recovers() -> bool:
        trial.num_failures += 1
        if trial.num_failures > trial.max_failures:  # as Ray Tune decides
            return False
        patience.on_trial_recover(0, [trial], trial)
        return True

    for _ in range(3 * MAX_CRASHES):
        step[0] += 1
        assert recovers()
    assert [recovers() for _ in range(MAX_CRASHES)] == [True] * (MAX_CRASHES - 2) + [False] * 2
