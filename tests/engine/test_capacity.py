"""How much of a study or a search is handed to Ray at once when its runs have different numbers of
ranks.
"""

import dataclasses
import json
from collections import Counter
from types import SimpleNamespace

import optuna
import pytest
from ray.autoscaler.v2 import sdk
from ray.core.generated.autoscaler_pb2 import (
    AutoscalingState,
    ClusterResourceState,
    GetClusterStatusReply,
    NodeState,
    NodeStatus,
)

from gram_platform.config.flops import GIB
from gram_platform.config.identity import InvalidField
from gram_platform.config.space import Parameter, Space
from gram_platform.engine import capacity, ray_private
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.execution import Resources
from gram_platform.engine.search import TrialWatch, Tuning, _Searcher, machines_for
from gram_platform.engine.trials import Group, OptunaSource, PointList, reservation
from gram_platform.methods.nodes import method_nodes
from gram_platform.store.files import seal
from tests.engine.conftest import TINY, on_ranks
from tests.engine.test_drained import Machines, in_own_process
from tests.executed import ray_executor


@pytest.fixture
def nodes(setting):
    """Three baselines on four ranks and twelve on one, narrow ones first."""
    sizes = [dataclasses.replace(TINY, name=name) for name in ("narrow", "wide")]
    settings = [dataclasses.replace(setting, size=sizes[0], seed=seed) for seed in range(12)]
    settings += [dataclasses.replace(setting, size=sizes[1], seed=seed) for seed in range(12, 15)]
    return [method_nodes("baseline", setting)[0] for setting in settings]


def placements_of(nodes) -> dict:
    """Returns the placements by id: wide nodes have four ranks."""
    return {node.id: on_ranks(4 if node.size == "wide" else 1) for node in nodes}


@pytest.fixture
def cluster(monkeypatch):
    """Sets what Ray says of the cluster: its resources now, and at most where an autoscaler reports
    that.

    `gangs`: how many runs of several ranks the driver's machine holds.
    """

    def set_cluster(now, most=None, can_grow=False, gangs=16):
        types = {"gpu-8"} if can_grow else {"node_0"}
        monkeypatch.setattr(
            capacity.ray, "nodes", lambda: [{"NodeID": "0", "Alive": True, "Resources": now}]
        )
        monkeypatch.setattr(capacity, "largest_cluster", lambda: most or {})
        monkeypatch.setattr(capacity, "most_gangs", lambda: gangs)
        monkeypatch.setattr(capacity, "machine_types", lambda: types)

    return set_cluster


# (CPUs now, at most, whether it can grow, --max-gpus, wide nodes in flight) -> sizes that are
# handed over.
ROOM = [
    (4, None, False, 0, 0, {"wide": 1}),
    (10, None, False, 0, 1, {"wide": 1, "narrow": 2}),
    (10, None, False, 5, 0, {"wide": 1, "narrow": 1}),
    (3, None, False, 0, 0, {"wide": 1}),  # it does not fit; Ray Train says so
    (0, {"CPU": 9}, True, 0, 0, {"wide": 2, "narrow": 1}),
    # From zero: an autoscaler sees all of it.
    (0, {"CPU": 64}, True, 0, 0, {"wide": 3, "narrow": 12}),
    (0, None, True, 0, 0, {"wide": 3, "narrow": 12}),
    (4, None, True, 6, 0, {"wide": 1, "narrow": 2}),
]


@pytest.mark.parametrize(("now", "most", "can_grow", "max_gpus", "in_flight", "handed"), ROOM)
def test_free_resources_are_counted_in_ranks(
    nodes, execution, cluster, now, most, can_grow, max_gpus, in_flight, handed
):
    cluster({"CPU": float(now)}, most, can_grow)
    cordon = Cordon(Resources(max_gpus=max_gpus))
    study = ray_executor(nodes, execution, cordon, placements_of(nodes))
    for node in nodes[12 : 12 + in_flight]:
        study._note(node.id, (node,))
    assert Counter(task[0].size for task in study._fitting()) == handed


@pytest.mark.parametrize(("memory", "most"), [(28 * GIB, 29), (9 * GIB, 8), (3 * GIB, 1), (0, 1)])
def test_the_memory_of_the_drivers_machine_limits_runs_of_several_ranks(machines, memory, most):
    """Wherever the ranks are, each run keeps about a gigabyte of processes beside the driver."""
    machines([{"CPU": 1.0, "memory": float(memory)}, {"CPU": 900.0, "memory": 1e13}])
    assert capacity.most_gangs() == most


