"""A micro-batch in several passes, and several in one: the gradient of one pass each, up to
rounding."""

import pytest

from gram_platform.config import ModuleSpec, Objective, RoutingConfig, View
from gram_platform.config.routing import Schedule
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner, probed_norms
from gram_platform.train.loop import training_steps
from tests import tiny

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
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}


def train(config, num_passes, num_merged=1):
    learner = Learner(config, num_passes=num_passes, num_merged=num_merged)
    steps = training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays()))
    return learner, list(steps)


IN_PARTS = [(name, 4, 1) for name in RUNS]
# Passes of RMU are not merged: see `merged_within`.
MERGED = [("gram", 1, 2), *((name, 1, 4) for name in RUNS if name != "rmu")]


@pytest.mark.parametrize(("name", "num_passes", "num_merged"), [*IN_PARTS, *MERGED])
def test_passes_train_like_one(name, num_passes, num_merged):
    config = tiny.run_config(**{**SIZES, **RUNS[name]})
    (one, records), (many, in_parts) = train(config, 1), train(config, num_passes, num_merged)
    assert len(records) == 20
    tolerance = TOLERANCES[config.precision]
    for whole, parts in zip(records, in_parts, strict=True):
        assert parts.losses == pytest.approx(whole.losses, abs=tolerance)
        assert parts.forgetting == pytest.approx(whole.forgetting, abs=tolerance)
    weights, expected = many.weights(), one.weights()
    assert max((weights[n] - expected[n]).abs().max().item() for n in expected) < tolerance
    if config.model.modules:
        rows = tiny.arrays(seed=1)["lisp"]
        assert probed_norms(many, rows) == pytest.approx(
            probed_norms(one, rows), rel=100 * tolerance
        )


@pytest.mark.parametrize(("num_merged", "expected"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_merged_micro_batches_cost_fewer_passes(num_merged, expected):
    config = tiny.run_config(modular=False, routing=RoutingConfig(), **SIZES)
    learner, calls = Learner(config, num_merged=num_merged), []
    learner.model.register_forward_hook(lambda *_: calls.append(1))
    next(training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays())))
    assert len(calls) == expected
