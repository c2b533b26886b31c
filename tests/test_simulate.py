"""The simulator: accounting, limits that are known, luck, and a real small study."""

import dataclasses
import math
import re
import statistics

import pytest

from experiments.scaling import STUDY
from gram_platform.nodes import method_nodes, unique
from gram_platform.planner import MACHINES, Machine, Ranks, fewest_ranks
from gram_platform.simulate import (
    SimulatedCluster,
    Task,
    best_interval,
    calibrated,
    describe_simulation,
    estimate,
    planned,
    simulate,
)
from gram_platform.simulate.cluster import DoesNotFinish, Timeline
from gram_platform.simulate.events import MAX_TRIES
from gram_platform.store import Store
from gram_platform.study.build import build_graph
from gram_platform.study.flags import parse
from tests.study.processes import Submission

HOUR_S = 3600.0
CALM = SimulatedCluster(  # nothing but work
    interruptions_per_hour=0.0, machine_start_s=0.0, group_start_s=0.0, recovery_s=0.0, idle_s=0.0
)
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


def only(tasks, cluster, **parts):
    (outcome,) = simulate(tasks, cluster, num_replications=1, **parts)
    return outcome


# ------------------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_hour_is_accounted_for(ranks, seed):
    tasks = chains(ranks=ranks)
    useful = sum(t.ranks * t.work_s for t in tasks) / HOUR_S
    interrupted = 0
    for outcome in simulate(tasks, dataclasses.replace(STORMY, seed=seed), num_replications=5):
        parts = outcome.useful_hours + outcome.retrained_hours + outcome.overhead_hours
        assert outcome.busy_hours == pytest.approx(parts)
        assert outcome.useful_hours == pytest.approx(useful)
        assert min(outcome.retrained_hours, outcome.overhead_hours, outcome.idle_hours) >= 0
        assert outcome.cost == pytest.approx(outcome.paid_hours / STORMY.slots_per_machine * 24.0)
        assert outcome.paid_hours <= outcome.makespan_hours * 12 * (1 + 1e-9)
        interrupted += outcome.num_interruptions
    assert interrupted > 0


def test_one_slot_takes_the_sum_of_durations():
    tasks = chains(ranks=1)
    cluster = dataclasses.replace(CALM, num_machines=1, slots_per_machine=1)
    written = sum(
        t.checkpoint_bytes * (math.ceil(t.work_s / cluster.checkpoint_every_s) - 1) + t.result_bytes
        for t in tasks
        if t.checkpoint_bytes
    )
    expected_s = sum(t.work_s for t in tasks) + written / cluster.storage_bytes_per_s
    assert only(tasks, cluster).makespan_hours == pytest.approx(expected_s / HOUR_S)


def test_slots_without_end_take_the_critical_path():
    tasks = [dataclasses.replace(t, checkpoint_bytes=0.0, result_bytes=0.0) for t in chains(ranks=1)]
    outcome = only(tasks, dataclasses.replace(CALM, num_machines=1000, slots_per_machine=1))
    assert outcome.makespan_hours == pytest.approx(8.0 + 1.5 + 0.1)
    assert outcome.useful_hours == pytest.approx(outcome.paid_hours)


def test_more_interruptions_take_longer_on_average():
    means = []
    for rate in (0.0, 0.1, 0.3, 1.0):
        outcomes = simulate(chains(), dataclasses.replace(STORMY, interruptions_per_hour=rate), num_replications=40)
        means.append([statistics.fmean(getattr(o, f) for o in outcomes) for f in ("makespan_hours", "retrained_hours")])
    assert means == sorted(means)
    assert [lost for _, lost in means] == sorted(lost for _, lost in means)
    assert means[0][1] == 0


def test_the_seed_decides_everything():
    first, again = simulate(chains(), STORMY), simulate(chains(), STORMY)
    assert first == again
    assert len({outcome.makespan_hours for outcome in first}) > 10  # replications differ
    assert simulate(chains(), dataclasses.replace(STORMY, seed=1)) != first


def test_finished_nodes_cost_nothing():
    tasks = chains()
    done = {t.id for t in tasks if t.id.startswith("base")}
    assert only(tasks, CALM, done=done).useful_hours == pytest.approx(6 * (2 * 1.5 + 0.1))
    assert only(tasks, CALM, done={t.id for t in tasks}).cost == 0


def test_starting_a_machine_is_waited_and_paid_for():
    cluster = dataclasses.replace(CALM, num_machines=1, slots_per_machine=2, machine_start_s=HOUR_S, idle_s=0.0)
    outcome = only([task("a", hours=2.0)], cluster)
    assert outcome.makespan_hours == pytest.approx(3.0)
    assert (outcome.paid_hours, outcome.idle_hours) == (pytest.approx(6.0), pytest.approx(4.0))


