"""Defines a decoder-only transformer with grouped-query attention, a core MLP and modules.

Blocks follow StarCoder2 (LayerNorm, GELU) or Llama (RMSNorm, SwiGLU). A layer adds the core MLP's
output and each active module's weighted output.

Shapes: B sequences, T tokens, S tokens seen, D d_model, F hidden units, H heads, K key-value heads,
h head_dim, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from gram_platform.config import ModelConfig, ModuleSpec
from gram_platform.config.identity import invalid
from gram_platform.config.routing import CORE_MLP, EMBEDDINGS, SHARED, module_set
from gram_platform.config.training import RESERVED_UNITS
from gram_platform.model.kernels import attention, gelu, rotate
from gram_platform.model.layers import (
    ActiveModules,
    Embedding,
    LayerNorm,
    Linear,
    RMSNorm,
    Rows,
    add_output,
)

NO_MODULES: Mapping[str, float] = {}


class Rotary(nn.Module):
    """Rotary position embedding in the half-split convention. Checkpoints omit its tables."""

    def __init__(self, head_dim: int, seq_len: int, theta: float):
        super().__init__()
        self.head_dim, self.seq_len, self.theta = head_dim, seq_len, theta
        self.register_buffer("cos_Th", torch.empty(seq_len, head_dim), persistent=False)
        self.register_buffer("sin_Th", torch.empty(seq_len, head_dim), persistent=False)
        self.reset_tables()

    def reset_tables(self) -> None:
        """Computes the tables, unless they are on the meta device."""
        if self.cos_Th.is_meta:
            return
        frequencies = self.theta ** (
            -torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        )
        angles = torch.arange(self.seq_len, dtype=torch.float64)[:, None] * frequencies
        angles_Th = torch.cat([angles, angles], dim=-1)
        self.cos_Th.copy_(angles_Th.cos())
        self.sin_Th.copy_(angles_Th.sin())

    def forward(self, x_BHTh: Tensor, first: int = 0) -> Tensor:
        """Rotates queries or keys x_BHTh, whose first token is at position `first`."""
        stop = first + x_BHTh.shape[2]
        return rotate(x_BHTh, self.cos_Th[first:stop], self.sin_Th[first:stop])


Heads = tuple[Tensor, Tensor, Tensor]


class Attention(nn.Module):
    """Causal grouped-query attention without biases: x_BTD -> x_BTD."""

    def __init__(self, config: ModelConfig, num_heads: int, num_kv_heads: int):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = config.head_dim
        qkv_width = (num_heads + 2 * num_kv_heads) * config.head_dim
        self.qkv_proj = Linear(config.d_model, qkv_width, False)
        self.o_proj = Linear(num_heads * config.head_dim, config.d_model, False)

    def forward(
        self,
        x_BTD: Tensor,
        num_trained: int | None,
        rotary: Rotary,
        mask_BTT: Tensor | None = None,
    ) -> Tensor:
        heads = self.heads(x_BTD, rotary, num_trained=num_trained)
        return self.attend(*heads, True, mask_BTT, num_trained)

    def heads(
        self, x_BTD: Tensor, rotary: Callable, first: int = 0, num_trained: int | None = None
    ) -> Heads:
        """Returns (q_BHTh, k_BKTh, v_BKTh). Rotates queries and keys from position `first` on."""
        B, T, _ = x_BTD.shape
        heads_BTnh = self.qkv_proj(x_BTD, num_trained).view(B, T, -1, self.head_dim)
        qk_BTnh, v_BTKh = heads_BTnh.split(
            [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=2
        )
        qk_BnTh = rotary(qk_BTnh.transpose(1, 2), first)
        q_BHTh, k_BKTh = qk_BnTh.split([self.num_heads, self.num_kv_heads], dim=1)
        return q_BHTh, k_BKTh, v_BTKh.transpose(1, 2)

    def attend(
        self,
        q_BHTh: Tensor,
        k_BKSh: Tensor,
        v_BKSh: Tensor,
        is_causal: bool,
        mask_BTT: Tensor | None = None,
        num_trained: int | None = None,
    ) -> Tensor:
        """Attends from T queries to S keys and values. Returns the projected x_BTD."""
        out_BHTh = attention(q_BHTh, k_BKSh, v_BKSh, is_causal, mask_BTT)
        return self.o_proj(out_BHTh.transpose(1, 2).flatten(2), num_trained)


class Lora(nn.Module):
    """Low-rank updates to the core MLP's projections: W + t B A with weight t. B starts at zero."""

    def __init__(self, config: ModelConfig, rank: int):
        super().__init__()
        d_model, d_mlp = config.d_model, config.d_mlp
        self.fc_a = Linear(d_model, rank, bias=False)
        self.fc_b = Linear(rank, d_mlp, bias=False)
        self.proj_a = Linear(d_mlp, rank, bias=False)
        self.proj_b = Linear(rank, d_model, bias=False)
        if config.is_llama:
            self.gate_a = Linear(d_model, rank, bias=False)
            self.gate_b = Linear(rank, d_mlp, bias=False)

    def change(self, name: str, x: Tensor, num_trained: int | None) -> Tensor:
        """Returns the LoRA's unweighted addition to the output of `name` (fc, gate or proj)."""
        a, b = getattr(self, f"{name}_a"), getattr(self, f"{name}_b")
        return b(a(x, num_trained), num_trained)


