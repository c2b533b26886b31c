"""GELU, attention and rotary embedding in the forms that are fastest on a CPU; elsewhere torch's own.

Each is the same function as torch's, rounded alike; FINDINGS.md has what they gain. Shapes as in `transformer.py`;
G = H / K query heads share a key-value head.
"""

import math

import torch
import torch.nn.functional as F

BLOCK = 128  # queries whose gradients are computed at once: what lies above the diagonal of a block is wasted
ROTATED = 2**18  # numbers that are turned at once
SCORES = 2**20  # of one matrix product: few enough to stay in a core's cache until they are used up
FEW = 2**15  # numbers for whose GELU torch's one pass is as fast as several
AT_ONCE = 2**18  # numbers whose GELU is computed at once
GELU_1 = 2 * (2 / math.pi) ** 0.5  # GELU(x) = x sigmoid(GELU_1 x + GELU_3 x^3)
GELU_3 = 0.044715 * GELU_1


def require_first_order() -> None:
    """RuntimeError in a backward pass that is to be differentiated again: what was kept for it counts as constant."""
    if torch.is_grad_enabled():
        raise RuntimeError("create_graph=True: expected False, because these kernels have no second derivative")


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form. In float32 a sigmoid is a third of torch's tanh, and leaves the gradient on its way."""
    is_slow = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling()
    if not is_slow or x.numel() <= FEW:
        return F.gelu(x, approximate="tanh")
    return _Gelu.apply(x)


class _Gelu(torch.autograd.Function):
    """Keeps the derivative, in place of the input that torch's keeps."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        flat, out = x.reshape(-1), torch.empty_like(x, memory_format=torch.contiguous_format)
        slope = torch.empty_like(out) if ctx.needs_input_grad[0] else None
        for first in range(0, len(flat), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            _gelu_of(flat[part], out.view(-1)[part], None if slope is None else slope.view(-1)[part])
        if slope is not None:
            ctx.save_for_backward(slope)
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        require_first_order()
        (slope,) = ctx.saved_tensors
        return slope.mul_(grad)  # in place, so that it serves once


def _gelu_of(x: torch.Tensor, out: torch.Tensor, slope: torch.Tensor | None) -> None:
    """Fills `out` with x s and `slope` with s + x u' s (1 - s), where u = GELU_1 x + GELU_3 x^3 and s = sigmoid(u)."""
    u = torch.addcmul(x.new_full((), GELU_1), x, x, value=GELU_3).mul_(x)
    if slope is None:
        torch.mul(x, u.sigmoid_(), out=out)
        return
    s = torch.sigmoid(u)
    torch.mul(x, s, out=out)
    third = u.sub_(x, alpha=GELU_1 * 2 / 3)  # of x u' = 3 u - 2 GELU_1 x
    torch.add(s, torch.ops.aten.sigmoid_backward(third, s), alpha=3, out=slope)


def rotated(x_BnTh: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys turned by their positions' angles, computed in float32; the halves of h are the pairs.

    `cos` and `sin` have the angles twice over along h, in any shape that broadcasts.
    """
    if x_BnTh.device.type == "cpu" and not torch.compiler.is_compiling():
        return _Rotation.apply(x_BnTh, cos, sin)
    first, second = x_BnTh.chunk(2, dim=-1)
    return (x_BnTh * cos + torch.cat([-second, first], dim=-1) * sin).to(x_BnTh.dtype)


class _Rotation(torch.autograd.Function):
    """The gradient of a rotation is the rotation back."""

    @staticmethod
    def forward(ctx, x_BnTh: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x_BnTh, cos, sin, 1.0)

    @staticmethod
    def backward(ctx, grad_BnTh: torch.Tensor):
        cos, sin = ctx.saved_tensors
        return _turned(grad_BnTh, cos, sin, -1.0), None, None


def _turned(x_BnTh: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, direction: float) -> torch.Tensor:
    """Some sequences at a time where all have the same angles: what they pass through in float32 stays in the cache."""
    rows = max(1, ROTATED // x_BnTh[0].numel())
    if rows >= len(x_BnTh) or cos.dim() > 2:
        return _turned_at_once(x_BnTh, cos, sin, direction)
    out = torch.empty_like(x_BnTh)
    for first in range(0, len(x_BnTh), rows):
        part = slice(first, first + rows)
        out[part] = _turned_at_once(x_BnTh[part], cos, sin, direction)
    return out


def _turned_at_once(x_BnTh: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, direction: float) -> torch.Tensor:
    half = x_BnTh.shape[-1] // 2
    float_x = x_BnTh.float()
    out, crossed = float_x * cos, float_x * sin
    out[..., :half].sub_(crossed[..., half:], alpha=direction)
    out[..., half:].add_(crossed[..., :half], alpha=direction)
    return out.to(x_BnTh.dtype)


def attention(
    q_BHTh: torch.Tensor,
    k_BKSh: torch.Tensor,
    v_BKSh: torch.Tensor,
    is_causal: bool,
    mask_BTT: torch.Tensor | None = None,
) -> torch.Tensor:
    """out_BHTh: grouped-query attention, scores over the square root of h.

    `mask_BTT` is added to the scores, in their type: 0 or -inf, and -inf above the diagonal.
    """
    needs_gradient = torch.is_grad_enabled() and (q_BHTh.requires_grad or v_BKSh.requires_grad)
    is_slow = q_BHTh.device.type == "cpu" and q_BHTh.dtype == torch.bfloat16 and not torch.compiler.is_compiling()
    if needs_gradient and is_slow and is_causal and q_BHTh.shape[2] == k_BKSh.shape[2]:
        return _CausalAttention.apply(q_BHTh, k_BKSh, v_BKSh, mask_BTT)
    if mask_BTT is not None and q_BHTh.device.type == "cpu":
        return _masked_flash(q_BHTh, k_BKSh, v_BKSh, mask_BTT)[0]
    if mask_BTT is not None:
        mask_B1TT = mask_BTT[:, None]
        return F.scaled_dot_product_attention(q_BHTh, k_BKSh, v_BKSh, attn_mask=mask_B1TT, enable_gqa=True)
    return F.scaled_dot_product_attention(q_BHTh, k_BKSh, v_BKSh, is_causal=is_causal, enable_gqa=True)


def _masked_flash(
    q_BHTh: torch.Tensor, k_BKTh: torch.Tensor, v_BKTh: torch.Tensor, mask_BTT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out_BHTh, log sums of the scores' exponentials), causal: what lies above the diagonal is not computed.

    Torch's own entrance takes either a mask or the causal form, which with a mask costs twice the products.
    """
    group = q_BHTh.shape[1] // k_BKTh.shape[1]
    k_BHTh, v_BHTh = (x.repeat_interleave(group, dim=1) for x in (k_BKTh, v_BKTh))
    mask_B1TT = None if mask_BTT is None else mask_BTT[:, None]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_BHTh, k_BHTh, v_BHTh, is_causal=True, attn_mask=mask_B1TT
    )


