"""The compiled loss is the other one."""

import pytest
import torch

from gram_platform.train import compilation
from gram_platform.train.compilation import Compilation, fuse_cross_entropy
from gram_platform.train.objectives import cross_entropies, cross_entropy
from tests.train.test_compilation import CountingBackend, no_graphs_before  # noqa: F401  a fixture

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8}  # of a gradient, once


def logits_and_targets(dtype, B=8, T=16, V=1000):
    generator = torch.Generator().manual_seed(0)
    logits_BTV = (4 * torch.randn(B, T, V, generator=generator)).to(dtype).requires_grad_()
    weights_BT = torch.randint(0, 3, (B, T), generator=generator).float()  # 0: of prompts
    return logits_BTV, torch.randint(0, V, (B, T), generator=generator), weights_BT


def both(fused, dtype, is_weighted, num_losses):
    """The losses and the gradient of their sum with other factors, fused and not."""
    logits_BTV, targets_BT, weights_BT = logits_and_targets(dtype)
    whole = logits_BTV, targets_BT, weights_BT if is_weighted else None
    found = []
    for losses in (cross_entropies(*whole, num_losses), fused(whole, num_losses, None)):
        total = sum(loss * 2.0**-power for power, loss in enumerate(losses, start=2))
        found.append((losses.detach(), *torch.autograd.grad(total, logits_BTV)))
    return found


def assert_alike(found, dtype):
    (losses, gradient), (fused_losses, fused_gradient) = found
    assert torch.allclose(losses, fused_losses, rtol=1e-6, atol=1e-6)
    assert gradient.dtype == fused_gradient.dtype == dtype
    assert torch.allclose(
        gradient.double(), fused_gradient.double(), rtol=ROUNDING[dtype], atol=1e-6
    )
    assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("num_losses", [1, 4])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_the_fused_loss_and_its_gradient_are_the_other_ones(dtype, is_weighted, num_losses):
    assert_alike(
        both(fuse_cross_entropy(Compilation("eager")), dtype, is_weighted, num_losses), dtype
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ROUNDING)
def test_inductors_code_computes_the_same(dtype):
    compiled = Compilation()
    for is_weighted in (False, True):
        assert_alike(both(fuse_cross_entropy(compiled), dtype, is_weighted, 4), dtype)
    assert not compiled.has_failed


def test_far_apart_logits_have_exact_losses():
    """As `objectives.cross_entropy` has: log 2 for two that are alike, however large."""
    logits_NV = torch.tensor([[-600.0, -600.0], [0.0, 0.0], [600.0, 600.0], [700.0, 0.0]])
    losses_N1, *_ = compilation.token_losses(logits_NV, torch.tensor([[0], [1], [0], [1]]))
    assert losses_N1.flatten().tolist() == pytest.approx(
        [0.6931472, 0.6931472, 0.6931472, 700.0], rel=1e-6
    )


@pytest.mark.parametrize("rows", [10, 10**6])
def test_a_gradient_that_cannot_be_compiled_is_computed_in_parts(rows, monkeypatch):
    monkeypatch.setattr(compilation, "rows_at_once", lambda *_: rows)
    fused = fuse_cross_entropy(Compilation(CountingBackend(fails_at=2)))
    with pytest.warns(RuntimeWarning):
        assert_alike(both(fused, torch.bfloat16, False, 4), torch.bfloat16)


def test_a_loss_that_cannot_be_compiled_is_the_other_one():
    fused, (logits_BTV, targets_BT, _) = (
        fuse_cross_entropy(Compilation(CountingBackend(1))),
        logits_and_targets(torch.float32),
    )
    with pytest.warns(RuntimeWarning):
        (loss,) = fused(
            (logits_BTV, targets_BT, None),
            1,
            lambda: cross_entropies(logits_BTV, targets_BT, None, 1),
        )
    assert torch.equal(loss, cross_entropy(logits_BTV, targets_BT))
