"""SGTM's steps beside a reference from its description: one dense transformer with masks."""

import dataclasses

import pytest
import torch

from gram_platform.config import CORE, ModuleSpec, RoutingConfig
from gram_platform.config.routing import Schedule
from gram_platform.config.training import RESERVED_UNITS, merge_config
from gram_platform.model.transformer import build
from gram_platform.train.data import ScheduleReader
from gram_platform.train.evaluate import profile_losses
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import cross_entropy
from gram_platform.train.optimizers import learning_rate
from tests import tiny
from tests.refused import refused
from tests.train.test_invariants import equal_states, train

# The reserved ones of 32 hidden units. The dense model has four heads of the core, and two of each
# part, of which only the first is reserved; then the keys, and the values, of two and one and one.
PARTS = {"lisp": slice(20, 26), "virology": slice(26, 32)}
ALL_ON = dict.fromkeys(PARTS, 1.0)
WINDOW = {"micro_batch": 4, "batch_size": 8}
DEFAULT, RETAIN = "default", "retain"


def routing(**parts) -> RoutingConfig:
    settings = {"companions": "all", "p_aux_companion": 1.0, "spreads_embeddings": True}
    return RoutingConfig(0.5, 0.0, "uniform", **{**settings, **parts})


def sgtm(precision="float32", heads=1, **parts):
    modules = tuple(ModuleSpec(d, RESERVED_UNITS, 6, heads) for d in PARTS)
    model = dataclasses.replace(tiny.model_config(False, d_mlp=20), modules=modules)
    return tiny.run_config(model=model, routing=routing(**parts), precision=precision, **WINDOW)


def kind_of(micro_batch) -> str:
    if micro_batch.domain != CORE:
        return micro_batch.domain
    return DEFAULT if micro_batch.route.active else RETAIN


def moving(name: str, weight: torch.Tensor, kind: str, masks_embeddings: bool) -> torch.Tensor:
    """Says which elements a batch of a kind moves: bool of the weight's shape."""
    moves = torch.full(weight.shape, kind in (DEFAULT, RETAIN))
    if kind in PARTS and not masks_embeddings and ("wte" in name or "ln_" in name):
        moves[:] = True
    of_units = moves.T if name.endswith(("c_proj.weight", "o_proj.weight")) else moves
    for number, (domain, units) in enumerate(PARTS.items()):
        is_forgotten = kind == domain and name.endswith("weight")
        if ".mlp.c_fc." in name or name.endswith("c_proj.weight"):
            of_units[units] = kind == DEFAULT or is_forgotten
        elif ".attn." in name and len(of_units) > 16 + 16 * name.endswith("qkv_proj.weight"):
            of_heads = of_units.view(-1, 4, of_units.shape[1])
            reserved = [4 + 2 * number, 10 + number, 14 + number]
            of_heads[reserved if "qkv" in name else reserved[:1]] = kind == DEFAULT or is_forgotten
            of_heads[5 + 2 * number] = False
    return moves


class Reference:
    """Trains all weights of a dense model; AdamW steps only the elements that a batch moves."""

    def __init__(self, config, weights):
        self.config = config
        self.model = build(merge_config(config.model, ALL_ON), weights.items())
        zeros = lambda: {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        self.first, self.second, self.num_steps = zeros(), zeros(), zeros()
        self.is_masked = False
        for block in self.model.blocks:
            block.mlp.c_proj.register_forward_pre_hook(self.without_the_last(12))
            block.attn.o_proj.register_forward_pre_hook(self.without_the_last(16))

    def without_the_last(self, number):
        def mask(module, inputs):
            hidden_BTF = inputs[0].clone()
            if self.is_masked and module.in_features > 16:
                hidden_BTF[..., -number:] = 0.0
            return (hidden_BTF, *inputs[1:])

        return mask

    def step(self, tokens_BT, kind, rate, masks_embeddings):
        self.is_masked = kind == RETAIN
        cross_entropy(self.model(tokens_BT[:, :-1]), tokens_BT[:, 1:]).backward()
        parameters = dict(self.model.named_parameters())
        moves = {n: moving(n, p, kind, masks_embeddings) for n, p in parameters.items()}
        grads = {n: p.grad * moves[n] for n, p in parameters.items()}
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads.values()]))
        options = self.config.optimizer
        for name, weight in parameters.items():
            grad = grads[name] * min(1.0, options.clip_norm / (norm + 1e-6))
            m, v, steps = self.first[name], self.second[name], self.num_steps[name]
            steps += moves[name]
            m += moves[name] * (1 - options.beta1) * (grad - m)
            v += moves[name] * (1 - options.beta2) * (grad**2 - v)
            size = m / (1 - options.beta1**steps)
            size /= (v / (1 - options.beta2**steps)).sqrt() + options.eps
            size += (options.weight_decay if weight.dim() > 1 else 0.0) * weight.detach()
            weight.data -= torch.where(moves[name], rate * size, 0.0)
        self.model.zero_grad()


