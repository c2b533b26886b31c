"""What gradient routing promises, on real training steps."""

import dataclasses
import math

import pytest
import torch

from gram_platform.config import DataConfig, DomainBudget, RoutingConfig
from gram_platform.config.routing import CORE_MLP, SHARED, Schedule, module_set
from gram_platform.model.transformer import parameter_set
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import TrainingDiverged, training_steps
from gram_platform.train.objectives import cross_entropy
from tests import tiny
from tests.refused import refused


def train(config, learner=None, first_step=0, stop=None):
    learner = learner or Learner(config)
    plan = Schedule(config)
    records = []
    for record in training_steps(learner, plan, ScheduleReader(config, tiny.arrays()), first_step):
        records.append(record)
        if record.step == stop:
            break
    return learner, records


def equal_states(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def belongs_to(name: str, sets: set[str]) -> bool:
    if name.startswith("optim."):
        return name.removeprefix("optim.").split(".")[0] in sets
    return parameter_set(name.removeprefix("model.")) in sets


FROZEN_CORE = {"draws": (8, 88, 0), "routing": RoutingConfig(0.0, 0.0)}


@pytest.mark.parametrize("parts", [{}, {"precision": "bfloat16"}, FROZEN_CORE])
def test_untouched_set_and_its_optimizer_state_stay_bit_identical(parts):
    config = tiny.run_config(**parts)
    learner, plan = Learner(config), Schedule(config)
    before, left_alone = tiny.full_state(learner), set()
    for record in training_steps(learner, plan, ScheduleReader(config, tiny.arrays())):
        touched = set().union(*(m.route.trained for m in plan.window(record.step - 1)))
        after = tiny.full_state(learner)
        untouched = {SHARED, CORE_MLP, module_set("lisp"), module_set("virology")} - touched
        left_alone |= untouched
        keep = [n for n in after if belongs_to(n, untouched)]
        assert all(n in before and torch.equal(before[n], after[n]) for n in keep)
        assert not any(
            torch.equal(before[n], after[n])
            for n in after
            if belongs_to(n, touched) and n in before
        )
        before = after
    assert {SHARED, CORE_MLP} <= left_alone if parts == FROZEN_CORE else left_alone


def test_gram_without_modules_is_the_baseline_bit_for_bit():
    routed = tiny.run_config(modular=False, routing=RoutingConfig(0.5, 0.3))
    plain = dataclasses.replace(routed, routing=RoutingConfig())
    assert equal_states(tiny.full_state(train(routed)[0]), tiny.full_state(train(plain)[0]))


def test_adding_a_module_changes_no_other_initial_weight():
    dense, modular = (
        Learner(tiny.run_config(modular=False)).weights(),
        Learner(tiny.run_config()).weights(),
    )
    assert all(torch.equal(dense[name], modular[name]) for name in dense)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_micro_batches_of_one_route_equal_one_batch(precision):
    """Relative difference of the summed gradient below 1e-5 in float32; bfloat16 rounds each
    micro-batch: 2e-2."""
    config = tiny.run_config(draws=(96, 0, 0), routing=RoutingConfig(), precision=precision)
    small, big = Learner(config), Learner(config)
    tokens = torch.from_numpy(tiny.arrays()["core"][:8].astype("int64"))
    trained = frozenset({SHARED, CORE_MLP})
    for learner, pieces in ((small, tokens.split(2)), (big, [tokens])):
        learner.train_only(trained)
        for index, piece in enumerate(pieces):
            loss = cross_entropy(learner.forward(piece[:, :-1], {}), piece[:, 1:])
            learner.backward(loss / len(pieces), index == len(pieces) - 1)
    gradients = [
        torch.cat([p.grad.flatten() for s in trained for p in learner.master_sets[s].values()])
        for learner in (small, big)
    ]
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < (1e-5 if precision == "float32" else 2e-2)


def test_no_core_batch_leaves_a_gradient_in_a_module_it_did_not_activate():
    config = tiny.run_config(draws=(96, 0, 0), routing=RoutingConfig(0.5, 0.3))
    learner, plan = Learner(config), Schedule(config)
    reader = ScheduleReader(config, tiny.arrays())
    seen = set()
    for index in range(len(plan)):
        micro_batch = plan[index]
        tokens = reader.tokens(micro_batch)
        learner.train_only(micro_batch.route.trained)
        active = dict(micro_batch.route.active)
        loss = cross_entropy(learner.forward(tokens[:, :-1], active), tokens[:, 1:])
        learner.backward(loss, True)
        for domain in tiny.DOMAINS[1:]:
            has_gradient = [
                p.grad is not None for p in learner.master_sets[module_set(domain)].values()
            ]
            assert all(has_gradient) if domain in active else not any(has_gradient)
        for optimizer in learner.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        seen.add(tuple(active))
    assert seen == {(), ("lisp",), ("virology",)}


def test_a_module_that_no_batch_activates_is_not_read():
    """It may hold NaN: the losses of batches of core and of another domain are the same."""
    config = tiny.run_config(draws=(48, 48, 0), routing=RoutingConfig(0.0, 0.3))
    plain, poisoned = Learner(config), Learner(config)
    with torch.no_grad():
        for parameter in poisoned.master_sets[module_set("virology")].values():
            parameter.fill_(math.nan)
    of_each = [
        [record.losses for record in train(config, learner)[1]] for learner in (plain, poisoned)
    ]
    assert of_each[0] == of_each[1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_stop_and_resume_is_bit_exact(precision):
    config = tiny.run_config(precision=precision)
    whole, all_records = train(config)
    half, first = train(config, stop=5)
    resumed = Learner(config)
    resumed.load_state(tiny.full_state(half))
    resumed, second = train(config, resumed, first_step=5)
    assert equal_states(tiny.full_state(whole), tiny.full_state(resumed))
    assert first + second == all_records


def test_training_learns_and_repeats():
    config = tiny.run_config(draws=(640, 160, 160), precision="float32")
    (one, records), (two, again) = train(config), train(config)
    assert records == again
    assert equal_states(tiny.full_state(one), tiny.full_state(two))
    mean = lambda part: sum(sum(r.losses) for r in part) / sum(len(r.losses) for r in part)
    assert mean(records[-5:]) < 0.8 * mean(records[:5])


def test_bfloat16_follows_float32():
    config = tiny.run_config(draws=(640, 160, 160))
    low = dataclasses.replace(config, precision="bfloat16")
    final = [sum(train(c)[1][-1].losses) / 4 for c in (config, low)]
    assert final[0] == pytest.approx(final[1], rel=0.05)


def test_a_loss_that_is_not_a_number_ends_the_run():
    config = tiny.run_config()
    learner = Learner(config)
    with torch.no_grad():
        learner.master_sets[SHARED]["lm_head.weight"][0, 0] = float("nan")
    with pytest.raises(TrainingDiverged):
        train(config, learner)


def test_an_infinite_gradient_of_a_finite_loss_changes_no_weight():
    """Logits of 1e26 have finite losses; the squares of the gradients behind them exceed
    float32."""
    config = tiny.run_config()
    learner = Learner(config)
    with torch.no_grad():
        learner.master_sets[SHARED]["lm_head.weight"].mul_(1e28)
    before = {name: value.clone() for name, value in learner.weights().items()}
    with pytest.raises(TrainingDiverged):
        train(config, learner)
    assert equal_states(learner.weights(), before)


def test_too_large_a_pool_is_refused_by_name():
    config = tiny.run_config(draws=(64, 0, 0))
    data = DataConfig("tiny", (DomainBudget("core", 1000, 64),))
    config = dataclasses.replace(config, data=data)
    with refused("data.domains[core].num_sequences", 1000):
        ScheduleReader(config, tiny.arrays())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_measuring_norms_changes_nothing(precision):
    config = tiny.run_config(precision=precision)
    plan, learner = Schedule(config), Learner(config)
    steps = training_steps(learner, plan, ScheduleReader(config, tiny.arrays()), norms_every=5)
    measured = []
    for record in steps:
        weights = {
            s: [p.detach().double().flatten() for p in n.values()]
            for s, n in learner.master_sets.items()
        }
        for name, parts in weights.items() if record.norms else ():
            assert record.norms[f"weights/{name}"] == pytest.approx(
                float(torch.cat(parts).norm()), rel=1e-5
            )
        gradients = [value for name, value in record.norms.items() if name.startswith("gradient/")]
        assert not gradients or record.grad_norm == pytest.approx(
            sum(g * g for g in gradients) ** 0.5, rel=1e-4
        )
        trained = set().union(*(m.route.trained for m in plan.window(record.step - 1)))
        assert {n.removeprefix("gradient/") for n in record.norms if n.startswith("gradient/")} in (
            set(),
            trained,
        )
        measured += [record.step] if record.norms else []
    assert measured == sorted({*range(5, config.num_steps + 1, 5), config.num_steps})
    plain, records = train(config)
    assert equal_states(tiny.full_state(plain), tiny.full_state(learner))
    assert all(record.norms == {} for record in records)
