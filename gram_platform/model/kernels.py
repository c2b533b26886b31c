"""Computes GELU, rotary embedding and attention, faster than torch on a CPU (FINDINGS.md).

Results match torch's up to rounding. Shapes are as in `transformer.py`. G = H / K query heads share
a key-value head.
"""

import functools
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from gram_platform.config import ModelConfig
from gram_platform.config.layout import (
    CUDNN,
    EFFICIENT,
    FLASH,
    GPU_KERNELS,
    MATH,
    attention_kernel,
    model_kernel,
    require_fast_attention,
)
from gram_platform.model.cpu import PLAIN_ON_CPU, has_fast_code

# Up to this number of values, torch's single pass is as fast.
GELU_SMALL = 2**15
# Values in one chunk, few enough for a CPU's cache.
GELU_AT_ONCE = 2**18
ROTATED_AT_ONCE = 2**18
# Queries per block of the backward pass. Scores above a block's diagonal are wasted.
QUERIES_AT_ONCE = 128
# Scores in one matrix product, few enough for a core's cache.
SCORES_AT_ONCE = 2**20
GELU_1 = 2 * (2 / math.pi) ** 0.5
GELU_3 = 0.044715 * GELU_1


def require_first_order() -> None:
    """Raises RuntimeError under create_graph=True. The kernels have no second derivatives."""
    if torch.is_grad_enabled():
        raise RuntimeError("create_graph=True: expected False, as kernels lack second derivatives")


def gelu(x: Tensor) -> Tensor:
    """Computes GELU in the tanh form.

    On a CPU, large float32 inputs use a sigmoid, which takes a third of tanh's time.
    """
    if _is_fast_on(x) and x.dtype == torch.float32 and x.numel() > GELU_SMALL:
        return _Gelu.apply(x)
    return F.gelu(x, approximate="tanh")


def _is_fast_on(x: Tensor) -> bool:
    is_eager = not torch.compiler.is_compiling()
    return x.device.type == "cpu" and is_eager and has_fast_code()


class _Gelu(torch.autograd.Function):
    """GELU that saves its derivative for the backward pass, instead of its input."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        flat, out = x.reshape(-1), torch.empty_like(x, memory_format=torch.contiguous_format)
        slope = torch.empty_like(out) if ctx.needs_input_grad[0] else None
        for first in range(0, len(flat), GELU_AT_ONCE):
            part = slice(first, first + GELU_AT_ONCE)
            slope_part = None if slope is None else slope.view(-1)[part]
            _fill_gelu(flat[part], out.view(-1)[part], slope_part)
        if slope is not None:
            ctx.save_for_backward(slope)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        require_first_order()
        (slope,) = ctx.saved_tensors
        # In place, so only once.
        return slope.mul_(grad)


def _fill_gelu(x: Tensor, out: Tensor, slope: Tensor | None) -> None:
    """Writes GELU(x) to `out`, and its derivative to `slope` unless `slope` is None.

    With u = GELU_1 x + GELU_3 x^3 and s = sigmoid(u), GELU(x) is x s, and its derivative is
    s + x u' s (1 - s).
    """
    u = torch.addcmul(x.new_full((), GELU_1), x, x, value=GELU_3).mul_(x)
    if slope is None:
        torch.mul(x, u.sigmoid_(), out=out)
        return
    s = torch.sigmoid(u)
    torch.mul(x, s, out=out)
    # A third of x u' = 3 u - 2 GELU_1 x.
    third = u.sub_(x, alpha=GELU_1 * 2 / 3)
    torch.add(s, torch.ops.aten.sigmoid_backward(third, s), alpha=3, out=slope)


def rotate(x_BnTh: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary embedding to queries or keys, in float32.

    Element i of a head is rotated together with element i + h/2. `cos` and `sin` contain each
    value twice, once for each half of h, and are broadcast to `x_BnTh`.
    """
    if _is_fast_on(x_BnTh):
        return _Rotation.apply(x_BnTh, cos, sin)
    first, second = x_BnTh.chunk(2, dim=-1)
    return (x_BnTh * cos + torch.cat([-second, first], dim=-1) * sin).to(x_BnTh.dtype)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BnTh: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x_BnTh, cos, sin, 1.0)

    @staticmethod
    def backward(ctx, grad_BnTh: Tensor):
        cos, sin = ctx.saved_tensors
        return _rotate(grad_BnTh, cos, sin, -1.0), None, None