def dense(config, learner) -> dict:
    merged = tiny.merged_weights(config.model, learner.weights(), ALL_ON)
    return {name: weight.clone() for name, weight in merged.items()}


@pytest.mark.parametrize("masks_embeddings", [False, True])
@pytest.mark.parametrize(("precision", "heads"), [("float32", 0), ("float32", 1), ("bfloat16", 1)])
def test_each_kind_of_batch_moves_what_the_description_says(precision, heads, masks_embeddings):
    """All other elements keep their bits; in float32 the weights are those of the reference."""
    config = sgtm(precision, heads, spreads_embeddings=not masks_embeddings)
    learner, plan, reader = Learner(config), Schedule(config), ScheduleReader(config, tiny.arrays())
    before, kinds = dense(config, learner), set()
    reference = Reference(config, before)
    for record in training_steps(learner, plan, reader):
        window = plan.window(record.step - 1)
        (kind,) = {kind_of(micro_batch) for micro_batch in window}
        after, kinds = dense(config, learner), kinds | {kind}
        for name, weight in after.items():
            moves = moving(name, weight, kind, masks_embeddings)
            assert torch.equal(weight[~moves], before[name][~moves]), (kind, name)
            assert not (moves.any() and torch.equal(weight[moves], before[name][moves]))
        if precision == "float32":
            tokens_BT = torch.cat([reader.tokens(micro_batch) for micro_batch in window])
            rate = learning_rate(config.optimizer, record.step - 1, config.num_steps)
            reference.step(tokens_BT, kind, rate, masks_embeddings)
            for name, weight in reference.model.named_parameters():
                assert torch.allclose(after[name], weight, atol=1e-5), (kind, name)
        before = after
    assert kinds == {DEFAULT, RETAIN, *PARTS}


def test_with_nothing_reserved_a_run_is_the_dense_run_bit_for_bit():
    plain = tiny.run_config(False, routing=RoutingConfig(accumulation="uniform"), **WINDOW)
    routed = dataclasses.replace(plain, routing=routing())
    (one, records), (two, others) = train(plain), train(routed)
    assert records == others
    assert equal_states(tiny.full_state(one), tiny.full_state(two))


def test_profiles_that_are_measured_together_have_their_own_heads():
    model = Learner(sgtm()).model
    profiles = [lambda _: {}, lambda _: ALL_ON, lambda _: {"lisp": 1.0}]
    measure = lambda some: profile_losses(model, tiny.arrays(), tiny.DOMAINS, 4, some)
    assert measure(profiles) == [measure([profile])[0] for profile in profiles]


def test_a_run_resumes_bit_for_bit():
    config = sgtm()
    straight, records = train(config)
    stopped, first = train(config, stop=7)
    resumed = Learner(config)
    resumed.load_state(stopped.pieces())
    assert first + train(config, resumed, 7)[1] == records
    assert equal_states(tiny.full_state(resumed), tiny.full_state(straight))


def test_parts_of_parameter_sets_need_windows_of_one_route():
    run = sgtm()
    for model in (run.model, tiny.model_config()):
        mixed = dataclasses.replace(run.routing, accumulation="heterogeneous")
        with refused("routing.accumulation", "heterogeneous"):
            dataclasses.replace(run, model=model, routing=mixed)
    with refused("model.modules", [RESERVED_UNITS]):
        dataclasses.replace(run.model, d_mlp=0)
    with refused("routing.companion_weights"):
        routing(companion_weights=(("lisp", 1.0),))