class Mlp(nn.Module):
    """Maps x_BTD -> x_BTD with StarCoder2's tanh GELU and biases, or with Llama's SwiGLU."""

    def __init__(self, config: ModelConfig, width: int, has_output_bias: bool = True):
        super().__init__()
        self.c_gate = Linear(config.d_model, width, bias=False) if config.is_llama else None
        self.c_fc = Linear(config.d_model, width, bias=not config.is_llama)
        self.c_proj = Linear(width, config.d_model, bias=has_output_bias and not config.is_llama)

    def forward(
        self,
        x_BTD: Tensor,
        num_trained: int | None = None,
        loras: Iterable[tuple[Lora, float | Rows]] = (),
    ) -> Tensor:
        """Applies the MLP with the active LoRAs in `loras`."""
        hidden_BTF = self.c_fc(x_BTD, num_trained)
        gate_BTF = None if self.c_gate is None else self.c_gate(x_BTD, num_trained)
        for lora, active in loras:
            hidden_BTF = add_output(hidden_BTF, partial(lora.change, "fc"), x_BTD, active)
            if gate_BTF is not None:
                gate_BTF = add_output(gate_BTF, partial(lora.change, "gate"), x_BTD, active)
        hidden_BTF = activate(hidden_BTF, gate_BTF)
        out_BTD = self.c_proj(hidden_BTF, num_trained)
        for lora, active in loras:
            out_BTD = add_output(out_BTD, partial(lora.change, "proj"), hidden_BTF, active)
        return out_BTD


def activate(hidden_BTF: Tensor, gate_BTF: Tensor | None) -> Tensor:
    return gelu(hidden_BTF) if gate_BTF is None else F.silu(gate_BTF) * hidden_BTF


def make_norm(config: ModelConfig) -> nn.Module:
    return (RMSNorm if config.is_llama else LayerNorm)(config.d_model, eps=config.norm_eps)


