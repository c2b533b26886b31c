"""Adding and clipping gradients as lists of tensors: torch's own results. AdamW's formula by
set."""

import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from gram_platform.config import OptimizerConfig
from gram_platform.train.learner import Learner
from gram_platform.train.optimizers import (
    add_gradients,
    clip_gradients,
    make_optimizers,
    set_learning_rate,
)
from gram_platform.train.sharding import ShardedLearner
from tests import tiny
from tests.ranks import run_ranks
from tests.refused import refused

SHAPES = ((8, 3), (5,), (7, 2))


class Operators(TorchDispatchMode):
    """Counts operators while the block runs."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def pairs_on(device, times: int = 1) -> list:
    copies = [
        nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device=device))
        for shape in SHAPES * times
    ]
    return [(copy, nn.Parameter(torch.empty_like(copy, dtype=torch.float32))) for copy in copies]


def test_gradients_are_added_in_float32():
    pairs, expected = pairs_on("cpu"), [torch.zeros(shape) for shape in SHAPES]
    for left_out in (0, 1, 2):  # this copy took no part
        for index, (copy, _) in enumerate(pairs):
            if index != left_out:
                copy.grad = torch.randn(copy.shape).bfloat16()
                expected[index] += copy.grad.float()
        add_gradients(pairs)
        assert all(copy.grad is None for copy, _ in pairs)
    assert all(
        torch.equal(master.grad, sum_) for (_, master), sum_ in zip(pairs, expected, strict=True)
    )


def test_an_accelerator_computes_as_many_operators_for_many_tensors_as_for_few():
    """Each costs it a launch. Making an empty tensor, or another view of one, costs none."""
    computed = []
    for times in (1, 10):
        pairs = pairs_on("meta", times)
        for _ in range(2):
            for copy, _ in pairs:
                copy.grad = torch.empty_like(copy)
            with Operators() as operators:
                add_gradients(pairs)
        computed.append(
            {
                name: n
                for name, n in operators.counts.items()
                if name not in ("empty_like", "detach")
            }
        )
    assert computed[0] == computed[1]
    assert sum(computed[0].values()) < len(SHAPES)


def with_gradients(learner):
    """Gives every master a gradient that depends on its name alone, as float32 [full shape]
    rows."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(learner.masters.items()):
        whole = torch.randn(parameter.shape, generator=generator)
        parameter.grad = torch.zeros_like(parameter)
        first, stop = learner.rows_of(f"model.{name}", tuple(parameter.shape))
        learner._local(parameter.grad).copy_(whole[first:stop])
    return learner


def clip_on_ranks(rank, num_ranks, config, folder):
    """Clips as the platform does and as torch does, in one process group."""
    learner, same = with_gradients(ShardedLearner(config)), with_gradients(ShardedLearner(config))
    norm = clip_gradients(learner.master_sets, config.optimizer)
    torchs = nn.utils.clip_grad_norm_(
        list(same.masters.values()), config.optimizer.clip_norm
    ).full_tensor()
    assert norm == pytest.approx(torchs.item(), rel=1e-6)
    for name, parameter in learner.masters.items():
        assert isinstance(parameter.grad, DTensor)
        torch.testing.assert_close(parameter.grad.to_local(), same.masters[name].grad.to_local())
    if rank == 0:
        torch.save(norm, folder / "norm.pt")


def test_ranks_clip_their_rows_to_the_norm_of_all(tmp_path):
    config = tiny.run_config(optimizer=OptimizerConfig(3e-3, 0.2, 0.2, clip_norm=0.5))
    run_ranks(2, clip_on_ranks, config, tmp_path)
    alone = with_gradients(Learner(config))
    expected = nn.utils.get_total_norm([p.grad for p in alone.masters.values()]).item()
    assert torch.load(tmp_path / "norm.pt") == pytest.approx(expected, rel=1e-6)
    assert alone.clip() == expected
    assert alone.clip() == pytest.approx(0.5, rel=1e-4)


