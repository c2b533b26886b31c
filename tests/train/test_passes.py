"""A micro-batch in several passes, and several in one: the gradient of one pass each, up to
rounding."""

import dataclasses
import itertools

import pytest
import torch

from gram_platform.config import ModuleSpec, Objective, RoutingConfig, View
from gram_platform.config.routing import Schedule
from gram_platform.config.training import LLAMA
from gram_platform.model.transformer import is_trained
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner, probe_norms
from gram_platform.train.loop import _accumulate_gradients, training_steps
from tests import tiny
from tests.train.test_sharding import method_configs

LORAS = tuple(ModuleSpec(d, "lora", 2) for d in tiny.DOMAINS[1:])
STEERED = Objective("misdirection", ("lisp", "virology"), steered_layers=1, steering=2.0)
SIZES = {"micro_batch": 4, "batch_size": 16, "draws": (160, 80, 80)}  # 20 steps
RUNS = {
    "gram": {},
    "gram in bfloat16": {"precision": "bfloat16"},
    "loras": {"model": tiny.ModelConfig(2, 16, 4, 2, 32, tiny.VOCAB, tiny.SEQ_LEN, LORAS)},
    "maxent": {
        "modular": False,
        "routing": RoutingConfig(),
        "objective": Objective("maxent_kl", ("lisp", "virology")),
    },
    "rmu": {
        "modular": False,
        "routing": RoutingConfig(),
        "objective": STEERED,
        "start": View.of("start"),
    },
}
RUNS["undo"] = {
    **RUNS["rmu"],
    "objective": Objective("distillation", noise=0.5, noise_scale=0.1),
}
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}


def train(config, num_passes, num_merged=1):
    learner = Learner(config, num_passes=num_passes, num_merged=num_merged)
    steps = training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays()))
    return learner, list(steps)


@pytest.mark.parametrize("name", RUNS)
def test_parts_of_micro_batches_train_like_one_pass(name):
    config = tiny.run_config(**{**SIZES, **RUNS[name]})
    (one, records), (many, in_parts) = train(config, 1), train(config, 4)
    assert len(records) == 20
    tolerance = TOLERANCES[config.precision]
    for whole, parts in zip(records, in_parts, strict=True):
        assert parts.losses == pytest.approx(whole.losses, abs=tolerance)
        assert parts.forgetting == pytest.approx(whole.forgetting, abs=tolerance)
    weights, expected = many.weights(), one.weights()
    assert max((weights[n] - expected[n]).abs().max().item() for n in expected) < tolerance
    if config.model.modules:
        rows = tiny.arrays(seed=1)["lisp"]
        assert probe_norms(many, rows) == pytest.approx(probe_norms(one, rows), rel=100 * tolerance)


def mixed_configs() -> dict:
    """Runs of every method; passes of RMU are not merged: see `choose_num_merged`."""
    subsets = RoutingConfig(0.5, 0.3, companions="subset", p_aux_companion=0.5)
    lora = dataclasses.replace(
        tiny.model_config(), modules=tuple(ModuleSpec(d, "lora", 2) for d in tiny.DOMAINS[1:])
    )
    methods = method_configs()
    del methods["rmu"]
    masked = dataclasses.replace(tiny.model_config(), document_end=0)
    return {
        **methods,
        "subsets": tiny.run_config(routing=subsets, **SIZES),
        "subsets, Llama's LoRAs": tiny.run_config(
            routing=subsets, model=dataclasses.replace(lora, architecture=LLAMA), **SIZES
        ),
        "documents": tiny.run_config(model=masked, **SIZES),
        "uniform": tiny.run_config(routing=RoutingConfig(0.5, 0.3, "uniform"), **SIZES),
        "core alone": tiny.run_config(**{**SIZES, "draws": (160, 0, 0)}),
    }


# Of a parameter's gradient. In bfloat16 each of several passes rounds it.
ROUNDING = {"float32": 1e-5, "bfloat16": 0.1}


@pytest.mark.parametrize(("num_merged", "checkpointing"), [(4, False), (3, True)])
@pytest.mark.parametrize("name", mixed_configs())
def test_mixed_passes_have_the_gradients_of_one_each(name, num_merged, checkpointing):
    """And none for parameters that no micro-batch of the window trains."""
    config = mixed_configs()[name]
    schedule, reader = Schedule(config), ScheduleReader(config, tiny.arrays())
    for step in range(config.num_steps):
        window, found = schedule.window(step), []
        for arguments in (
            {},
            {"num_merged": num_merged, "activation_checkpointing": checkpointing},
        ):
            learner = Learner(config, **arguments)
            losses = _accumulate_gradients(learner, window, reader)
            found.append((losses, {n: p.grad for n, p in learner.masters.items()}))
        (losses, gradients), (mixed_losses, mixed) = found
        for one, other in zip(losses, mixed_losses, strict=True):
            assert other == pytest.approx(one, abs=TOLERANCES[config.precision])
        trained = frozenset().union(*(m.route.trained for m in window))
        assert {n for n in mixed if mixed[n] is not None} == {
            n for n in mixed if is_trained(config.model, n, trained)
        }
        largest = max(gradients[n].norm() for n in gradients if gradients[n] is not None)
        for n, gradient in gradients.items():
            if gradient is not None:
                error = (mixed[n] - gradient).norm() / (gradient.norm() + 1e-3 * largest)
                assert error < ROUNDING[config.precision], (step, n)


def test_a_run_of_mixed_passes_resumes_bit_for_bit():
    config = tiny.run_config(**SIZES)
    straight, records = train(config, 1, 3)
    first, second = Learner(config, num_merged=3), Learner(config, num_merged=3)
    arguments = Schedule(config), ScheduleReader(config, tiny.arrays())
    stopped = list(itertools.islice(training_steps(first, *arguments), 10))
    second.load_state(first.pieces())
    assert stopped + list(training_steps(second, *arguments, 10)) == records
    expected = tiny.full_state(straight)
    assert all(torch.equal(rows, expected[n]) for n, rows in tiny.full_state(second).items())


@pytest.mark.parametrize(("num_merged", "expected"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_merged_micro_batches_cost_fewer_passes(num_merged, expected):
    config = tiny.run_config(**SIZES)
    learner, calls = Learner(config, num_merged=num_merged), []
    learner.model.register_forward_hook(lambda *_: calls.append(1))
    next(training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays())))
    assert len(calls) == expected