def searcher_of(source, of_point, max_concurrent=0, max_gpus=0) -> _Searcher:
    """A searcher whose trials have the placements `of_point(point)` by node id."""

    def nodes(point) -> list:
        return [SimpleNamespace(id=i, placement=p) for i, p in of_point(point).items()]

    problem, place = SimpleNamespace(nodes=nodes), lambda node: node.placement
    cordon, tuning = Cordon(Resources(max_gpus=max_gpus)), Tuning("a", max_concurrent)
    return _Searcher(source, problem, None, cordon, tuning, TrialWatch(), place)


def test_studies_and_searches_have_one_limit_of_runs_of_several_ranks(nodes, execution, cluster):
    """What is in flight counts, and runs of one rank go on."""
    cluster({"CPU": 1000.0}, gangs=2)
    study = ray_executor(nodes, execution, None, placements_of(nodes))
    assert Counter(task[0].size for task in study._fitting()) == {"wide": 2, "narrow": 12}
    study._note(nodes[12].id, (nodes[12],))
    assert Counter(task[0].size for task in study._fitting()) == {"wide": 1, "narrow": 12}
    points = PointList([(str(k), {}) for k in range(5)])
    searcher = searcher_of(points, lambda point: {"run": on_ranks(4)})
    assert [searcher.suggest(trial) is not None for trial in "abcd"] == [True, True, False, False]


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_of_several_ranks_stays_on_the_drivers_machine():
    """Ray would place its process where most is free: on a machine of GPUs, which may be
    preempted."""
    in_own_process(place_trials)


def place_trials() -> None:
    import ray

    with Machines() as cluster:
        cluster.cluster.add_node(num_cpus=64, num_gpus=8, memory=64 * GIB)
        bundle = reservation([on_ranks(4)], Resources())
        place = [machines_for(bundle, Cordon(Resources()))]
        groups = [ray.util.placement_group([bundle], bundle_label_selector=place) for _ in range(4)]
        ray.get([group.ready() for group in groups], timeout=60)
        placed = [
            list(group["bundles_to_node_id"].values())
            for group in ray.util.placement_group_table().values()
        ]
        assert placed == 4 * [[ray.get_runtime_context().get_node_id()]]


def test_processes_that_share_gpus_are_counted_by_their_share(nodes, execution, cluster):
    cluster({"CPU": 16.0, "GPU": 1.0})
    asked = Resources(gpus_per_rank=1.0, gpus_per_run=0.1)
    study = ray_executor(nodes[:12], execution, Cordon(asked))
    assert len(study._fitting()) == 10


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("max_gpus", [0, 1000])
def test_a_cluster_of_any_size_is_used_whole_and_some_ranks_wait_for_more(cluster, ranks, max_gpus):
    """Where no autoscaler reports its maximum."""

    def num_ranks(num_machines: int) -> int:
        present = {"CPU": 64.0 * num_machines, "GPU": 8.0 * num_machines}
        cluster(present, None, can_grow=True, gangs=1000)
        resources = Resources(gpus_per_rank=1.0, gpus_per_run=1.0, max_gpus=max_gpus)
        free = capacity.Admission(resources).free_resources()
        return ranks * sum(free.take(ranks) for _ in range(2000))

    assert num_ranks(0) == capacity.MOST_WAITING
    assert num_ranks(125) == (max_gpus or 1000 + capacity.MOST_WAITING)


def test_tasks_in_flight_are_counted_as_they_start_and_end(nodes, execution, cluster, monkeypatch):
    """However many are in flight, a turn of the loop does not walk them."""
    monkeypatch.setattr(capacity.ray, "get", lambda reference: [])
    cluster({"CPU": 1000.0})
    study = ray_executor(nodes, execution, None, placements_of(nodes))
    for node in nodes:
        study._note(node.id, (node,))
    assert +study.admission.in_flight == {1: 12, 4: 3}
    assert study.admission.free_resources().free["CPU"] == 1000.0 - 12 - 3 * 4
    assert [study._take_back(node.id) for node in nodes[2:]] == [[node] for node in nodes[2:]]
    assert +study.admission.in_flight == {1: 2}
    assert study.admission.free_resources().free["CPU"] == 1000.0 - 2