class _CausalAttention(torch.autograd.Function):
    """Torch's fused forward pass, and a backward pass of matrix products, which torch's fused one has not on a CPU."""

    @staticmethod
    def forward(
        ctx, q_BHTh: torch.Tensor, k_BKTh: torch.Tensor, v_BKTh: torch.Tensor, mask_BTT: torch.Tensor | None
    ) -> torch.Tensor:
        out_BHTh, logsum_BHT = _masked_flash(q_BHTh, k_BKTh, v_BKTh, mask_BTT)
        ctx.save_for_backward(q_BHTh, k_BKTh, v_BKTh, out_BHTh, logsum_BHT, mask_BTT)
        return out_BHTh

    @staticmethod
    def backward(ctx, grad_BHTh: torch.Tensor):
        require_first_order()
        q_BHTh, k_BKTh, v_BKTh, out_BHTh, logsum_BHT, mask_BTT = ctx.saved_tensors
        B, H, T, h = q_BHTh.shape
        K = k_BKTh.shape[1]
        dot_BHT = (grad_BHTh.float() * out_BHTh).sum(-1)
        ones = k_BKTh.new_ones(1)
        # P = exp(Q K' - logsum) and dS = P (dO V' - dot): what is subtracted rides on the products as two columns
        qa = _with_columns(q_BHTh, h**-0.5, logsum_BHT).view(B * K, H // K, T, h + 2)
        da = _with_columns(grad_BHTh, 1.0, dot_BHT).view(B * K, H // K, T, h + 2)
        ka, va = (torch.cat([x, ones.expand(B, K, T, 2)], dim=-1).view(B * K, T, h + 2) for x in (k_BKTh, v_BKTh))
        dq = qa.new_empty(B * K, H // K, T, h)
        dk, dv = (torch.zeros(B * K, T, h) for _ in range(2))
        future = torch.ones(min(BLOCK, T), min(BLOCK, T), dtype=torch.bool).triu(1)
        mask = None if mask_BTT is None else mask_BTT.repeat_interleave(K, dim=0)  # [B K, T, T]
        rows = max(1, SCORES // (H // K * min(BLOCK, T) * T))
        for first in range(0, B * K, rows):
            part = slice(first, first + rows)
            for start in range(0, T, BLOCK):
                here, before = slice(start, start + BLOCK), slice(0, start + BLOCK)
                dq[part, :, here] = _block(
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
        return (dq * h**-0.5).view(B, H, T, h), dk.view(shape).to(ka.dtype), dv.view(shape).to(va.dtype), None


def _with_columns(x_BHTh: torch.Tensor, scale: float, subtracted_BHT: torch.Tensor) -> torch.Tensor:
    """x times `scale`, with two more columns, whose sum is what is to be subtracted to twice the precision of one."""
    *shape, h = x_BHTh.shape
    out = x_BHTh.new_empty(*shape, h + 2)
    torch.mul(x_BHTh, scale, out=out[..., :h])
    high = subtracted_BHT.to(x_BHTh.dtype)
    out[..., h], out[..., h + 1] = -high, high - subtracted_BHT
    return out


def _block(qa, ka, va, da, future, mask, dk, dv) -> torch.Tensor:
    """Gradient of a block of queries, before the scale; adds theirs to those of keys and values."""
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
