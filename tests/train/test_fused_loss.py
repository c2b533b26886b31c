"""The compiled loss is the other one, and moves a third of its bytes or less."""

import re

import pytest
import torch
from torch._inductor import cpu_vec_isa
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_cache

from gram_platform.train import compilation
from gram_platform.train.compilation import Compilation, fused_cross_entropy
from gram_platform.train.objectives import cross_entropy
from tests.train.test_compilation import CountingBackend, no_graphs_before  # noqa: F401  a fixture

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8}  # of a gradient, once
SIZES = {"float": 4, "at::BFloat16": 2, "int64_t": 8}


def logits_and_targets(dtype, B=8, T=16, V=1000):
    generator = torch.Generator().manual_seed(0)
    logits_BTV = (4 * torch.randn(B, T, V, generator=generator)).to(dtype).requires_grad_()
    weights_BT = torch.randint(0, 3, (B, T), generator=generator).float()  # 0: of prompts
    return logits_BTV, torch.randint(0, V, (B, T), generator=generator), weights_BT


def both(fused, dtype, is_weighted, num_losses):
    """The losses and the gradient of their sum with other factors, fused and not."""
    logits_BTV, targets_BT, weights_BT = logits_and_targets(dtype)
    whole = logits_BTV, targets_BT, weights_BT if is_weighted else None
    parts = zip(*([None] * num_losses if rows is None else rows.chunk(num_losses) for rows in whole), strict=True)
    found = []
    for losses in ([cross_entropy(*part) for part in parts], fused(whole, num_losses, None)):
        total = sum(loss * 2.0**-power for power, loss in enumerate(losses, start=2))
        found.append((torch.stack(list(losses)).detach(), *torch.autograd.grad(total, logits_BTV)))
    return found


def assert_alike(found, dtype):
    (losses, gradient), (fused_losses, fused_gradient) = found
    assert torch.allclose(losses, fused_losses, rtol=1e-6, atol=1e-6)
    assert gradient.dtype == fused_gradient.dtype == dtype
    assert torch.allclose(gradient.double(), fused_gradient.double(), rtol=ROUNDING[dtype], atol=1e-6)
    assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("num_losses", [1, 4])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_the_fused_loss_and_its_gradient_are_the_other_ones(dtype, is_weighted, num_losses):
    assert_alike(both(fused_cross_entropy(Compilation("eager")), dtype, is_weighted, num_losses), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ROUNDING)
def test_inductors_code_computes_the_same(dtype):
    compiled = Compilation()
    for is_weighted in (False, True):
        assert_alike(both(fused_cross_entropy(compiled), dtype, is_weighted, 4), dtype)
    assert not compiled.has_failed


def test_far_apart_logits_have_exact_losses():
    """As `objectives.cross_entropy` has: log 2 for two that are alike, however large."""
    logits_NV = torch.tensor([[-600.0, -600.0], [0.0, 0.0], [600.0, 600.0], [700.0, 0.0]])
    losses_N1, *_ = compilation.token_losses(logits_NV, torch.tensor([[0], [1], [0], [1]]))
    assert losses_N1.flatten().tolist() == pytest.approx([0.6931472, 0.6931472, 0.6931472, 700.0], rel=1e-6)


@pytest.mark.parametrize("rows", [10, 10**6])
def test_a_gradient_that_cannot_be_compiled_is_computed_in_parts(rows, monkeypatch):
    monkeypatch.setattr(compilation, "rows_at_once", lambda *_: rows)
    fused = fused_cross_entropy(Compilation(CountingBackend(fails_at=2)))
    with pytest.warns(RuntimeWarning, match="failed"):
        assert_alike(both(fused, torch.bfloat16, False, 4), torch.bfloat16)


def test_a_loss_that_cannot_be_compiled_is_the_other_one():
    fused, (logits_BTV, targets_BT, _) = (
        fused_cross_entropy(Compilation(CountingBackend(1))),
        logits_and_targets(torch.float32),
    )
    with pytest.warns(RuntimeWarning, match="failed"):
        (loss,) = fused((logits_BTV, targets_BT, None), 1, lambda: [cross_entropy(logits_BTV, targets_BT)])
    assert torch.equal(loss, cross_entropy(logits_BTV, targets_BT))


@pytest.fixture
def sources(monkeypatch):
    """The code that inductor generates for a CPU, which is not compiled: what it would compute is left open."""
    texts: list[str] = []
    monkeypatch.setattr(GraphLowering, "save_output_code", texts.append)
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    monkeypatch.setattr(cpu_vec_isa, "pick_vec_isa", lambda: cpu_vec_isa.invalid_vec_isa)  # asks no compiler
    with fresh_cache():
        yield texts


def bytes_over(size: int, source: str) -> int:
    """Bytes that the code moves for each element of its loops over `size`: those of each loop's pointers."""
    total = 0
    for kernel in re.split(r"async_compile\.cpp", source)[1:]:
        types = {name: kind for kind, name in re.findall(r"(?:const )?([\w:]+)\* (\w+)[,)]", kernel)}
        for loop in re.split(r"for\(", kernel)[1:]:
            variable, stop = re.match(r"int64_t (\w+)=.+?<static_cast<int64_t>\((\d+)L\)", loop).groups()
            if int(stop) == size:
                body = loop
                pointers = set(re.findall(rf"(\w+_ptr\d+) \+ static_cast<int64_t>\([^;]*\b{variable}\b", body))
                pointers |= set(re.findall(rf"(\w+_ptr\d+)\[static_cast<int64_t>\([^;]*\b{variable}\b", body))
                total += sum(SIZES[types[name]] for name in pointers)
    return total


def test_the_generated_code_moves_at_most_ten_bytes_a_logit(sources):
    logits_BTV, targets_BT, _ = logits_and_targets(torch.bfloat16, V=1024)
    (loss,) = fused_cross_entropy(Compilation())((logits_BTV, targets_BT, None), 1, None)
    loss.backward()
    assert [bytes_over(1024, text) for text in sources] == [2 + 2, 2 + 2]