def test_idle_machines_are_given_back():
    tasks = [task("long", hours=10.0), task("short", hours=1.0)]
    cluster = dataclasses.replace(CALM, num_machines=2, slots_per_machine=1, idle_s=HOUR_S)
    assert only(tasks, cluster).paid_hours == pytest.approx(10.0 + 1.0 + 1.0)


def test_a_cluster_grows_for_runs_of_several_ranks():
    cluster = dataclasses.replace(CALM, num_machines=4, slots_per_machine=2)
    assert only([task(str(k), ranks=2) for k in range(4)], cluster).makespan_hours == pytest.approx(1.0)
    mixed = [task("wide", ranks=8), *(task(str(k)) for k in range(8))]
    assert only(mixed, cluster).makespan_hours == pytest.approx(2.0)


# ----------------------------------------------------------------------------------------- attempts, policy


def test_what_an_interruption_loses():
    timeline = Timeline(start_s=10.0, work_s=250.0, interval_s=100.0, write_s=5.0, result_s=3.0)
    assert timeline.num_checkpoints == 2
    assert timeline.duration_s == 10 + 250 + 2 * 5 + 3
    seen = {t: timeline.after(t) for t in (4.0, 60.0, 112.0, 115.0, 150.0, 272.0)}
    trained_and_saved = {t: (p.trained_s, p.saved_s) for t, p in seen.items()}
    expected = {4.0: (0, 0), 60.0: (50, 0), 112.0: (100, 0), 115.0: (100, 100), 150.0: (135, 100), 272.0: (250, 200)}
    assert trained_and_saved == expected
    assert all(p.trained_s + p.overhead_s == t for t, p in seen.items())


def test_checkpoints_stand_behind_steps():
    assert task("a", hours=100.0, checkpoint_bytes=1.0, grain_s=HOUR_S).interval_s(600.0) == HOUR_S
    assert task("a", hours=1.0, checkpoint_bytes=1.0, grain_s=36.0).interval_s(600.0) == 612.0
    assert task("a", hours=1.0).interval_s(600.0) == HOUR_S  # an evaluation has none


@pytest.mark.parametrize("storage_s", [20.0, 60.0])
def test_the_best_interval_is_youngs(storage_s):
    """sqrt(2 C MTBF) for one long run on one machine (Young 1974), up to the grid and the noise."""
    cluster = SimulatedCluster(num_machines=1, slots_per_machine=1, interruptions_per_hour=0.5, storage_bytes_per_s=1e9)
    tasks = [task("a", hours=400.0, checkpoint_bytes=storage_s * 1e9)]
    young_s = math.sqrt(2 * storage_s * HOUR_S / 0.5)
    grid = [young_s * 2.0**k for k in range(-3, 4)]
    best_s, costs = best_interval(tasks, cluster, intervals_s=grid, num_replications=15)
    assert young_s / 2 <= best_s <= 2 * young_s
    assert costs[young_s] <= 1.01 * costs[best_s]
    assert min(costs[grid[0]], costs[grid[-1]]) > 1.02 * costs[best_s]


@pytest.mark.parametrize("interval_s", [600.0, 1800.0])
def test_one_try_in_e_to_the_rate_times_the_time_saves_something(interval_s):
    """Machines live exponentially: of a task of one interval on m of them, e^(rate m t) - 1 tries are interrupted."""
    cluster = dataclasses.replace(CALM, num_machines=4, slots_per_machine=2, interruptions_per_hour=0.8)
    outcomes = simulate([task("a", hours=interval_s / HOUR_S, ranks=8)], cluster, num_replications=400)
    expected = math.exp(0.8 * 4 * interval_s / HOUR_S) - 1
    assert statistics.fmean(outcome.num_interruptions for outcome in outcomes) == pytest.approx(expected, rel=0.2)


SHORT_LIVED = dataclasses.replace(STORMY, num_machines=8, slots_per_machine=8, interruptions_per_hour=0.5)
WIDE = task("wide", hours=200.0, ranks=64, checkpoint_bytes=60e9, result_bytes=20e9, grain_s=10.0)