def test_capacity_is_required_for_what_is_missing(nodes, execution):
    store, placements = execution.store(), placements_of(nodes)
    assert capacity.widest_missing(nodes, placements, store) == 4
    assert capacity.widest_missing(nodes[:12], placements, store) == 1
    directory = store.run(nodes[12].id)
    directory.publish(seal({"run_id": nodes[12].id, "weights_sha256": "0" * 64}))
    assert capacity.widest_missing(nodes[:13], placements, store) == 1
    assert capacity.widest_missing(nodes[12:13], placements, store) == 0


# ------------------------------------------------------------------------- what can never be placed

BIG, GPU_BOX = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}
TOO_MUCH = [  # machines, CPUs and GPUs of a rank, ranks -> the field that is refused
    ([BIG, BIG], 8.0, 0.0, 1, "threads"),  # a rank is on one machine
    ([BIG], 1.0, 1.0, 1, "device"),
    ([{"CPU": 64.0}, GPU_BOX], 16.0, 1.0, 1, "threads"),  # the machine with the GPU has 8 CPUs
    ([BIG, BIG], 3.0, 0.0, 4, "num_workers"),
]


@pytest.fixture
def machines(monkeypatch):
    """Sets the machines that Ray has, and the types that an autoscaler (of version 2 or 1) calls
    them.

    `type_of`: of each machine, "" where Ray has no name but its id. `report`: whether anything
    reports.
    """
    monkeypatch.setattr(capacity, "REPORT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(capacity, "largest_cluster", dict)
    context = SimpleNamespace(gcs_address="head:6379", get_node_id=lambda: f"{0:056x}")
    monkeypatch.setattr(capacity.ray, "get_runtime_context", lambda: context)

    def set_machines(resources, type_of="", report=True, version=1):
        ids = [f"{k:056x}" for k in range(len(resources))]
        nodes = [
            {"NodeID": i, "Alive": True, "Resources": one}
            for i, one in zip(ids, resources, strict=True)
        ]
        nodes.append({"NodeID": "dead", "Alive": False, "Resources": {"CPU": 99.0, "GPU": 9.0}})
        active = {type_of or f"node_{i}": 1 for i in ids}
        status = (
            json.dumps({"autoscaler_report": {"active_nodes": active}}).encode() if report else None
        )
        states = [
            NodeState(node_id=bytes.fromhex(i), ray_node_type_name=type_of, status=NodeStatus.IDLE)
            for i in ids
        ]
        reply = GetClusterStatusReply(
            autoscaling_state=AutoscalingState(autoscaler_state_version=7 * report),
            cluster_resource_state=ClusterResourceState(node_states=states),
        ).SerializeToString()
        monkeypatch.setattr(capacity.ray, "nodes", lambda: nodes)
        monkeypatch.setattr(ray_private, "is_autoscaler_v2", lambda fetch_from_server: version == 2)
        monkeypatch.setattr(
            ray_private, "_internal_kv_get", lambda key: status if version == 1 else None
        )
        client = lambda address: SimpleNamespace(get_cluster_status=lambda timeout_s: reply)
        monkeypatch.setattr(sdk, "GcsClient", client)

    return set_machines


@pytest.mark.parametrize(("present", "cpus", "gpus", "ranks", "field"), TOO_MUCH)
def test_what_a_cluster_of_fixed_size_can_never_place_is_refused(
    machines, present, cpus, gpus, ranks, field
):
    machines(present)
    said = []
    with pytest.raises(InvalidField) as caught:
        capacity.require_capacity(ranks, Resources(cpus, gpus), said.append)
    assert caught.value.field == field
    capacity.require_capacity(1, Resources(4.0), said.append)
    assert not said


@pytest.mark.parametrize("version", [1, 2])
def test_a_cluster_with_an_autoscaler_is_waited_for_and_no_other(machines, monkeypatch, version):
    """An autoscaler's types have its config's names, and GPUs may come from zero.

    A cluster of KubeRay without one reports nothing; Ray's own monitor calls a machine by its id.
    """
    gang = lambda: (capacity.placement_strategy(Resources(1.0, 1.0), 2), capacity.wait_for_more_s())

    def fits() -> bool:
        admission = capacity.Admission(Resources())
        admission.in_flight[4] += 1
        return admission.free_resources().take(1)

    machines([BIG], "gpu-8", version=version)
    with monkeypatch.context() as impatient:
        impatient.setattr(capacity.time, "sleep", None)  # nothing waits for a report
        assert (gang(), fits()) == (("STRICT_PACK", capacity.WAIT_FOR_MACHINES_S), True)
        for report in (True, False):
            machines([BIG], report=report, version=version)
            assert (gang(), fits()) == (("PACK", capacity.WAIT_FOR_MORE_S), False)
    for report in (True, False):
        machines([BIG], report=report, version=version)
        with pytest.raises(InvalidField):
            capacity.require_capacity(1, Resources(1.0, 1.0), print)
    machines([BIG], "gpu-8", version=version)
    said = []
    capacity.require_capacity(1, Resources(1.0, 1.0), said.append)
    assert len(said) == 1


def test_what_an_autoscaler_says_it_can_place_is_not_spoken_of(machines, monkeypatch):
    machines([BIG], "big")
    monkeypatch.setattr(capacity, "largest_cluster", lambda: {"CPU": 64.0, "GPU": 8.0})
    said = []
    capacity.require_capacity(8, Resources(8.0, 1.0), said.append)
    assert not said
    capacity.require_capacity(9, Resources(8.0, 1.0), said.append)
    assert len(said) == 1


@pytest.mark.ray
def test_a_local_cluster_has_a_fixed_size(ray_cluster):
    """As Ray reports by what it does not document: a line that fails names what a new version has
    changed.
    """
    capacity.await_report()
    assert ray_private.machine_types(), f"_internal_kv_get({ray_private.MONITOR_KEY!r})"
    assert capacity.has_fixed_size()
    assert capacity.largest_cluster() == {}, (
        "ray._private.state: get_max_resources_from_cluster_config"
    )
    assert ray_private.draining_machines() == set(), "ray._private.state: get_draining_nodes"
    with pytest.raises(InvalidField):
        capacity.require_capacity(1, Resources(3.0), print)


# ------------------------------------------------------------------------------------------- trials


def test_trials_leave_resources_for_the_widest_so_far(nodes, cluster):
    cluster({"CPU": 8.0})
    of_point = lambda point: placements_of([nodes[point["index"]]])
    points = [(str(i), {"index": i}) for i in (12, 0, 13, 1)]
    searcher = searcher_of(PointList(points), of_point)
    first, second, third = (searcher.suggest(trial) for trial in "abc")
    # 4 + 1 of 8 are in use.
    assert (first["point"], second["point"], third) == ({"index": 12}, {"index": 0}, None)
    searcher.on_trial_complete("a")  # cancelled
    assert searcher.suggest("c")["point"] == {"index": 13}
    assert searcher.suggest("d") is None
    searcher.on_trial_complete("b")
    assert searcher.suggest("d")["point"] == {"index": 1}


# (whether the cluster can grow, its CPUs, --max-concurrent, --max-gpus) -> trials handed to Ray.
HANDED = [
    (False, 4.0, 0, 0, {"grid": 4, "optuna": 4}),
    # From zero: all of a grid, and what Optuna draws at random.
    (True, 0.0, 0, 0, {"grid": 64, "optuna": 10}),
    (True, 12.0, 0, 0, {"grid": 64, "optuna": 12}),
    (True, 0.0, 20, 0, {"grid": 20, "optuna": 20}),
]


@pytest.mark.parametrize(("can_grow", "cpus", "max_concurrent", "max_gpus", "handed"), HANDED)
def test_trials_that_depend_on_results_wait_only_for_machines_that_may_yet_come(
    cluster, can_grow, cpus, max_concurrent, max_gpus, handed
):
    cluster({"CPU": cpus}, None, can_grow)

    def num_handed(source) -> int:
        searcher = searcher_of(source, lambda point: {}, max_concurrent, max_gpus)
        return sum(searcher.suggest(str(k)) is not None for k in range(64))

    assert num_handed(PointList([(str(k), {}) for k in range(64)])) == handed["grid"]
    study = optuna.create_study()
    space = Space((Parameter("x", 0.0, 1.0),))
    assert (
        num_handed(OptunaSource([Group("a", {}, study, num_trials=64)], space, ()))
        == handed["optuna"]
    )
