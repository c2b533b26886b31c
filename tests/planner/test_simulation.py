"""The expectation of a study on a hypothetical cluster: limits that are known, luck drawn by hand, a real study."""

import dataclasses
import math
import random
import re
import statistics

import pytest

from gram_platform.methods.nodes import method_nodes, unique
from gram_platform.planner import MACHINES, Machine, Ranks, fewest_ranks
from gram_platform.planner.simulation import (
    MAX_TRIES,
    SimulatedCluster,
    Task,
    best_interval_s,
    describe_simulation,
    expected_s,
    planned,
    simulate,
    simulated_cluster,
)
from gram_platform.store import Store
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY
from tests.studies.processes import Submission

HOUR_S = 3600.0
CALM = SimulatedCluster(interruptions_per_hour=0.0, machine_start_s=0.0, group_start_s=0.0, recovery_s=0.0)
STORMY = SimulatedCluster(num_machines=3, slots_per_machine=4, interruptions_per_hour=0.3, storage_bytes_per_s=1e8)


def task(name, *needs, hours=1.0, **parts) -> Task:
    return Task(name, frozenset(needs), hours * HOUR_S, **parts)


def chains(num_chains=6, ranks=2) -> list[Task]:
    """A base, a branch and its evaluation, several times, of unequal lengths."""
    tasks = []
    for k in range(num_chains):
        sizes = {"ranks": ranks, "checkpoint_bytes": 3e9, "result_bytes": 1e9}
        tasks.append(task(f"base {k}", hours=3.0 + k, **sizes))
        tasks.append(task(f"branch {k}", f"base {k}", hours=1.5, **sizes))
        tasks.append(task(f"evaluation {k}", f"branch {k}", hours=0.1, is_first=True))
    return tasks


# ------------------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_hour_is_accounted_for(ranks):
    tasks = chains(ranks=ranks)
    found = simulate(tasks, STORMY)
    assert found.useful_hours == pytest.approx(sum(t.ranks * t.work_s for t in tasks) / HOUR_S)
    busy = sum(t.ranks * expected_s(t, STORMY) for t in tasks) / HOUR_S
    assert found.useful_hours + found.lost_hours + found.overhead_hours == pytest.approx(busy)
    assert min(found.lost_hours, found.overhead_hours, found.idle_hours) > 0
    assert found.cost == pytest.approx(found.paid_hours / STORMY.slots_per_machine * 24.0)
    assert found.paid_hours <= found.makespan_hours * 12 * (1 + 1e-9)


def test_one_slot_takes_the_sum_of_durations():
    tasks = chains(ranks=1)
    cluster = dataclasses.replace(CALM, num_machines=1, slots_per_machine=1)
    written = sum(
        t.checkpoint_bytes * (math.ceil(t.work_s / cluster.checkpoint_every_s) - 1) + t.result_bytes
        for t in tasks
        if t.checkpoint_bytes
    )
    seconds = sum(t.work_s for t in tasks) + written / cluster.storage_bytes_per_s
    assert simulate(tasks, cluster).makespan_hours == pytest.approx(seconds / HOUR_S)


def test_slots_without_end_take_the_critical_path():
    tasks = [dataclasses.replace(t, checkpoint_bytes=0.0, result_bytes=0.0) for t in chains(ranks=1)]
    found = simulate(tasks, dataclasses.replace(CALM, num_machines=1000, slots_per_machine=1))
    assert found.makespan_hours == pytest.approx(8.0 + 1.5 + 0.1)
    assert found.useful_hours == pytest.approx(found.paid_hours)


def test_more_interruptions_lose_more():
    found = [simulate(chains(), dataclasses.replace(STORMY, interruptions_per_hour=r)) for r in (0.0, 0.1, 0.3, 1.0)]
    for name in ("makespan_hours", "lost_hours", "cost"):
        values = [getattr(each, name) for each in found]
        assert values == sorted(set(values))
    assert found[0].lost_hours == 0


def test_finished_nodes_cost_nothing():
    tasks = chains()
    done = {t.id for t in tasks if t.id.startswith("base")}
    assert simulate(tasks, CALM, done).useful_hours == pytest.approx(6 * (2 * 1.5 + 0.1))
    assert simulate(tasks, CALM, {t.id for t in tasks}).cost == 0


def test_starting_a_machine_is_waited_and_paid_for():
    cluster = dataclasses.replace(CALM, num_machines=1, slots_per_machine=2, machine_start_s=HOUR_S)
    found = simulate([task("a", hours=2.0)], cluster)
    assert found.makespan_hours == pytest.approx(3.0)
    assert (found.paid_hours, found.idle_hours) == (pytest.approx(6.0), pytest.approx(4.0))