@pytest.mark.parametrize("interval_s", [7200.0, 14400.0])
def test_an_interval_that_machines_do_not_live_to_see(interval_s):
    """64 ranks on 8 machines that live 2 hours each: one interval of 2 hours in 3,000 is whole."""
    cluster = dataclasses.replace(SHORT_LIVED, storage_bytes_per_s=1e9, checkpoint_every_s=interval_s)
    with pytest.raises(DoesNotFinish, match=f"{MAX_TRIES} times in a row"):
        simulate([WIDE], cluster)
    best_s, costs = best_interval([WIDE], cluster, intervals_s=[300.0, interval_s], num_replications=1)
    assert best_s == 300.0
    assert math.isfinite(costs[300.0])
    assert math.isinf(costs[interval_s])
    with pytest.raises(DoesNotFinish, match="any of these intervals"):
        best_interval([WIDE], cluster, intervals_s=[interval_s], num_replications=1)


def test_machines_that_are_gone_before_the_others_have_come():
    """A try needs all 8 at once; each is there a quarter of the time."""
    cluster = dataclasses.replace(
        CALM, num_machines=8, interruptions_per_hour=36.0, machine_start_s=300.0, checkpoint_every_s=1.0
    )
    with pytest.raises(DoesNotFinish):
        only([dataclasses.replace(WIDE, checkpoint_bytes=1.0, grain_s=1.0)], cluster)


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


def test_tasks_that_can_never_run():
    with pytest.raises(ValueError, match=r"task\.ranks=8 .*4 slots"):
        simulate([task("a", ranks=8)], SimulatedCluster(num_machines=2, slots_per_machine=2))
    with pytest.raises(ValueError, match=r"tasks=.*nowhere"):
        simulate([task("a", "nowhere")], CALM)


def test_the_interval_holds_nine_of_ten():
    got = estimate([float(k) for k in range(101)])
    assert (got.mean, got.low, got.high) == (50.0, 5.0, 95.0)
    assert estimate([2.0]).low == 2.0


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


def test_the_description_of_a_simulated_study():
    nodes = paper_nodes("50M", "100M")
    cluster = SimulatedCluster(num_machines=2, interruptions_per_hour=0.2)
    text = describe_simulation(nodes, (), cluster, MACHINES["h100"], num_replications=3)
    assert "2 machines at most of 8 x h100" in text
    shares = [float(share) for share in re.findall(r"([\d.]+)%[,\n]", text)]
    assert len(shares) == 4
    assert sum(shares) == pytest.approx(100, abs=0.3)
    makespan = float(re.search(r"makespan\s+([\d.,]+)", text)[1])
    longest = max(t.work_s for t in planned(nodes, MACHINES["h100"], 0.4)) / HOUR_S
    assert makespan >= round(longest, 2)
    rare = dataclasses.replace(cluster, interruptions_per_hour=20.0, group_start_s=0.0, checkpoint_every_s=3600.0)
    text = describe_simulation(nodes, (), rare, MACHINES["h100"], num_replications=1)
    assert f"does not finish: a node was interrupted {MAX_TRIES} times" in text
    assert re.search(r"checkpoints every 60 s cost least: 60 s \$.*14400 s does not finish", text)
    never = dataclasses.replace(cluster, interruptions_per_hour=1e4)
    text = describe_simulation(nodes, (), never, MACHINES["h100"], num_replications=1)
    assert "does not finish with checkpoints at any other interval" in text
    done = {node.id for node in nodes}
    assert "nothing is left" in describe_simulation(nodes, done, cluster, MACHINES["h100"])


def test_nodes_without_a_time_get_the_rate_of_their_kind():
    nodes = paper_nodes("50M", "100M")
    known = {t.id: t.work_s for t in planned(nodes, MACHINES["cpu"], 0.5, Ranks(1))}
    some = {node.id: known[node.id] for node in nodes if dict(node.tags)["size"] == "50M"}
    for got in calibrated(nodes, some):
        assert got.work_s == pytest.approx(known[got.id], rel=1e-6)
    with pytest.raises(ValueError, match="at least one evaluation"):
        calibrated(nodes, {})


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
    tasks = calibrated(graph.nodes, {i: timing["elapsed_s"] for i, timing in timings.items()})
    # a checkpoint's time is in its run's; one machine of two slots that is there already
    tasks = [dataclasses.replace(t, checkpoint_bytes=0.0, result_bytes=0.0) for t in tasks]
    cluster = dataclasses.replace(CALM, num_machines=1, slots_per_machine=2)
    simulated_s = only(tasks, cluster).makespan_hours * HOUR_S
    real_s = max(ended) - min(started)
    print(f"{len(tasks)} nodes: real {real_s:.1f} s, simulated {simulated_s:.1f} s")
    assert real_s == pytest.approx(simulated_s, rel=0.25, abs=3.0)