class Block(nn.Module):
    """A layer: attention, then the core MLP and active modules, which share a normalised input.

    The attention heads of active modules run in parallel with the core's.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = Attention(config, config.num_heads, config.num_kv_heads)
        self.ln_2 = make_norm(config)
        self.mlp = Mlp(config, config.d_mlp) if config.d_mlp else None
        self.aux = nn.ModuleDict({m.domain: _make_module(config, m) for m in config.modules})
        self.heads = nn.ModuleDict(
            {m.domain: Attention(config, m.num_heads, 1) for m in config.modules if m.num_heads}
        )

    def forward(
        self,
        x_BTD: Tensor,
        rotary: Rotary,
        active: ActiveModules,
        mask_BTT: Tensor | None = None,
        num_trained: int | None = None,
    ) -> Tensor:
        modules = [(self.aux[domain], rows) for domain, rows in active.items()]
        loras = [pair for pair in modules if isinstance(pair[0], Lora)]
        heads = [(self.heads[d], rows) for d, rows in active.items() if d in self.heads]
        x_BTD, normed_BTD = self.trunk(x_BTD, rotary, loras, heads, mask_BTT, num_trained)
        for module, rows in modules:
            if not isinstance(module, Lora):
                x_BTD = add_output(x_BTD, module, normed_BTD, rows)
        return x_BTD

    def trunk(
        self,
        x_BTD: Tensor,
        rotary: Rotary,
        loras: list[tuple[Lora, float | Rows]],
        heads: list[tuple[Callable, float | Rows]],
        mask_BTT: Tensor | None,
        num_trained: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the layer's output before auxiliary MLPs, and these MLPs' normalised input."""
        normed_BTD = self.ln_1(x_BTD, num_trained)
        x_BTD = x_BTD + self.attn(normed_BTD, num_trained, rotary, mask_BTT)
        for head, rows in heads:
            mask = mask_BTT
            if mask is not None and isinstance(rows, Rows):
                mask = mask.index_select(0, rows.index_R)
            attend = partial(head, rotary=rotary, mask_BTT=mask)
            x_BTD = add_output(x_BTD, attend, normed_BTD, rows)
        normed_BTD = self.ln_2(x_BTD, num_trained)
        if self.mlp is not None:
            x_BTD = x_BTD + self.mlp(normed_BTD, num_trained, loras)
        return x_BTD, normed_BTD


def _make_module(config: ModelConfig, spec: ModuleSpec) -> nn.Module:
    if spec.kind == "lora":
        return Lora(config, spec.width)
    return Mlp(config, spec.width, has_output_bias=spec.kind != RESERVED_UNITS)


class Transformer(nn.Module):
    """Maps tokens_BT to logits_BTV, with the modules in `active` (domain -> weight) switched on."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        # nn.Embedding's own draw on the meta device takes a second: it imports torch's compiler.
        embedding = torch.empty(config.vocab_size, config.d_model)
        self.wte = Embedding.from_pretrained(embedding, freeze=False)
        self.rotary = Rotary(config.head_dim, config.seq_len, config.rope_theta)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.ln_f = make_norm(config)
        self.lm_head = Linear(config.d_model, config.vocab_size, bias=False)
        # If false, the backward pass recomputes every block's activations.
        self.keeps_activations = True

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def forward(
        self,
        tokens_BT: Tensor,
        active: ActiveModules = NO_MODULES,
        num_trained: int | None = None,
    ) -> Tensor:
        """Returns logits_BTV.

        Only the first `num_trained` sequences train shared parameters and the core. By default,
        all sequences do.
        """
        x_BTD = self.wte(tokens_BT, num_trained)
        ordered = {d: active[d] for d in self.config.module_domains if d in active}
        if len(ordered) != len(active):
            allowed = "modules of this model: " + ", ".join(self.config.module_domains)
            raise invalid("active", dict(active), allowed)
        is_kept = self.keeps_activations or not torch.is_grad_enabled()
        apply = Block.__call__ if is_kept else _checkpoint
        mask_BTT = document_mask(tokens_BT, self.config.document_end, x_BTD.dtype)
        for block in self.blocks:
            x_BTD = apply(block, x_BTD, self.rotary, ordered, mask_BTT, num_trained)
        return self.lm_head(self.ln_f(x_BTD, num_trained), num_trained)


def document_mask(tokens_BT: Tensor, document_end: int, dtype: torch.dtype) -> Tensor | None:
    """Returns the mask [B, T, T] to add to scores, or None if `document_end` is negative.

    The mask is 0 if the key is in the query's document and not after the query, otherwise -inf. A
    `document_end` token belongs to the document that it ends.
    """
    if document_end < 0:
        return None
    ends_BT = tokens_BT == document_end
    document_BT = ends_BT.cumsum(dim=1) - ends_BT.long()
    seen_BTT = (document_BT[:, :, None] == document_BT[:, None, :]).tril_()
    zeros_BTT = torch.zeros(seen_BTT.shape, dtype=dtype, device=seen_BTT.device)
    return zeros_BTT.masked_fill_(~seen_BTT, -torch.inf)


def _checkpoint(block: Block, *inputs) -> Tensor:
    # An early stop inside a block would skip its modules' hooks.
    with set_checkpoint_early_stop(False):
        return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)


def parameter_set(name: str) -> str:
    """Returns the set that a parameter belongs to: shared, core_mlp or a module's set."""
    parts = name.split(".")
    if parts[0] != "blocks" or parts[2] not in ("mlp", "aux", "heads"):
        return SHARED
    return CORE_MLP if parts[2] == "mlp" else module_set(parts[3])