def test_only_machines_with_work_are_paid_for():
    tasks = [task("long", hours=10.0), task("short", hours=1.0)]
    cluster = dataclasses.replace(CALM, num_machines=2, slots_per_machine=1)
    assert simulate(tasks, cluster).paid_hours == pytest.approx(10.0 + 1.0)


def test_a_cluster_grows_for_runs_of_several_ranks():
    cluster = dataclasses.replace(CALM, num_machines=4, slots_per_machine=2)
    assert simulate([task(str(k), ranks=2) for k in range(4)], cluster).makespan_hours == pytest.approx(1.0)
    mixed = [task("wide", ranks=8), *(task(str(k)) for k in range(8))]
    assert simulate(mixed, cluster).makespan_hours == pytest.approx(2.0)


# ---------------------------------------------------------------------------------------------- expectations


def test_checkpoints_stand_behind_steps():
    assert task("a", hours=100.0, checkpoint_bytes=1.0, grain_s=HOUR_S).interval_s(600.0) == HOUR_S
    assert task("a", hours=1.0, checkpoint_bytes=1.0, grain_s=36.0).interval_s(600.0) == 612.0
    assert task("a", hours=1.0).interval_s(600.0) == HOUR_S  # an evaluation has none


def drawn_s(stretches: int, stretch_s: float, restart_s: float, rate: float, luck: random.Random) -> float:
    """Seconds of one task whose machines' lives are drawn: stretches and restarts begin again when interrupted."""
    elapsed_s = 0.0
    for _ in range(stretches):
        while (life_s := luck.expovariate(rate)) < stretch_s:
            elapsed_s += life_s
            while (again_s := luck.expovariate(rate)) < restart_s:
                elapsed_s += again_s
            elapsed_s += restart_s
        elapsed_s += stretch_s
    return elapsed_s


@pytest.mark.parametrize(("rate", "interval_s"), [(0.2, 600.0), (0.8, 600.0), (0.8, 1800.0)])
def test_the_expectation_is_the_mean_of_drawn_lives(rate, interval_s):
    cluster = dataclasses.replace(
        CALM,
        num_machines=4,
        slots_per_machine=2,
        interruptions_per_hour=rate,
        recovery_s=30.0,
        checkpoint_every_s=interval_s,
        storage_bytes_per_s=1e9,
    )
    own, write_s = task("a", hours=2.0, ranks=8, checkpoint_bytes=20e9), 20.0
    stretches, luck = int(2 * HOUR_S / interval_s), random.Random(0)
    lives = [
        drawn_s(stretches, interval_s + write_s, 30.0 + write_s, 4 * rate / HOUR_S, luck) - write_s for _ in range(2000)
    ]
    # Daly's e^(rR) lets restarts begin a stretch too; at these rates that is a few percent
    assert expected_s(own, cluster) == pytest.approx(statistics.fmean(lives), rel=0.08)


@pytest.mark.parametrize("storage_s", [20.0, 60.0])
def test_the_best_interval_is_youngs(storage_s):
    """sqrt(2 C MTBF) for one long run on one machine (Young 1974): halving or doubling it costs more."""
    cluster = SimulatedCluster(num_machines=1, slots_per_machine=1, interruptions_per_hour=0.5, storage_bytes_per_s=1e9)
    own = task("a", hours=400.0, checkpoint_bytes=storage_s * 1e9)
    young_s = math.sqrt(2 * storage_s * HOUR_S / 0.5)
    assert best_interval_s(own, cluster) == pytest.approx(young_s)
    factors = (1 / 8, 1 / 2, 1, 2, 8)
    costs = [simulate([own], dataclasses.replace(cluster, checkpoint_every_s=f * young_s)).cost for f in factors]
    assert costs[2] == min(costs)
    assert min(costs[0], costs[4]) > 1.02 * costs[2]


def test_an_interval_that_machines_do_not_live_to_see():
    """64 ranks on 8 machines that live 2 hours each: one interval of 2 hours in 3,000 is whole."""
    wide = task("wide", hours=200.0, ranks=64, checkpoint_bytes=60e9, result_bytes=20e9, grain_s=10.0)
    cluster = SimulatedCluster(num_machines=8, slots_per_machine=8, interruptions_per_hour=0.5)
    assert math.isinf(simulate([wide], dataclasses.replace(cluster, checkpoint_every_s=7200.0)).makespan_hours)
    assert math.isfinite(simulate([wide], dataclasses.replace(cluster, checkpoint_every_s=300.0)).makespan_hours)


