"""One node in this process: from nothing, from a checkpoint, and when it must not go on."""

import dataclasses
import functools
import json

import pytest
import torch

from gram_platform.config import Evaluation, View
from gram_platform.config.identity import InvalidField
from gram_platform.config.layout import ON_CPU
from gram_platform.config.routing import Schedule
from gram_platform.engine import node, process
from gram_platform.engine.evaluation import evaluation_steps, execute_evaluation, probe_steps
from gram_platform.engine.execution import Placement
from gram_platform.engine.node import (
    MetricsSummary,
    RunExecution,
    execute_run,
    new_learner,
    starting_point,
)
from gram_platform.engine.process import SYSTEM, set_up_torch
from gram_platform.methods import plan
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.methods.setting import Options, Unlearning
from gram_platform.planner import MACHINES
from gram_platform.planner.ranks import Ranks
from gram_platform.store import LeaseHeld, Store
from gram_platform.store.checkpoints import PROBE
from gram_platform.store.views import load_view
from gram_platform.studies.workplace import placement_of
from gram_platform.train import learner
from gram_platform.train.compilation import Compilation
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import TrainingDiverged, training_steps
from tests.engine.conftest import elsewhere
from tests.tiny import weights_of


def result_bytes(execution, run_id):
    return (Store(execution.storage).run(run_id).folder.read("result.json"),)


class Stopped(BaseException):
    """As a kill would: nothing may catch it."""


def stop_after(monkeypatch, num_commits):
    """Ends the process's work right after a number of commits."""
    original, count = RunExecution.commit, 0

    def commit(self, step):
        nonlocal count
        original(self, step)
        count += 1
        if count == num_commits:
            raise Stopped

    monkeypatch.setattr(RunExecution, "commit", commit)


def strip_clock(records):
    """Leaves out what depends on the machine and the hour."""
    kept = [
        (
            r["step"],
            {
                k: v
                for k, v in r["metrics"].items()
                if "per_second" not in k and not k.startswith(SYSTEM)
            },
        )
        for r in records
    ]
    return json.loads(json.dumps(kept))


def test_the_machine_is_measured_beside_the_metrics(execution, setting, tmp_path, monkeypatch):
    """Under MLflow's names, and not in the result."""
    run = plan("baseline", setting).runs["all"]
    other = elsewhere(execution, tmp_path, "other")
    execute_run(run, {}, other)
    monkeypatch.setattr(process, "SYSTEM_EVERY_S", 0.0)
    execute_run(run, {}, execution)
    found = [r["metrics"] for r in Store(execution.storage).run(run.run_id).records()]
    for metrics in found:
        assert 0.0 <= metrics["system/cpu_utilization_percentage"] <= 100.0
        assert 0.0 < metrics["system/system_memory_usage_percentage"] < 100.0
        assert 10.0 < metrics["system/system_memory_usage_megabytes"] < 1e8
    assert len(found) == run.num_steps
    assert result_bytes(execution, run.run_id) == result_bytes(other, run.run_id)


def test_an_interrupted_run_ends_with_the_same_bytes(execution, setting, tmp_path, monkeypatch):
    """Its checkpoints have the losses of evaluations too."""
    run = plan("baseline", setting).runs["all"]
    straight = dataclasses.replace(elsewhere(execution, tmp_path, "other"), checkpoint_every_s=1e9)
    execute_run(run, {}, straight)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Stopped):
            execute_run(run, {}, execution)
    directory = Store(execution.storage).run(run.run_id)
    assert directory.status() in ("interrupted", "running")
    execute_run(run, {}, execution)
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    records, uninterrupted = directory.records(), Store(straight.storage).run(run.run_id).records()
    assert strip_clock(records) == strip_clock(uninterrupted)
    assert [r["step"] for r in records] == list(range(1, run.num_steps + 1))


def test_a_record_of_several_steps_has_those_before_a_kill(
    execution, setting, tmp_path, monkeypatch
):
    run, other = plan("baseline", setting).runs["all"], elsewhere(execution, tmp_path, "other")
    monkeypatch.setattr(node, "NUM_TRAIN_RECORDS", 1)
    assert MetricsSummary(run).interval == run.num_steps > 2
    execute_run(run, {}, other)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            execute_run(run, {}, execution)
    execute_run(run, {}, execution)
    assert result_bytes(execution, run.run_id) == result_bytes(other, run.run_id)


