"""The forms that are fast on a CPU are the same functions as torch's, and their gradients as close
to exact ones."""

import pytest
import torch
import torch.nn.functional as F

from gram_platform.config.layout import ON_CPU, ON_CPU_IN_BLOCKS
from gram_platform.model.kernels import (
    GELU_AT_ONCE,
    GELU_SMALL,
    QUERIES_AT_ONCE,
    _arguments,
    attention,
    gelu,
    kernel_in_use,
    rotate,
)
from gram_platform.train.objectives import LOGITS_AT_ONCE, cross_entropy
from tests import tiny

SHAPES = [
    (2, QUERIES_AT_ONCE + 41, 8, 2, 16),
    (3, 2 * QUERIES_AT_ONCE, 4, 4, 8),
    (1, 1, 2, 1, 8),
    (5, 24, 4, 1, 16),
]


def heads(shape, seed=0) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values and the output's gradient of (B, T, H, K, h), strided as a projection
    gives them."""
    B, T, H, K, h = shape
    generator = torch.Generator().manual_seed(seed)
    widths = (H, K, K, H)
    return tuple(
        torch.randn(B, T, n, h, generator=generator).bfloat16().transpose(1, 2) for n in widths
    )


def gradients(function, inputs, grad, dtype) -> list[torch.Tensor]:
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    out = function(*leaves)
    out.backward(grad.to(dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def torch_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_and_its_gradients(shape):
    *inputs, grad = heads(shape)
    exact = gradients(torch_attention, inputs, grad, torch.float64)
    torchs = gradients(torch_attention, inputs, grad, torch.bfloat16)
    ours = gradients(lambda q, k, v: attention(q, k, v, True), inputs, grad, torch.bfloat16)
    assert torch.equal(ours[0], torchs[0])
    for mine, value in zip(ours, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(
            mine.double(), value, rtol=0.02, atol=0.02 * float(value.abs().max()) + 1e-3
        )
        # A value of bfloat16 is off by up to 0.004.
        assert (mine - value).norm() <= 0.008 * value.norm() + 1e-3


GPU_HEADS = [
    (torch.float32, 64, False, 8),
    (torch.bfloat16, 64, False, 2),
    (torch.bfloat16, 384, False, 8),
]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "is_masked", "heads_given"), [*GPU_HEADS, (torch.bfloat16, 64, True, 8)]
)
def test_a_gpu_gets_repeated_keys_where_its_kernel_takes_no_groups(
    dtype, head_dim, is_masked, heads_given
):
    q, k = (torch.empty(2, n, 16, head_dim, dtype=dtype, device="meta") for n in (8, 2))
    mask = torch.empty(2, 16, 16, dtype=dtype, device="meta") if is_masked else None
    asked = _arguments(q, k, k, True, mask)
    assert asked["key"].shape == asked["value"].shape == (2, heads_given, 16, head_dim)
    assert asked["enable_gqa"] == (heads_given < 8)
    assert F.scaled_dot_product_attention(**asked).shape == q.shape


def test_the_cpus_kernel_is_named():
    model = tiny.model_config()
    assert {kernel_in_use(model, dtype, "cpu") for dtype in (torch.float32, torch.bfloat16)} == {
        ON_CPU,
        ON_CPU_IN_BLOCKS,
    }


def test_no_token_sees_a_later_one():
    *inputs, grad = heads(SHAPES[0])
    grad[:, :, 50:] = 0
    _, _, dk, dv = gradients(lambda q, k, v: attention(q, k, v, True), inputs, grad, torch.bfloat16)
    assert dk[:, :, 50:].abs().max() == dv[:, :, 50:].abs().max() == 0
    assert dv[:, :, :50].abs().min() > 0


def test_large_scores_neither_overflow_nor_vanish():
    q, k, v, grad = heads(SHAPES[0])
    for value in gradients(
        lambda q, k, v: attention(q, k, v, True), (60 * q, 60 * k, v), grad, torch.bfloat16
    ):
        assert value.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_is_the_formula_to_the_bit(dtype):
    generator = torch.Generator().manual_seed(1)
    x, grad = (
        torch.randn(2, 5, 7, 8, generator=generator, dtype=torch.float32).to(dtype)
        for _ in range(2)
    )
    angles = torch.randn(7, 4, generator=generator)
    cos, sin = (torch.cat([f(angles)] * 2, dim=-1) for f in (torch.cos, torch.sin))

    def formula(x):
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)

    ours, theirs = (
        gradients(f, [x], grad, dtype) for f in (lambda x: rotate(x, cos, sin), formula)
    )
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], rtol=0.02 * (dtype != torch.float32), atol=0.02)
    assert dtype != torch.float32 or torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_cross_entropy_of_parts_is_that_of_the_whole(dtype, monkeypatch):
    # Five tokens at a time, the last part smaller.
    monkeypatch.setitem(LOGITS_AT_ONCE, "cpu", 5 * 30)
    generator = torch.Generator().manual_seed(2)
    logits = 4 * torch.randn(3, 7, 30, generator=generator)
    targets = torch.randint(0, 30, (3, 7), generator=generator)
    ours, theirs = (logits.to(dtype).detach().requires_grad_() for _ in range(2))
    loss = cross_entropy(ours, targets)
    (0.3 * loss).backward()
    expected = F.cross_entropy(theirs.float().flatten(0, 1), targets.flatten())
    (0.3 * expected).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    rtol = 0.01 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize(  # shapes for torch's kernel, for one chunk and for two
    "shape", [(2, 3, 5), (2, GELU_SMALL // 2 + 1), (3, GELU_AT_ONCE // 2 + 7)]
)
def test_gelu_and_its_gradient(shape):
    generator = torch.Generator().manual_seed(3)
    # Strided, as no projection gives it.
    x = 4 * torch.randn(*shape, generator=generator).transpose(0, 1)
    grad = torch.randn(x.shape, generator=generator)
    exact = gradients(lambda x: F.gelu(x, approximate="tanh"), [x], grad, torch.float64)
    ours = gradients(gelu, [x], grad, torch.float32)
    for mine, value in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), value, rtol=2e-6, atol=2e-6)
    with torch.no_grad():
        assert torch.equal(gelu(x), ours[0])


@pytest.mark.parametrize("far", [1e2, 1e4, 1e8])
def test_gelu_far_from_zero_is_a_line_and_nothing(far):
    x = torch.tensor([far, -far]).repeat(GELU_SMALL)
    out, slope = gradients(gelu, [x], torch.ones_like(x), torch.float32)
    assert torch.equal(out, x.clamp(min=0))
    assert torch.equal(slope, (x > 0).float())


def attended(x_BHTh):
    return attention(x_BHTh, x_BHTh, x_BHTh, True)


KEPT = {  # a function that keeps something for its gradient, and its input's shape and type
    "gelu": (gelu, (1, GELU_SMALL + 1), torch.float32),
    "attention": (attended, (1, 2, 3, 8), torch.bfloat16),
    "cross entropy": (lambda x: cross_entropy(x, torch.tensor([[1, 2]])), (1, 2, 5), torch.float32),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_second_derivative_is_refused(case):
    """What is kept for the first one is a constant to autograd: the second would lack a term
    without an error."""
    function, shape, dtype = KEPT[case]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype).requires_grad_()
    out = function(x)
    weight = torch.ones_like(out, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad((out * weight).sum(), x, create_graph=True)