def named(**tensors) -> dict:
    return {name: nn.Parameter(torch.tensor(values)) for name, values in tensors.items()}


@pytest.mark.parametrize(("decay_vectors", "bias"), [(False, 3.0), (True, 3.0 * 0.9998)])
def test_weight_decay_shrinks_matrices_and_vectors_only_if_asked(decay_vectors, bias):
    config = OptimizerConfig(1e-3, 0.0, 0.0, weight_decay=0.2, decay_vectors=decay_vectors)
    parameters = named(weight=[[2.0, -4.0]], bias=[3.0])
    optimizers = make_optimizers(config, {"shared": parameters})
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizers["shared"].step()
    assert parameters["weight"].flatten().tolist() == pytest.approx(
        [2.0 * 0.9998, -4.0 * 0.9998], abs=1e-6
    )
    assert parameters["bias"].item() == pytest.approx(bias, abs=1e-6)


def test_steps_are_adams_with_the_configs_numbers():
    """Two steps by the formula of Kingma and Ba (2015), the second at another rate."""
    beta1, beta2, eps, gradients, rates = 0.8, 0.9, 0.5, (1.0, -3.0), (0.1, 0.01)
    config = OptimizerConfig(
        rates[0], 0.0, 0.0, beta1=beta1, beta2=beta2, eps=eps, weight_decay=0.0
    )
    parameters = named(weight=[[1.0]])
    optimizers = make_optimizers(config, {"core_mlp": parameters})
    expected, mean, square = 1.0, 0.0, 0.0
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        set_learning_rate(optimizers, rate)
        parameters["weight"].grad = torch.tensor([[gradient]])
        optimizers["core_mlp"].step()
        mean, square = (
            beta1 * mean + (1 - beta1) * gradient,
            beta2 * square + (1 - beta2) * gradient**2,
        )
        expected -= (
            rate * (mean / (1 - beta1**step)) / (math.sqrt(square / (1 - beta2**step)) + eps)
        )
        assert parameters["weight"].item() == pytest.approx(expected, abs=1e-6)


def two_sets() -> dict:
    """Gradients of norm 5 and 0.1 in two sets, a set without any beside them."""
    sets = {
        "shared": named(a=[[0.0]], b=[0.0]),
        "module:lisp": named(c=[0.0]),
        "module:art": named(d=[0.0]),
    }
    sets["shared"]["a"].grad, sets["shared"]["b"].grad = torch.tensor([[3.0]]), torch.tensor([-4.0])
    sets["module:lisp"]["c"].grad = torch.tensor([0.1])
    return sets


def clipped(**parts) -> tuple[float, list[float]]:
    sets = two_sets()
    norm = clip_gradients(sets, OptimizerConfig(1e-3, 0.0, 0.0, **parts))
    return norm, [
        p.grad.item() for named in sets.values() for p in named.values() if p.grad is not None
    ]


def test_clipping_takes_one_norm_over_all_sets():
    whole = math.hypot(3.0, 4.0, 0.1)
    assert clipped(clip_norm=0.5) == (
        pytest.approx(whole),
        pytest.approx([3.0 * 0.5 / whole, -4.0 * 0.5 / whole, 0.1 * 0.5 / whole], rel=1e-5),
    )
    assert clipped(clip_norm=10.0) == (pytest.approx(whole), pytest.approx([3.0, -4.0, 0.1]))
    assert clipped(clip_norm=0.0) == (pytest.approx(whole), pytest.approx([3.0, -4.0, 0.1]))


@pytest.mark.parametrize("name", ["shared", "module:lisp"])
def test_a_norm_that_is_no_number_is_never_hidden_by_another_set(name):
    sets = two_sets()
    next(iter(sets[name].values())).grad.fill_(math.nan)
    assert math.isnan(clip_gradients(sets, OptimizerConfig(1e-3, 0.0, 0.0)))


def test_clipping_each_set_alone_is_refused():
    with refused("optimizer.clip_scope", "per_set"):
        OptimizerConfig(1e-3, 0.0, 0.0, clip_scope="per_set")