def test_the_seconds_of_evaluations_are_those_of_all_processes(execution, setting, monkeypatch):
    run, commit = plan("baseline", setting).runs["all"], RunExecution.commit

    def commit_after_long_evaluations(self, step):
        self.evaluation_s += 1000.0
        commit(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(RunExecution, "commit", commit_after_long_evaluations)
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            execute_run(run, {}, execution)
    execute_run(run, {}, execution)
    timing = Store(execution.storage).run(run.run_id).timing()
    assert timing["evaluation_s"] >= 1000.0


def test_a_finished_run_is_not_trained_again(execution, setting, monkeypatch):
    run = plan("gram", setting).runs["all"]
    first = execute_run(run, {}, execution)
    monkeypatch.setattr(RunExecution, "finish", lambda self: pytest.fail("trained again"))
    assert execute_run(run, {}, execution) == first


def test_corrupted_weights_of_a_runs_start_are_set_aside_and_made_again(
    execution, setting, tmp_path
):
    """Else each submission would find their run complete, and fail alike."""
    options = dataclasses.replace(
        setting.options, maxent=Unlearning(num_steps=2, peak_lr=5e-4, retain_weight=0.1)
    )
    runs = plan("maxent", dataclasses.replace(setting, options=options)).runs
    unlearning = next(run for run in runs.values() if run.start is not None)
    result = execute_run(runs["all"], {}, execution)
    (weights,) = tmp_path.rglob("weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    read_only = Store(execution.storage).run(unlearning.start.run_id)
    with pytest.warns(RuntimeWarning), pytest.raises(InvalidField):
        weights_of(read_only)
    assert read_only.status() == "complete", "a reader has changed nothing"
    with pytest.warns(RuntimeWarning), pytest.raises(InvalidField):
        execute_run(unlearning, {}, execution)
    assert read_only.status() == "interrupted"
    assert execute_run(runs["all"], {}, execution) == result
    assert execute_run(unlearning, {}, execution)["run_id"] == unlearning.run_id


def test_a_run_whose_lease_was_lost_has_not_failed_and_is_continued(
    execution, setting, monkeypatch
):
    run = plan("baseline", setting).runs["all"]
    monkeypatch.setattr("gram_platform.store.leases.SHORTEST_LEASE_S", 0.0)
    with pytest.raises(LeaseHeld):
        execute_run(run, {}, dataclasses.replace(execution, lease_s=0.0))
    directory = Store(execution.storage).run(run.run_id)
    assert (directory.status(), directory.failure()) == ("interrupted", None)
    execute_run(run, {}, execution)
    assert directory.status() == "complete"


def test_the_baselines_curve_ends_with_what_its_evaluation_finds(execution, setting):
    run_node, eval_node = method_nodes("baseline", setting)
    result = execute_run(run_node.config, {}, execution)
    losses = execute_evaluation(eval_node.config, {}, execution)["losses"]
    assert losses == {d: result["final"][f"validation/loss/{d}"] for d in losses}
    curve = [
        r["step"]
        for r in Store(execution.storage).run(run_node.id).records()
        if "validation/loss/core" in r["metrics"]
    ]
    assert curve == sorted(evaluation_steps(run_node.config))
    assert curve[-1] == run_node.config.num_steps
    assert MetricsSummary(run_node.config).interval == 1


def test_views_differ_where_their_modules_act(execution, setting):
    run = plan("gram", setting).runs["all"]
    execute_run(run, {}, execution)
    store, domain = Store(execution.storage), setting.auxiliary[0]
    _, core = load_view(store, View(run.run_id))
    _, full = load_view(store, View.of(run.run_id, {domain: 1.0}))
    _, half = load_view(store, View.of(run.run_id, {domain: 0.5}))
    # Absent, not switched off.
    assert not any(".aux." in name for name, _ in core.named_parameters())
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        without, present = core(tokens), full(tokens, {domain: 1.0})
        assert torch.equal(full(tokens), without)
        assert torch.equal(half(tokens, {domain: 1.0}), present)
        assert not torch.equal(present, without)
        assert not torch.equal(half(tokens, {domain: 0.5}), present)
    with pytest.raises(InvalidField) as caught:
        load_view(store, View.of(run.run_id, {"nope": 1.0}))
    assert (caught.value.field, caught.value.value) == ("view.weights", "nope")


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_diverged_run_is_recorded(execution, setting, num_steps):
    """Also one whose last step left weights without finite losses: it is not an error of the
    platform.
    """
    run = plan("baseline", setting).runs["all"]
    batch_size = run.num_steps * run.batch_size // num_steps
    optimizer = dataclasses.replace(run.optimizer, peak_lr=1e30)
    points = dataclasses.replace(run.eval_points, num_points=num_steps)
    wild = dataclasses.replace(run, optimizer=optimizer, batch_size=batch_size, eval_points=points)
    assert wild.num_steps == num_steps
    with pytest.raises(TrainingDiverged):
        execute_run(wild, {}, execution)
    directory = Store(execution.storage).run(wild.run_id)
    assert directory.status() == "failed"
    assert directory.failure()["details"]["kind"] == "diverged"


def test_other_data_under_the_same_id_is_refused(execution, setting, monkeypatch):
    run = plan("baseline", setting).runs["all"]
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            execute_run(run, {}, execution)
    identity = RunExecution.identity.fget
    other = property(lambda self: {**identity(self), "data_fingerprint": "other"})
    monkeypatch.setattr(RunExecution, "identity", other)
    with pytest.raises(InvalidField) as caught:
        execute_run(run, {}, execution)
    assert caught.value.field == "data"
    monkeypatch.undo()
    assert execute_run(run, {}, execution)["num_steps"] == run.num_steps


def test_too_few_validation_sequences(execution, setting):
    run = plan("baseline", dataclasses.replace(setting, num_eval_sequences=10**6)).runs["all"]
    with pytest.raises(InvalidField) as caught:
        execute_run(run, {}, execution)
    assert caught.value.value == 10**6


def test_evaluation_of_a_view_without_result(execution, setting):
    run = plan("baseline", setting).runs["all"]
    Store(execution.storage).open_for_writing().run(run.run_id).ensure_config(run)
    evaluation = Evaluation(View(run.run_id), setting.data_id, ("core",), 4)
    with pytest.raises(InvalidField):
        execute_evaluation(evaluation, {}, execution)


def test_norms_of_sets_are_recorded_beside_the_result(run, undisturbed):
    execution, records = undisturbed
    directory = Store(execution.storage).run(run.run_id)
    records = [record["metrics"] for record in records if "train/loss" in record["metrics"]]
    sets = ["shared", "core_mlp", *(f"module:{domain}" for domain in run.model.module_domains)]
    assert all(metrics[f"norm/weights/{name}"] > 0 for metrics in records for name in sets)
    trained = {name for metrics in records for name in metrics if name.startswith("norm/gradient/")}
    assert "norm/gradient/shared" in trained <= {f"norm/gradient/{name}" for name in sets}
    assert not any("norm/" in name for name in directory.result()["final"])
    timing = directory.timing()
    assert (timing["device"], timing["num_ranks"], timing["num_threads"]) == (
        "cpu",
        1,
        execution.num_threads,
    )
    assert timing["attention"] == ON_CPU
    assert 10e6 < timing["peak_memory_bytes"] < 10e9


def test_deterministic_algorithms_change_no_byte_on_a_cpu(execution, undisturbed, run):
    straight, _ = undisturbed
    execute_run(run, {}, dataclasses.replace(execution, deterministic=True, checkpoint_every_s=1e9))
    assert torch.are_deterministic_algorithms_enabled()
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    assert Store(execution.storage).run(run.run_id).timing()["deterministic"]
    set_up_torch(execution)
    assert not torch.are_deterministic_algorithms_enabled()


def test_passes_of_several_micro_batches_are_the_planners(execution, undisturbed, run):
    """On a machine with a GPU's memory. The losses are those of one each, up to rounding."""
    straight, _ = undisturbed
    node, ranks = Node.of(run, {"size": "tiny"}), Ranks(machine=MACHINES["h100"])
    divided = [placement_of(node, ranks, device).fewest for device in ("cuda", "cpu")]
    assert [(one.num_passes, one.num_merged) for one in divided] == [
        (1, run.micro_batches_per_step),
        (1, 1),
    ]
    merging = dataclasses.replace(
        execution, placement=Placement((divided[0],)), checkpoint_every_s=1e9
    )
    result = execute_run(run, {}, merging)
    expected = Store(straight.storage).run(run.run_id).result()["final"]
    assert result["final"] == pytest.approx(expected, abs=1e-3)
    assert (
        Store(execution.storage).run(run.run_id).timing()["num_merged"]
        == run.micro_batches_per_step
        > 1
    )


@pytest.mark.slow
def test_a_compiled_run_counts_its_graphs(execution, setting, capsys, monkeypatch):
    """As many graphs in a process that has compiled another run before: each run starts from
    none."""
    monkeypatch.setattr(learner, "Compilation", functools.partial(Compilation, "eager"))
    run = plan("gram", setting).runs["all"]
    compiled = dataclasses.replace(
        execution, placement=Placement(compiled=True), checkpoint_every_s=1e9
    )
    counts = []
    for seed in (0, 1):
        again = dataclasses.replace(run, seed=seed)
        execute_run(again, {}, compiled)
        timing = Store(execution.storage).run(again.run_id).timing()
        assert (
            f"run {again.run_id}: {timing['num_graphs']} compiled graphs" in capsys.readouterr().out
        )
        counts.append(timing["num_graphs"])
    assert min(counts) >= 2
    assert counts[0] == counts[1]
    torch._dynamo.reset()


def test_a_run_that_cannot_be_compiled_says_so(execution, undisturbed, run, monkeypatch):
    """It has the bytes of one that was not to be compiled, and its timing does not call it
    compiled.
    """
    straight, _ = undisturbed
    monkeypatch.setattr(learner, "Compilation", functools.partial(Compilation, "no_such_backend"))
    with pytest.warns(RuntimeWarning):
        execute_run(
            run,
            {},
            dataclasses.replace(
                execution, placement=Placement(compiled=True), checkpoint_every_s=1e9
            ),
        )
    assert result_bytes(execution, run.run_id) == result_bytes(straight, run.run_id)
    timing = Store(execution.storage).run(run.run_id).timing()
    assert timing["compiled"] is False
    assert "num_graphs" not in timing


def test_maxent_stops_once_it_has_unlearnt_enough(execution, setting, tmp_path, monkeypatch):
    """The run ends after the first step whose ME is at most the bound, from a checkpoint too, and
    counts its steps.
    """
    options = dataclasses.replace(
        setting.options, maxent=Unlearning(num_steps=30, peak_lr=5e-4, retain_weight=0.1)
    )
    cell = dataclasses.replace(setting, options=options)
    runs = plan("maxent", cell).runs
    execute_run(runs["all"], {}, execution)
    unlearning = next(run for run in runs.values() if run.objective.forget)
    with starting_point(unlearning, execution) as start:
        learner = new_learner(Learner, unlearning, execution, start)
    corpus = execution.corpus(unlearning.data.data_id)
    plan_of_run = Schedule(unlearning)
    reader = ScheduleReader(unlearning, {d: corpus.train(d) for d in corpus.domains})
    course = [record.forgetting for record in training_steps(learner, plan_of_run, reader)]
    # A new lowest.
    expected = next(step for step in range(5, 30) if course[step - 1] < min(course[: step - 1]))
    bound = course[expected - 1]
    stopping = dataclasses.replace(
        unlearning, objective=dataclasses.replace(unlearning.objective, stop_below=bound)
    )
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            execute_run(stopping, {}, execution)
    result = execute_run(stopping, {}, execution)
    assert result["num_steps"] == expected < 30
    assert result["compute_units"] == plan_compute_units(stopping, expected)
    assert result["num_tokens"] == expected * stopping.batch_size * stopping.model.seq_len


def test_probes_add_their_own_records_and_change_nothing_else(execution, setting, monkeypatch):
    """Interrupted and continued, with the losses, weights and final numbers of the run without
    probes.
    """
    half = dataclasses.replace(setting, options=Options(unlabelled_share=0.5, probes=True))
    run = plan("gram", half).runs["all"]
    assert run.eval_points.num_probes == setting.num_eval_points
    plain = dataclasses.replace(run, eval_points=dataclasses.replace(run.eval_points, num_probes=0))
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(Stopped):
            execute_run(run, {}, execution)
    result, expected = execute_run(run, {}, execution), execute_run(plain, {}, execution)
    differ = {name for name in expected if result[name] != expected[name]}
    assert differ == {"run_id", "sha256"}
    found, plain_records = (
        Store(execution.storage).run(each.run_id).records() for each in (run, plain)
    )
    others = [
        {**r, "metrics": {n: v for n, v in r["metrics"].items() if not n.startswith(PROBE)}}
        for r in found
    ]
    assert strip_clock(others) == strip_clock(plain_records)
    probes = {
        r["step"]: {n: v for n, v in r["metrics"].items() if n.startswith(PROBE)} for r in found
    }
    names = {f"{PROBE}{domain}/{module}" for domain in half.domains for module in half.auxiliary}
    assert {step for step, metrics in probes.items() if metrics} == probe_steps(run)
    assert all(set(metrics) in (set(), names) for metrics in probes.values())
    assert all(value > 0.0 for metrics in probes.values() for value in metrics.values())
