"""The routes of LoRA, branches, DEMix, partial labels and MaxEnt, on real steps."""

import dataclasses

import pytest
import torch

from gram_platform.config import (
    UNLABELLED,
    DataConfig,
    DomainBudget,
    ModuleSpec,
    Objective,
    RoutingConfig,
    Slice,
)
from gram_platform.config.routing import CORE_MLP, SHARED, Schedule, module_set
from gram_platform.model.transformer import parameter_set
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from tests import tiny
from tests.refused import refused
from tests.train.test_invariants import train


def changed_sets(before, after):
    return {parameter_set(n) for n in after if not torch.equal(before[n], after[n])}


@pytest.mark.parametrize(("kind", "width"), [("lora", 2), ("mlp", 8)])
def test_a_branch_leaves_its_frozen_base_bit_identical(kind, width):
    base = Learner(tiny.run_config(modular=False)).weights()
    model = dataclasses.replace(
        tiny.model_config(False), modules=(ModuleSpec("lisp", kind, width),)
    )
    routing = RoutingConfig(1.0, 0.0, freeze_core=True)
    config = tiny.run_config(draws=(64, 32, 0), model=model, routing=routing, seed=1)
    learner = Learner(config, start=base)
    before = learner.weights()
    assert all(torch.equal(before[n], base[n]) for n in base)
    before = {n: w.clone() for n, w in before.items()}
    learner, _ = train(config, learner)
    after = learner.weights()
    assert changed_sets(before, after) == {module_set("lisp")}
    assert not any(
        key.startswith(("optim.shared", "optim.core_mlp")) for key in tiny.full_state(learner)
    )


def test_freezing_what_nothing_replaces_is_refused():
    with refused("routing.freeze_core", True):
        tiny.run_config(routing=RoutingConfig(0.5, 0.3, freeze_core=True))


def test_a_start_must_fit():
    base = Learner(tiny.run_config(modular=False)).weights()
    with refused("start", ["stray"]):
        Learner(tiny.run_config(modular=False), start={**base, "stray": torch.zeros(1)})
    wide = tiny.run_config(model=tiny.model_config(False, d_mlp=40))
    with refused("start"):
        Learner(wide, start=base)
    del base["ln_f.weight"]
    with refused("start", "nothing"):
        Learner(tiny.run_config(modular=False), start=base)


def test_demix_trains_exactly_one_expert_a_batch():
    modules = tuple(ModuleSpec(d, "mlp", 8) for d in tiny.DOMAINS)
    model = dataclasses.replace(tiny.model_config(False), d_mlp=0, modules=modules)
    config = tiny.run_config(model=model, routing=RoutingConfig(), batch_size=2)
    learner, plan = Learner(config), Schedule(config)
    before = {n: w.clone() for n, w in learner.weights().items()}
    for record in training_steps(learner, plan, ScheduleReader(config, tiny.arrays())):
        after = learner.weights()
        assert changed_sets(before, after) == {SHARED, module_set(record.domains[0])}
        before = {n: w.clone() for n, w in after.items()}


def unlabelled_config(modular: bool = True):
    pool = tuple(Slice(d, 30, 4) for d in tiny.DOMAINS)
    budgets = (DomainBudget("core", 24, 12), DomainBudget(UNLABELLED, 12, 12, pool))
    return tiny.run_config(modular, data=DataConfig("tiny", budgets), batch_size=4, micro_batch=4)


def test_unlabelled_batches_pool_all_domains_and_train_every_set():
    config = unlabelled_config()
    learner, plan = Learner(config), Schedule(config)
    reader = ScheduleReader(config, tiny.arrays())
    rows = [
        row
        for t in range(len(plan))
        if plan[t].domain == UNLABELLED
        for row in reader.rows(plan[t]).tolist()
    ]
    assert len({tuple(row) for row in rows}) == 12
    assert {row[0] for row in rows} == {0, 1, 2}
    assert any(len({row[0] for row in rows[i : i + 4]}) > 1 for i in (0, 4, 8)), (
        "a batch must not leak its label"
    )
    before = {n: w.clone() for n, w in learner.weights().items()}
    everything = {SHARED, CORE_MLP, module_set("lisp"), module_set("virology")}
    for record in training_steps(learner, plan, reader):
        after = learner.weights()
        if record.domains[0] == UNLABELLED:
            assert changed_sets(before, after) == everything
        before = {n: w.clone() for n, w in after.items()}


def test_maxent_windows_are_half_forget_half_retain():
    objective = Objective("maxent_kl", ("lisp", "virology"), 100.0)
    config = tiny.run_config(False, draws=(48, 24, 24), objective=objective)
    plan = Schedule(config)
    for step in range(config.num_steps):
        domains = [m.domain in objective.forget for m in plan.window(step)]
        assert sum(domains) == 2
        assert len(domains) == 4
    with refused("objective.forget", 40):
        tiny.run_config(False, draws=(56, 24, 16), objective=objective)


def test_maxent_raises_the_forgotten_entropy():
    pretrained, _ = train(tiny.run_config(False, draws=(640, 160, 160)))
    objective = Objective("maxent_kl", ("lisp",), 1.0)
    config = tiny.run_config(False, draws=(160, 160, 0), objective=objective)
    learner, records = train(config, Learner(config, start=pretrained.weights()))

    def loss_of(weights, domain):
        model = Learner(config, start=weights)
        tokens = torch.from_numpy(tiny.arrays()[domain].astype("int64"))
        with torch.no_grad():
            logits = model.forward(tokens[:, :-1], {})
        return float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        )

    assert loss_of(learner.weights(), "lisp") > loss_of(pretrained.weights(), "lisp") + 0.5
    assert loss_of(learner.weights(), "core") < loss_of(pretrained.weights(), "core") + 0.2
    assert all(torch.isfinite(torch.tensor(r.losses)).all() for r in records)
