"""Compiled layers compute what eager ones do, with a bounded number of graphs; on a CPU, by the eager backend."""

import dataclasses

import pytest
import torch

from gram_platform.config import ModuleSpec
from gram_platform.train.learner import Learner, compile_blocks
from tests import tiny
from tests.train.test_sharding import HALF, equal, train

NUM_COMPILED = 2  # functions with separate graphs: a block's trunk and an auxiliary MLP


class CountingBackend:
    """Runs graphs as they are."""

    def __init__(self):
        self.num_graphs = 0

    def __call__(self, graph, _):
        self.num_graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def no_graphs_before():
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = limit


@pytest.mark.parametrize("max_graphs", [16, 1])
@pytest.mark.parametrize("kind", ["mlp", "lora"])
def test_graphs_are_bounded_and_change_nothing(kind, max_graphs):
    """With every route of GRAM and an evaluation after every step."""
    modules = tuple(ModuleSpec(domain, kind, 4) for domain in tiny.DOMAINS[1:])
    config = tiny.run_config(model=dataclasses.replace(tiny.model_config(), modules=modules))
    plain, compiled, backend = Learner(config), Learner(config), CountingBackend()
    compile_blocks(compiled.model, backend, max_graphs)
    assert train(plain, config) == train(compiled, config)
    assert equal(tiny.full_state(plain), tiny.full_state(compiled))
    assert 0 < backend.num_graphs <= NUM_COMPILED * max_graphs


def test_layers_share_their_graphs():
    """As many graphs for six layers as for two: one for each combination of trained sets and gradient mode."""
    counts = []
    for num_layers in (2, 6):
        torch._dynamo.reset()
        config = tiny.run_config(model=tiny.model_config(num_layers=num_layers))
        learner, backend = Learner(config), CountingBackend()
        compile_blocks(learner.model, backend)
        train(learner, config, stop=HALF)
        counts.append(backend.num_graphs)
    assert counts[0] == counts[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_inductor_on_a_gpu_follows_eager():
    config = tiny.run_config(precision="bfloat16")
    losses = [train_on_gpu(config, compiled) for compiled in (False, True)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-2)


def train_on_gpu(config, compiled) -> list[float]:
    learner = Learner(config, "cuda", compiled=compiled)
    forward = learner.forward
    learner.forward = lambda tokens_BT, active: forward(tokens_BT.cuda(), active)  # `train` evaluates on CPU tokens
    return train(learner, config)
