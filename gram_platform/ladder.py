"""The sizes: the paper's ladder from 50M to 5B, the Simple Stories model, the demo sizes, and laws for any other.

Literals of the paper stand as printed (`tab:grmoe-scaling-training`); what the paper leaves open is marked [ours].
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.config import CORE, ModelConfig, ModuleSpec
from gram_platform.identity import invalid, local_path, require_choice, require_int, require_real

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
    rope_theta: float = ModelConfig.rope_theta
    norm_eps: float = ModelConfig.norm_eps
    start: str = ""  # id of an imported model of the dense shape that training begins with; "": at the seed's weights

    def model(self, d_mlp: int, modules: tuple[ModuleSpec, ...] = (), vocab_size: int | None = None) -> ModelConfig:
        """A model of this size's shape with a core MLP of `d_mlp` and the given modules."""
        shape = (self.num_layers, self.d_model, self.num_heads, self.num_kv_heads)
        rest = (vocab_size or self.vocab_size, self.seq_len, modules, self.rope_theta, self.norm_eps)
        return ModelConfig(*shape, d_mlp, *rest)

    def dense(self) -> ModelConfig:
        return self.model(self.d_dense)

    def modular(self, domains: tuple[str, ...], kind: str = "mlp") -> ModelConfig:
        """The core width and one module of `kind` for each auxiliary domain; a LoRA has an MLP module's parameters."""
        width = self.d_aux if kind == "mlp" else lora_rank(self.d_model, self.d_core, self.d_aux)
        return self.model(self.d_core, tuple(ModuleSpec(d, kind, width) for d in domains if d != CORE))


def imported_size(size: Size, model: ModelConfig, num_parameters: int, import_id: str) -> Size:
    """An imported model as a size, named by its parameters; modules' width, batch, data and rate are `size`'s."""
    shape = ("num_layers", "d_model", "num_heads", "num_kv_heads", "vocab_size", "seq_len", "rope_theta", "norm_eps")
    return dataclasses.replace(
        size,
        name=f"imported-{num_parameters / 1e6:.3g}M",
        d_dense=model.d_mlp,
        d_core=model.d_mlp,
        start=import_id,
        **{name: getattr(model, name) for name in shape},
    )


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


def _as_run(name, lr, batch, micro_batch, num_parameters) -> Size:
    """20 core tokens for each of the authors' parameters; their rate is their law's, unrounded."""
    size, tokens = PAPER_SIZES[name], 20 * num_parameters
    return dataclasses.replace(size, batch_size=batch, micro_batch=micro_batch, core_tokens=tokens, peak_lr=lr)


# As the authors' settings have it (agencyenterprise/modular-pretraining): name, rate, batch, micro-batch of one GPU,
# parameters. 2B and 5B: their 5 and 2 sequences cannot be sharded; 24 (which divides 1,320) and 64 are ours.
AS_RUN_SIZES = {
    size.name: size
    for size in (
        _as_run("50M", 0.0013294663255016177, 72, 9, 47_995_776),
        _as_run("100M", 0.0010740633599129793, 128, 16, 103_201_984),
        _as_run("200M", 0.0008677257023958782, 216, 27, 199_891_008),
        _as_run("400M", 0.0007010274465180751, 368, 23, 402_064_768),
        _as_run("800M", 0.0005663534909876918, 672, 12, 806_509_504),
        _as_run("2B", 0.0004271833607529287, 1320, 24, 2_016_181_632),
        _as_run("5B", 0.00032221152797331777, 2752, 64, 4_967_743_104),
    )
}

# Two CPU cores: minutes to a night. 9 core tokens for each parameter that a token passes (all but the embedding),
# modules of half the MLP, one route a step, 0.6 of the demo law's rate: chosen on seeds 0 to 3, see FINDINGS.md.
DEMO_SIZES = {
    size.name: size
    for size in (
        _small("0.1M", 2, 32, 128, 64, 8, 8, 800_000, 3.9e-3),
        _small("0.15M", 2, 40, 160, 80, 8, 8, 1_060_000, 3.2e-3),
        _small("0.28M", 3, 56, 224, 112, 8, 8, 1_980_000, 2.2e-3),
        _small("0.6M", 4, 96, 384, 192, 8, 8, 5_450_000, 1.2e-3),
        _small("1.2M", 5, 128, 512, 256, 8, 8, 10_520_000, 8e-4),
        _small("3M", 6, 192, 768, 384, 16, 16, 25_530_000, 7e-4),
    )
}
# for laws: few steps, since every rung is trained two dozen times
GRID_DEMO_SIZES = {
    size.name: size
    for size in (
        _small("0.1M", 2, 32, 128, 16, 32, 8, 300_000, 6e-3),
        _small("0.2M", 2, 48, 192, 24, 32, 8, 400_000, 5e-3),
        _small("0.3M", 3, 64, 256, 32, 32, 8, 500_000, 4e-3),
    )
}
SMOKE_SIZES = {
    size.name: size
    for size in (
        _small("tiny", 2, 32, 128, 16, 16, 4, 40_000, 8e-3),
        _small("small", 2, 48, 192, 24, 16, 4, 60_000, 6e-3),
    )
}