def _rotate(x_BnTh: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    rows = max(1, ROTATED_AT_ONCE // x_BnTh[0].numel())
    if rows >= len(x_BnTh) or cos.dim() > 2:
        return _rotate_chunk(x_BnTh, cos, sin, direction)
    out = torch.empty_like(x_BnTh)
    for first in range(0, len(x_BnTh), rows):
        part = slice(first, first + rows)
        out[part] = _rotate_chunk(x_BnTh[part], cos, sin, direction)
    return out


def _rotate_chunk(x_BnTh: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    half = x_BnTh.shape[-1] // 2
    float_x = x_BnTh.float()
    out, crossed = float_x * cos, float_x * sin
    out[..., :half].sub_(crossed[..., half:], alpha=direction)
    out[..., half:].add_(crossed[..., :half], alpha=direction)
    return out.to(x_BnTh.dtype)


def attention(
    q_BHTh: Tensor,
    k_BKSh: Tensor,
    v_BKSh: Tensor,
    is_causal: bool,
    mask_BTT: Tensor | None = None,
) -> Tensor:
    """Computes out_BHTh of grouped-query attention with scores scaled by 1 / sqrt(h).

    `mask_BTT` is added to the scores and has their dtype. The mask is -inf above the diagonal, and
    0 or -inf elsewhere.
    """
    needs_gradient = torch.is_grad_enabled() and (q_BHTh.requires_grad or v_BKSh.requires_grad)
    is_square = is_causal and q_BHTh.shape[2] == k_BKSh.shape[2]
    is_bfloat16 = q_BHTh.dtype == torch.bfloat16
    if needs_gradient and is_square and is_bfloat16 and _is_fast_on(q_BHTh):
        return _CausalAttention.apply(q_BHTh, k_BKSh, v_BKSh, mask_BTT)
    if (
        mask_BTT is not None
        and q_BHTh.device.type == "cpu"
        and (torch.compiler.is_compiling() or has_fast_code())
    ):
        return _causal_flash(q_BHTh, k_BKSh, v_BKSh, mask_BTT)[0]
    return F.scaled_dot_product_attention(**_arguments(q_BHTh, k_BKSh, v_BKSh, is_causal, mask_BTT))


def _arguments(
    q_BHTh: Tensor,
    k_BKSh: Tensor,
    v_BKSh: Tensor,
    is_causal: bool,
    mask_BTT: Tensor | None,
) -> dict:
    group, is_masked = q_BHTh.shape[1] // k_BKSh.shape[1], mask_BTT is not None
    is_on_gpu = q_BHTh.device.type != "cpu"
    if is_on_gpu and group > 1 and repeats_keys(q_BHTh.dtype, q_BHTh.shape[3], is_masked):
        k_BKSh, v_BKSh = (x.repeat_interleave(group, dim=1) for x in (k_BKSh, v_BKSh))
    is_grouped = k_BKSh.shape[1] < q_BHTh.shape[1]
    seen = {"is_causal": is_causal} if mask_BTT is None else {"attn_mask": mask_BTT[:, None]}
    return {"query": q_BHTh, "key": k_BKSh, "value": v_BKSh, "enable_gqa": is_grouped, **seen}


def repeats_keys(dtype: torch.dtype, head_dim: int, is_masked: bool) -> bool:
    """Returns True if the GPU's kernel needs separate keys and values for each query head."""
    return attention_kernel("cuda", dtype.itemsize, head_dim, is_masked, gpu_kernels()) == EFFICIENT


@functools.cache
def gpu_kernels() -> frozenset[str]:
    """Returns the attention kernels that this GPU can use. Without a GPU, returns GPU_KERNELS."""
    if not torch.cuda.is_available():
        return GPU_KERNELS
    switches, is_ampere = torch.backends.cuda, torch.cuda.get_device_capability() >= (8, 0)
    usable = {
        FLASH: (
            is_ampere and switches.flash_sdp_enabled() and switches.is_flash_attention_available()
        ),
        CUDNN: is_ampere and switches.cudnn_sdp_enabled() and torch.backends.cudnn.is_available(),
        EFFICIENT: switches.mem_efficient_sdp_enabled(),
    }
    return frozenset(kernel for kernel, is_usable in usable.items() if is_usable)


BACKENDS = {
    SDPBackend.FLASH_ATTENTION: FLASH,
    SDPBackend.CUDNN_ATTENTION: CUDNN,
    SDPBackend.EFFICIENT_ATTENTION: EFFICIENT,
    SDPBackend.MATH: MATH,
}


def kernel_in_use(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> str:
    """Returns the name of the attention kernel that is used to train this model.

    On a GPU, torch chooses the kernel by the model's shapes. Raises ValueError if the context is
    long and the GPU would use plain matrix products.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return model_kernel("cpu", dtype.itemsize, config) if has_fast_code() else PLAIN_ON_CPU
    length, empty = config.seq_len, partial(torch.empty, dtype=dtype, device=device)
    q_BHTh = empty(1, config.num_heads, length, config.head_dim, requires_grad=True)
    k_BKTh = empty(1, config.num_kv_heads, length, config.head_dim, requires_grad=True)
    mask_BTT = empty(1, length, length) if config.document_end >= 0 else None
    asked = _arguments(q_BHTh, k_BKTh, k_BKTh, True, mask_BTT)
    kernel = BACKENDS[SDPBackend(torch._fused_sdp_choice(**asked))]
    require_fast_attention(kernel, config)
    return kernel


def _causal_flash(
    q_BHTh: Tensor, k_BKTh: Tensor, v_BKTh: Tensor, mask_BTT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns out_BHTh of causal attention, and the log-sum-exp of each query's scores.

    Skips the scores above the diagonal, which torch's public function cannot do with a mask.
    """
    group = q_BHTh.shape[1] // k_BKTh.shape[1]
    k_BHTh, v_BHTh = (x.repeat_interleave(group, dim=1) for x in (k_BKTh, v_BKTh))
    mask_B1TT = None if mask_BTT is None else mask_BTT[:, None]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_BHTh, k_BHTh, v_BHTh, is_causal=True, attn_mask=mask_B1TT
    )


class _CausalAttention(torch.autograd.Function):
    """Attention with torch's fused forward pass and a backward pass that is faster on a CPU."""

    @staticmethod
    def forward(
        ctx,
        q_BHTh: Tensor,
        k_BKTh: Tensor,
        v_BKTh: Tensor,
        mask_BTT: Tensor | None,
    ) -> Tensor:
        out_BHTh, logsum_BHT = _causal_flash(q_BHTh, k_BKTh, v_BKTh, mask_BTT)
        ctx.save_for_backward(q_BHTh, k_BKTh, v_BKTh, out_BHTh, logsum_BHT, mask_BTT)
        return out_BHTh

    @staticmethod
    def backward(ctx, grad_BHTh: Tensor):
        require_first_order()
        q_BHTh, k_BKTh, v_BKTh, out_BHTh, logsum_BHT, mask_BTT = ctx.saved_tensors
        B, H, T, h = q_BHTh.shape
        K = k_BKTh.shape[1]
        dot_BHT = (grad_BHTh.float() * out_BHTh).sum(-1)
        ones = k_BKTh.new_ones(1)
        # P = exp(Q K' - logsum) and dS = P (dO V' - dot): two more columns make the products
        # subtract logsum and dot.
        qa = _with_subtracted(q_BHTh, h**-0.5, logsum_BHT).view(B * K, H // K, T, h + 2)
        da = _with_subtracted(grad_BHTh, 1.0, dot_BHT).view(B * K, H // K, T, h + 2)
        ka, va = (
            torch.cat([x, ones.expand(B, K, T, 2)], dim=-1).view(B * K, T, h + 2)
            for x in (k_BKTh, v_BKTh)
        )
        dq = qa.new_empty(B * K, H // K, T, h)
        dk, dv = (torch.zeros(B * K, T, h) for _ in range(2))
        at_once = min(QUERIES_AT_ONCE, T)
        future = torch.ones(at_once, at_once, dtype=torch.bool).triu(1)
        mask = None if mask_BTT is None else mask_BTT.repeat_interleave(K, dim=0)
        rows = max(1, SCORES_AT_ONCE // (H // K * at_once * T))
        for first in range(0, B * K, rows):
            part = slice(first, first + rows)
            for start in range(0, T, QUERIES_AT_ONCE):
                stop = start + QUERIES_AT_ONCE
                here, before = slice(start, stop), slice(0, stop)
                dq[part, :, here] = _query_gradient(
                    qa[part, :, here],
                    ka[part, before],
                    va[part, before],
                    da[part, :, here],
                    future,
                    None if mask is None else mask[part, here, before],
                    dk[part, before],
                    dv[part, before],
                )
        shape = (B, K, T, h)
        return (
            (dq * h**-0.5).view(B, H, T, h),
            dk.view(shape).to(ka.dtype),
            dv.view(shape).to(va.dtype),
            None,
        )


def _with_subtracted(x_BHTh: Tensor, scale: float, subtracted_BHT: Tensor) -> Tensor:
    """Returns x * scale with two more columns. These add up to -`subtracted_BHT`.

    The first new column is -`subtracted_BHT` rounded to x's dtype. The second is the remainder.
    """
    *shape, h = x_BHTh.shape
    out = x_BHTh.new_empty(*shape, h + 2)
    torch.mul(x_BHTh, scale, out=out[..., :h])
    high = subtracted_BHT.to(x_BHTh.dtype)
    out[..., h], out[..., h + 1] = -high, high - subtracted_BHT
    return out


def _query_gradient(qa, ka, va, da, future, mask, dk, dv) -> Tensor:
    """Returns the gradient of a block of queries, not yet divided by sqrt(h).

    Adds the block's terms to the gradients of keys (`dk`) and values (`dv`).
    """
    N, G, T, width = qa.shape
    h = width - 2
    qa, da = qa.reshape(N, G * T, width), da.reshape(N, G * T, width)
    p = torch.bmm(qa, ka.transpose(1, 2))
    if mask is not None:
        p.view(N, G, T, -1).add_(mask[:, None])
    p.exp_().view(N, G, T, -1)[..., -T:].masked_fill_(future[:T, :T], 0.0)
    dv += torch.bmm(p.transpose(1, 2), da[..., :h])
    ds = torch.bmm(da, va.transpose(1, 2)).mul_(p)
    dk += torch.bmm(ds.transpose(1, 2), qa[..., :h])
    return torch.bmm(ds, ka[..., :h]).view(N, G, T, h)
