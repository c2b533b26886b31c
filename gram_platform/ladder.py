"""The sizes: the paper's ladder from 50M to 5B, the Simple Stories model, the demo sizes, and laws for any other.

Literals of the paper stand as printed (`tab:grmoe-scaling-training`); what the paper leaves open is marked [ours].
"""

import dataclasses
from dataclasses import dataclass

from gram_platform.config import CORE, ModelConfig, ModuleSpec
from gram_platform.identity import require_choice

PAPER_VOCAB = 50_304  # the GPT-Neo tokenizer's 50,257 padded
PAPER_CONTEXT = 1024


@dataclass(frozen=True)
class Size:
    """One rung: the dense model's shape, its module width, batch, data and learning rate."""

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    d_dense: int  # MLP width of dense models
    d_core: int  # MLP width of the core of modular models
    d_aux: int  # width of each auxiliary module
    batch_size: int  # sequences
    micro_batch: int  # global sequences of one route
    core_tokens: int
    peak_lr: float
    seq_len: int
    vocab_size: int
    precision: str = "bfloat16"

    def model(self, d_mlp: int, modules: tuple[ModuleSpec, ...] = (), vocab_size: int | None = None) -> ModelConfig:
        """A model of this size's shape with a core MLP of `d_mlp` and the given modules."""
        shape = (self.num_layers, self.d_model, self.num_heads, self.num_kv_heads)
        return ModelConfig(*shape, d_mlp, vocab_size or self.vocab_size, self.seq_len, modules)

    def dense(self) -> ModelConfig:
        return self.model(self.d_dense)

    def modular(self, domains: tuple[str, ...], kind: str = "mlp") -> ModelConfig:
        """The core width and one module of `kind` for each auxiliary domain; a LoRA has an MLP module's parameters."""
        width = self.d_aux if kind == "mlp" else lora_rank(self.d_model, self.d_core, self.d_aux)
        return self.model(self.d_core, tuple(ModuleSpec(d, kind, width) for d in domains if d != CORE))


def lora_rank(d_model: int, d_mlp: int, d_aux: int) -> int:
    """The rank whose LoRA has an auxiliary MLP's parameters: the paper's formula (`app:equal-compute`), rounded."""
    return round((2 * d_model * d_aux + d_aux + d_model) / (2 * (d_model + d_mlp)))


def _paper(name, layers, d_mlp, d_aux, batch, micro_batch, core_tokens, peak_lr) -> Size:
    d_model = d_mlp // 4
    shape = (name, layers, d_model, 8, 2, d_mlp, d_mlp, d_aux)
    return Size(*shape, batch, micro_batch, core_tokens, peak_lr, PAPER_CONTEXT, PAPER_VOCAB)


def _small(name, layers, d_model, d_mlp, d_aux, batch, micro_batch, core_tokens, peak_lr) -> Size:
    """For minutes on a CPU core [ours]. float32: at these widths bfloat16 is no faster there (FINDINGS.md)."""
    shape = (name, layers, d_model, 4, 2, d_mlp, d_mlp, d_aux)
    return Size(*shape, batch, micro_batch, core_tokens, peak_lr, 64, 1024, "float32")


# name: layers, core and dense d_mlp, aux d_mlp, batch, micro-batch [ours but for 800M], core tokens, peak LR.
# 2B: batch 1,328 [ours], the printed 1,329 does not divide.
PAPER_SIZES = {
    size.name: size
    for size in (
        _paper("50M", 6, 1536, 128, 72, 24, 960_000_000, 1.3e-3),
        _paper("100M", 9, 2560, 256, 128, 32, 2_100_000_000, 1.1e-3),
        _paper("200M", 13, 3584, 384, 216, 72, 4_000_000_000, 8.7e-4),
        _paper("400M", 18, 4864, 512, 368, 92, 8_000_000_000, 7.0e-4),
        _paper("800M", 24, 6400, 640, 672, 96, 16_100_000_000, 5.7e-4),
        _paper("2B", 32, 9216, 896, 1328, 16, 40_300_000_000, 4.3e-4),
        _paper("5B", 47, 12288, 1216, 2752, 64, 99_400_000_000, 3.2e-4),
    )
}

DEMO_SIZES = {
    size.name: size
    for size in (
        _small("0.2M", 2, 48, 192, 24, 32, 8, 400_000, 5e-3),
        _small("0.3M", 3, 64, 256, 32, 32, 8, 500_000, 4e-3),
        _small("0.6M", 4, 96, 384, 48, 32, 8, 650_000, 3e-3),
    )
}
SMOKE_SIZES = {
    size.name: size
    for size in (
        _small("tiny", 2, 32, 128, 16, 16, 4, 40_000, 8e-3),
        _small("small", 2, 48, 192, 24, 16, 4, 60_000, 6e-3),
    )
}

# Simple Stories: the core gives up what a module has, so that a forward pass costs what the dense model's does
STORIES_SIZES = {"26M": Size("26M", 8, 512, 8, 2, 2048, 1856, 192, 128, 16, 377_000_000, 5e-3, 256, 4096)}
STORIES_DEMO_SIZES = {"0.3M": dataclasses.replace(DEMO_SIZES["0.3M"], d_core=224)}
STORIES_SMOKE_SIZES = {"tiny": dataclasses.replace(SMOKE_SIZES["tiny"], d_core=112)}


def law_lr(num_parameters: float) -> float:
    """The paper's law for the peak learning rate: 0.311 N^-0.308 (R2 0.991)."""
    return 0.311 * num_parameters**-0.308


def law_batch(num_parameters: float) -> float:
    """The paper's law for the batch in sequences of 1,024 tokens: 4.93e-5 N^0.799 (R2 0.957)."""
    return 4.93e-5 * num_parameters**0.799


def choose(names: tuple[str, ...], sizes: dict[str, Size]) -> tuple[Size, ...]:
    """The sizes of these names in the ladder's order; ValueError for an unknown one."""
    for name in names:
        require_choice("sizes", name, tuple(sizes))
    return tuple(size for size in sizes.values() if size.name in names)