def is_module(name: str) -> bool:
    return parameter_set(name) not in (SHARED, CORE_MLP)


def is_trained(config: ModelConfig, name: str, trained: Collection[str]) -> bool:
    """Returns True if training the parameter sets in `trained` changes the parameter `name`."""
    of_set = parameter_set(name)
    if of_set == SHARED and EMBEDDINGS in trained:
        return name.startswith("wte") or "ln_" in name
    units = {module_set(m.domain) for m in config.modules if m.kind == RESERVED_UNITS}
    is_bias_of_units = of_set in units and name.endswith("bias")
    return of_set in trained and (CORE_MLP in trained or not is_bias_of_units)


def parameters_by_set(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Groups a model's parameters by set, in the model's order: {set: {name: parameter}}."""
    sets: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        sets.setdefault(parameter_set(name), {})[name] = parameter
    return sets


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter by name."""
    # One block is built, since all are alike.
    with torch.device("meta"):
        model = Transformer(replace(config, num_layers=1))
    first, layers = "blocks.0.", range(config.num_layers)
    every = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shapes = {name: shape for name, shape in every.items() if not name.startswith(first)}
    block = {name.removeprefix(first): every[name] for name in every if name not in shapes}
    return shapes | {f"blocks.{n}.{name}": shape for n in layers for name, shape in block.items()}


def initial_weight(config: ModelConfig, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Returns a parameter's initial float32 value, which depends only on the arguments.

    Weights are normal with standard deviation `init_std`, which is divided by sqrt(2 x layers) for
    projections into the residual stream (as in GPT-2; the paper does not say). Biases are 0, and
    norm gains are 1. A LoRA's B is 0, and its A has variance 1 / (3 fan-in), our choice.
    """
    if name.endswith(("bias", "fc_b.weight", "gate_b.weight", "proj_b.weight")):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.ones(shape)
    std = config.init_std
    if name.endswith(("c_proj.weight", "o_proj.weight")):
        std /= (2 * config.num_layers) ** 0.5
    elif name.endswith(("fc_a.weight", "gate_a.weight", "proj_a.weight")):
        std = (3 * shape[1]) ** -0.5
    return torch.randn(shape, generator=seed_generator(seed, name)) * std


def seed_generator(*names: object) -> torch.Generator:
    """Returns a CPU generator whose seed depends only on `names`."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def build(config: ModelConfig, weights: Iterable[tuple[str, Tensor]]) -> Transformer:
    """Builds a float32 model on the CPU from (name, tensor) pairs of all parameters."""
    with torch.device("meta"):
        model = Transformer(config)
    model.to_empty(device="cpu")
    model.rotary.reset_tables()
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for name, value in weights:
            parameters[name].copy_(value)
    return model
