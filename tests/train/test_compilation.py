"""Compiled layers compute what eager ones do, with a bounded number of graphs, and eager ones
follow a failure.

On a CPU, mostly by the eager backend.
"""

import dataclasses

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.utils import fresh_cache

from gram_platform.config import ModuleSpec, RoutingConfig
from gram_platform.train import compilation, learner
from gram_platform.train.compilation import Compilation, compile_blocks
from gram_platform.train.learner import Learner
from tests import tiny
from tests.train.test_sharding import HALF, equal, train

NUM_COMPILED = 2  # functions with separate graphs: a block's trunk and an auxiliary MLP
# Micro-batches a step, in 10 steps.
EIGHT = {"micro_batch": 2, "batch_size": 16, "draws": (80, 40, 40)}


class CountingBackend:
    """Runs graphs as they are; cannot compile the one of this number."""

    def __init__(self, fails_at=0):
        self.num_graphs, self.fails_at = 0, fails_at

    def __call__(self, graph, _):
        self.num_graphs += 1
        if self.num_graphs == self.fails_at:
            raise RuntimeError("no such\ninstruction")
        return graph.forward


@pytest.fixture(autouse=True)
def no_graphs_before():
    limit, lazily = (
        torch._dynamo.config.recompile_limit,
        torch._functorch.config.force_non_lazy_backward_lowering,
    )
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = limit
    torch._functorch.config.force_non_lazy_backward_lowering = lazily


@pytest.mark.parametrize("max_graphs", [16, 1])
@pytest.mark.parametrize("kind", ["mlp", "lora", "heads"])
def test_graphs_are_bounded_and_change_nothing(kind, max_graphs, monkeypatch):
    """With every route of GRAM and an evaluation after every step."""
    monkeypatch.setattr(compilation, "MAX_GRAPHS", max_graphs)
    spec, routing = (kind, 4), None
    if kind == "heads":
        spec, routing = ("reserved", 4, 1), RoutingConfig(0.5, 0.3, "uniform")
    modules = tuple(ModuleSpec(domain, *spec) for domain in tiny.DOMAINS[1:])
    model = dataclasses.replace(tiny.model_config(), modules=modules)
    config = tiny.run_config(model=model, routing=routing)
    plain, compiled, backend = Learner(config), Learner(config), CountingBackend()
    compile_blocks(compiled.model, Compilation(backend))
    assert train(plain, config) == train(compiled, config)
    assert equal(tiny.full_state(plain), tiny.full_state(compiled))
    assert 0 < backend.num_graphs <= NUM_COMPILED * max_graphs


def test_layers_share_their_graphs():
    """As many graphs for six layers as for two: one for each combination of trained sets and
    gradient mode."""
    counts = []
    for num_layers in (2, 6):
        config = tiny.run_config(model=tiny.model_config(num_layers=num_layers))
        learner, backend = Learner(config), CountingBackend()
        compile_blocks(learner.model, Compilation(backend))
        train(learner, config, stop=HALF)
        counts.append(backend.num_graphs)
    assert counts[0] == counts[1]


def test_mixed_passes_have_few_graphs():
    """Below the bound, beyond which layers would run without one."""
    config = tiny.run_config(model=tiny.model_config(num_layers=1), **EIGHT)
    plain, compiled, backend = (
        Learner(config, num_merged=8),
        Learner(config, num_merged=8),
        CountingBackend(),
    )
    compile_blocks(compiled.model, Compilation(backend))
    assert train(plain, config) == train(compiled, config)
    assert equal(tiny.full_state(plain), tiny.full_state(compiled))
    assert backend.num_graphs < 2 * 16


def failing_backward(graph, inputs):
    """Compiles a forward pass, and for its backward pass finds no Triton."""

    def backward(*_):
        raise ModuleNotFoundError("triton")

    return aot_autograd(fw_compiler=lambda module, _: module.forward, bw_compiler=backward)(
        graph, inputs
    )


