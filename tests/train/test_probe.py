"""A probe measures what an unlabelled batch would do to the modules, and leaves the training as it
was, bit for bit."""

import dataclasses

import pytest
import torch

from gram_platform.config import EvalPoints, ModuleSpec
from gram_platform.config.routing import Schedule, module_set
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner, probe_norms
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import cross_entropy
from gram_platform.train.sharding import ShardedLearner
from tests import tiny
from tests.ranks import run_ranks

KINDS = [("mlp", "float32"), ("lora", "float32"), ("mlp", "bfloat16")]


def config_of(kind="mlp", precision="float32"):
    modules = tuple(ModuleSpec(domain, kind, 4) for domain in tiny.DOMAINS[1:])
    return tiny.run_config(
        data=tiny.HALF_LABELLED,
        model=dataclasses.replace(tiny.model_config(), modules=modules),
        eval_points=EvalPoints(0, 6, tiny.DOMAINS, num_probes=4),
        precision=precision,
    )


def train(learner, probes):
    """(losses, norms by step and domain) with a probe after every third step, or without any."""
    config, arrays = learner.config, tiny.arrays()
    plan = Schedule(config)
    losses, found = [], {}
    for record in training_steps(learner, plan, ScheduleReader(config, arrays), norms_every=1):
        losses.append((record.losses, record.grad_norm, dict(record.norms)))
        if probes and record.step % 3 == 0:
            for domain in tiny.DOMAINS:
                found[record.step, domain] = probe_norms(learner, arrays[domain])
    return losses, found


@pytest.mark.parametrize(("kind", "precision"), KINDS)
def test_training_is_the_same_bit_for_bit(kind, precision):
    plain, probed = (Learner(config_of(kind, precision)) for _ in range(2))
    (expected, nothing), (losses, found) = train(plain, False), train(probed, True)
    assert losses == expected
    assert not nothing
    assert {step for step, _ in found} == {3, 6, 9, 12}
    states = [tiny.full_state(learner) for learner in (plain, probed)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(p.grad is None for own in probed.master_sets.values() for p in own.values())


@pytest.mark.parametrize("kind", ["mlp", "lora"])
def test_norms_are_those_of_matrices_in_a_batch_that_trains_everything(kind):
    learner = Learner(config_of(kind))
    train(learner, False)
    sequences = tiny.arrays(seed=1)["lisp"]
    found = probe_norms(learner, sequences)
    squares = dict.fromkeys(found, 0.0)
    learner.train_only(frozenset(learner.master_sets))
    for first in (0, 2, 4):  # six sequences are three micro-batches of two
        tokens = torch.from_numpy(sequences[first : first + 2].astype("int64"))
        cross_entropy(
            learner.forward(tokens[:, :-1], dict.fromkeys(found, 1.0)), tokens[:, 1:]
        ).backward()
        for domain in found:
            own = learner.master_sets[module_set(domain)].values()
            squares[domain] += sum(float(p.grad.square().sum()) for p in own if p.dim() > 1) / 3
        if kind == "mlp":  # why biases do not count: this one tells nothing of the module
            first_of, other_of = (learner.model.blocks[0].aux[d].c_proj.bias.grad for d in found)
            assert torch.equal(first_of, other_of)
        learner.model.zero_grad(set_to_none=True)
    assert found == pytest.approx(
        {domain: square**0.5 for domain, square in squares.items()}, rel=1e-5
    )
    assert min(found.values()) > 0.0


def probing_ranks(rank, num_ranks, folder):
    """Every rank trains without and with probes, to the same losses and weights; rank 0 leaves what
    it found."""
    for number, kind in enumerate(KINDS):
        plain, probed = (ShardedLearner(config_of(*kind)) for _ in range(2))
        expected, _ = train(plain, False)
        losses, found = train(probed, True)
        assert losses == expected
        weights, same = probed.weights(), plain.weights()
        assert all(torch.equal(weights[name], same[name]) for name in same)
        if rank == 0:
            torch.save(found, folder / f"{number}.pt")


@pytest.mark.slow  # tests/train/test_sharding.py compares ranks with one process
def test_two_ranks_find_what_one_process_does_and_train_on_bit_for_bit(tmp_path):
    run_ranks(2, probing_ranks, tmp_path)
    for number, kind in enumerate(KINDS):
        found = torch.load(tmp_path / f"{number}.pt", weights_only=False)
        _, alone = train(Learner(config_of(*kind)), True)
        assert found.keys() == alone.keys()
        for key, norms in found.items():
            assert norms == pytest.approx(alone[key], rel=1e-3 if "float32" in kind else 0.2), (
                kind,
                key,
            )