# Simple Stories: the core gives up what a module has, so that a forward pass costs what the dense model's does.
# One epoch: the authors' logs have 16,544 steps of 128 x 256 tokens, 99% of their 501,664,802 core and 46,188,871
# auxiliary tokens.
STORIES_STEPS, STORIES_CORE, STORIES_AUX = 16_544, 501_664_802, 46_188_871
STORIES_AUX_SHARE = STORIES_AUX / STORIES_CORE
_STORIES_TOKENS = round(STORIES_STEPS * 128 * 256 / (1 + STORIES_AUX_SHARE))
STORIES_SIZES = {"26M": Size("26M", 8, 512, 8, 2, 2048, 1856, 192, 128, 16, _STORIES_TOKENS, 5e-3, 256, 4096)}
# as run: the whole core beside the modules, one route a step
STORIES_AS_RUN_SIZES = {"26M": dataclasses.replace(STORIES_SIZES["26M"], d_core=2048, micro_batch=128)}
STORIES_SMOKE_SIZES = {"tiny": dataclasses.replace(SMOKE_SIZES["tiny"], d_core=112)}


# ------------------------------------------------------------------------------------------------------- laws


@dataclass(frozen=True)
class Law:
    """Peak learning rate and batch of a dense model of N parameters: coefficient x N ^ exponent each."""

    name: str
    lr_coefficient: float
    lr_exponent: float
    batch_coefficient: float
    batch_exponent: float
    seq_len: int  # tokens of the sequences that the batch counts
    source: str  # where it was measured

    def __post_init__(self) -> None:
        for field in ("name", "source"):
            if not isinstance(getattr(self, field), str):
                raise invalid(f"law.{field}", getattr(self, field), "a text")
        for field in ("lr_coefficient", "batch_coefficient"):
            require_real(f"law.{field}", getattr(self, field), 0.0, open_low=True)
        for field in ("lr_exponent", "batch_exponent"):
            require_real(f"law.{field}", getattr(self, field), -math.inf)
        require_int("law.seq_len", self.seq_len, 1)

    def lr(self, num_parameters: float) -> float:
        return self.lr_coefficient * num_parameters**self.lr_exponent

    def batch(self, num_parameters: float, seq_len: int | None = None) -> float:
        """Sequences of `seq_len` tokens (default: the law's own) that hold as many tokens as the law's batch."""
        sequences = self.batch_coefficient * num_parameters**self.batch_exponent
        return sequences * self.seq_len / (seq_len or self.seq_len)


PAPER_LAW = Law("paper", 0.311, -0.308, 4.93e-5, 0.799, PAPER_CONTEXT, "the paper, `app:lr-bs-scaling`: 50M to 400M")
# of small models on generated stories, where the best batch does not move with size; no law for large ones
DEMO_LAW = Law(
    name="demo",
    lr_coefficient=6.607885487742214,
    lr_exponent=-0.6087045250229418,
    batch_coefficient=6.384464389673658,
    batch_exponent=-0.004234183716755794,
    seq_len=64,
    source="experiments/lr_bs_grid.py, preset demo on stories: 0.1M to 0.3M, 2 seeds, 2026-11-21",
)
LAWS = {law.name: law for law in (PAPER_LAW, DEMO_LAW)}


def load_law(name_or_path: str) -> Law:
    """A law of `LAWS`, or of a JSON file with the fields of `Law` (others are ignored); ValueError names `law`."""
    if name_or_path in LAWS:
        return LAWS[name_or_path]
    path = local_path("law", name_or_path)
    if not path.is_file():
        raise invalid("law", name_or_path, f"one of {', '.join(LAWS)}, or the path of a law's JSON file")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise invalid("law", name_or_path, f"a JSON file ({error})") from error
    names = [field.name for field in dataclasses.fields(Law)]
    absent = [name for name in names if not isinstance(stored, Mapping) or name not in stored]
    if absent:
        raise invalid("law", name_or_path, f"a JSON object with {', '.join(names)}; it lacks {', '.join(absent)}")
    return Law(**{name: stored[name] for name in names})


def sized_by(size: Size, law: Law, num_parameters: int) -> Size:
    """The size with the law's peak learning rate and batch for `num_parameters`, the total of its dense model.

    The law's batch is converted by tokens where its sequences have another length, then rounded to the nearest
    multiple of the micro-batch. A batch below half a micro-batch becomes the divisor of the micro-batch that is nearest
    in ratio, and is its own micro-batch: ranks that divide it also divided the old one.
    """
    peak_lr, sequences = _usable(law, num_parameters, size.seq_len)
    num_micro = round(sequences / size.micro_batch)
    if num_micro:
        return dataclasses.replace(size, peak_lr=peak_lr, batch_size=num_micro * size.micro_batch)
    divisors = [d for d in range(1, size.micro_batch + 1) if size.micro_batch % d == 0]
    batch = min(divisors, key=lambda d: abs(math.log(d / sequences)))
    return dataclasses.replace(size, peak_lr=peak_lr, batch_size=batch, micro_batch=batch)


def _usable(law: Law, num_parameters: int, seq_len: int) -> tuple[float, float]:
    """The law's rate and batch; ValueError where one of them is zero or too large for a float."""
    try:
        values = law.lr(num_parameters), law.batch(num_parameters, seq_len)
    except OverflowError:
        values = math.inf, math.inf
    if not all(0.0 < value < math.inf for value in values):
        allowed = f"a law with a positive, finite rate and batch at {num_parameters:,} parameters, not {values}"
        raise invalid("law", law.name, allowed)
    return values


# ----------------------------------------------------------------------------------------------------- choosing


def choose(names: tuple[str, ...], sizes: dict[str, Size]) -> tuple[Size, ...]:
    """The sizes of these names in the ladder's order; ValueError for an unknown one."""
    for name in names:
        require_choice("sizes", name, tuple(sizes))
    return tuple(size for size in sizes.values() if size.name in names)