def failing_once():
    """Cannot compile the first graph; later ones save fewer tensors than the functions themselves,
    as inductor's do."""
    failing = CountingBackend(1)

    def compiled(module, inputs):
        return make_boxed_func(module.forward)

    def backend(graph, inputs):
        failing(graph, inputs)
        return aot_autograd(
            fw_compiler=compiled,
            bw_compiler=compiled,
            partition_fn=min_cut_rematerialization_partition,
        )(graph, inputs)

    return backend


FAILURES = {
    "first": lambda: CountingBackend(1),
    "later": lambda: CountingBackend(4),
    "backward": lambda: failing_backward,
    "unknown backend": lambda: "no_such_backend",
    "once": failing_once,
}
RECOMPUTED = ("later", "backward", "once")


@pytest.mark.parametrize(
    ("failure", "checkpointing"),
    [
        *((name, False) for name in FAILURES if name != "once"),
        *((name, True) for name in RECOMPUTED),
    ],
)
def test_what_cannot_be_compiled_runs_eagerly(failure, checkpointing, monkeypatch):
    """The run has the eager one's bits, and one warning. Recomputed layers run as they ran
    before."""
    config, failing = tiny.run_config(**EIGHT), Compilation(FAILURES[failure]())
    plain = Learner(config, activation_checkpointing=checkpointing, num_merged=8)
    monkeypatch.setattr(learner, "Compilation", lambda: failing)
    monkeypatch.setattr(learner, "fuse_cross_entropy", lambda _: None)
    compiled = Learner(config, activation_checkpointing=checkpointing, compiled=True, num_merged=8)
    with pytest.warns(RuntimeWarning) as given:
        found = train(compiled, config, stop=2)
    assert len([warning for warning in given if "--compile" in str(warning.message)]) == 1
    assert failing.has_failed
    assert found == train(plain, config, stop=2)
    assert equal(tiny.full_state(plain), tiny.full_state(compiled))


def test_a_machine_without_a_compiler_trains_eagerly():
    """All of it by inductor: layers and loss."""
    config = tiny.run_config(**EIGHT)
    plain = Learner(config, num_merged=8)
    compiled = Learner(config, compiled=True, num_merged=8)
    absent = torch._inductor.config.patch("cpp.cxx", ("/no/compiler",))
    with absent, fresh_cache(), pytest.warns(RuntimeWarning):
        found = train(compiled, config, stop=1)
    assert found == train(plain, config, stop=1)
    assert equal(tiny.full_state(plain), tiny.full_state(compiled))


@pytest.mark.parametrize("error", [ValueError("active"), torch.OutOfMemoryError("of the GPU")])
def test_errors_of_the_function_itself_rise(error):
    def function(x):
        raise error

    eager = Compilation("eager")
    with pytest.raises(type(error)):
        eager.compile(function)(torch.ones(2))
    assert not eager.has_failed


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_inductor_with_merged_passes_follows_eager(precision):
    """One dense layer and the loss, and eight micro-batches in a pass: each graph costs a C++
    compiler some seconds."""
    model = tiny.model_config(False, num_layers=1)
    config = tiny.run_config(
        False, routing=RoutingConfig(), precision=precision, model=model, **EIGHT
    )
    plain, compiled = (
        Learner(config, compiled=compiled, num_merged=8) for compiled in (False, True)
    )
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2}[precision]
    assert train(compiled, config, stop=2) == pytest.approx(
        train(plain, config, stop=2), abs=tolerance
    )
    assert not compiled.compilation.has_failed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_merged", [1, 4])
def test_inductor_on_a_gpu_follows_eager(num_merged):
    config = tiny.run_config(precision="bfloat16")
    losses = [train_on_gpu(config, compiled, num_merged) for compiled in (False, True)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-2)


def train_on_gpu(config, compiled, num_merged) -> list[float]:
    learner = Learner(config, "cuda", compiled=compiled, num_merged=num_merged)
    forward = learner.forward
    # `train` evaluates on CPU tokens.
    learner.forward = lambda tokens_BT, *how: forward(tokens_BT.cuda(), *how)
    return train(learner, config)