WRONG = {
    r"cluster\.num_machines=0": {"num_machines": 0},
    r"cluster\.slots_per_machine=1\.5": {"slots_per_machine": 1.5},
    r"cluster\.interruptions_per_hour=-1": {"interruptions_per_hour": -1},
    r"cluster\.checkpoint_every_s=0": {"checkpoint_every_s": 0},
    r"cluster\.storage_bytes_per_s=inf": {"storage_bytes_per_s": math.inf},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_clusters(message):
    with pytest.raises(ValueError, match=message):
        SimulatedCluster(**WRONG[message])


def test_fields_of_former_versions_are_refused_with_their_reason():
    with pytest.raises(ValueError, match=r"^cluster\.seed='3': "):
        simulated_cluster(("seed=3",))
    with pytest.raises(ValueError, match=r"^cluster\.idle_s='3': "):
        simulated_cluster(("idle_s=3",))


def test_tasks_that_can_never_run():
    with pytest.raises(ValueError, match=r"task\.ranks=8.*4 slots"):
        simulate([task("a", ranks=8)], SimulatedCluster(num_machines=2, slots_per_machine=2))
    with pytest.raises(ValueError, match=r"tasks=.*nowhere"):
        simulate([task("a", "nowhere")], CALM)


# --------------------------------------------------------------------------------------------------- studies


def paper_nodes(*sizes):
    preset, domains = STUDY.presets["paper"], ("core", "lisp", "virology", "nuclear", "cybersecurity")
    settings = [preset.setting(preset.sizes[s], 0, "data", domains, (("virology",),)) for s in sizes]
    return unique(node for setting in settings for method in STUDY.methods for node in method_nodes(method, setting))


def test_tasks_of_the_papers_study():
    nodes, machine = paper_nodes("800M", "5B"), MACHINES["h100"]
    tasks = {t.id: t for t in planned(nodes, machine, 0.4)}
    runs = [node for node in nodes if node.kind == "run"]
    assert {t.ranks for t in tasks.values()} == {1, *(fewest_ranks(node.config, machine) for node in runs)}
    halved = {t.id: t for t in planned(nodes, machine, 0.2, Ranks(16))}
    for node in runs:
        mine = tasks[node.id]
        assert halved[node.id].work_s * 16 == pytest.approx(2 * mine.work_s * mine.ranks)
        assert mine.grain_s == pytest.approx(mine.work_s / node.config.num_steps)
    with pytest.raises(ValueError, match="machine='toy'"):
        planned(nodes, Machine("toy", 1e12, 1e6, 0.0), 0.4)


def test_the_description_of_a_study():
    nodes = paper_nodes("50M", "100M")
    cluster = SimulatedCluster(num_machines=2, interruptions_per_hour=0.2)
    text = describe_simulation(nodes, (), cluster, MACHINES["h100"])
    assert "2 machines of 8 x h100" in text
    shares = [float(share) for share in re.findall(r"([\d.]+)%[,\n]", text)]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(100, abs=0.3)
    makespan = float(re.search(r"makespan\s+([\d.,]+)", text)[1])
    longest = max(t.work_s for t in planned(nodes, MACHINES["h100"], 0.4)) / HOUR_S
    assert makespan >= round(longest, 2)
    assert re.search(r" \d+ to \d+ s, ", text)
    rare = dataclasses.replace(cluster, interruptions_per_hour=20.0, group_start_s=0.0, checkpoint_every_s=3600.0)
    text = describe_simulation(nodes, (), rare, MACHINES["h100"])
    assert re.search(f"does not finish: .*{MAX_TRIES:g}", text)
    done = {node.id for node in nodes}
    assert "nothing is left" in describe_simulation(nodes, done, cluster, MACHINES["h100"])


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_smoke_study_takes_as_long_as_simulated(tmp_path):
    """Two CPU slots, each node's own time: first start to last end, within a quarter (and 3 s) of the simulation."""
    storage = tmp_path / "storage"
    with Submission(storage, ("--preset", "smoke")) as submission:
        assert submission.finish(timeout_s=800.0) == 0, submission.output
    graph = build_graph(STUDY, parse(STUDY, ["--preset", "smoke", "--storage", str(storage)]))
    store = Store(storage)
    timings = {
        node.id: (store.run if node.kind == "run" else store.evaluation)(node.id).timing() for node in graph.nodes
    }
    ended = [timing["ended"] for timing in timings.values()]
    started = [timing["ended"] - timing["elapsed_s"] for timing in timings.values()]
    # a checkpoint's time is in its run's; one machine of two slots that is there already
    tasks = [Task(n.id, n.needs, timings[n.id]["elapsed_s"], is_first=n.kind == "evaluation") for n in graph.nodes]
    cluster = dataclasses.replace(CALM, num_machines=1, slots_per_machine=2)
    simulated_s = simulate(tasks, cluster).makespan_hours * HOUR_S
    real_s = max(ended) - min(started)
    print(f"{len(tasks)} nodes: real {real_s:.1f} s, simulated {simulated_s:.1f} s")
    assert real_s == pytest.approx(simulated_s, rel=0.25, abs=3.0)
