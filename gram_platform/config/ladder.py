"""Defines model sizes, and laws that predict the learning rate and batch of other sizes.

The sizes are the paper's (50M to 5B), one for Simple Stories, and small ones for CPUs. The paper's
numbers are from `tab:grmoe-scaling-training`. [ours] marks choices that the paper leaves open.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.config import CORE, ModelConfig, ModuleSpec
from gram_platform.config.identity import (
    invalid,
    local_path,
    require_fields,
    require_int,
    require_real,
    suggest,
)
from gram_platform.config.plain import from_plain
from gram_platform.config.written import read_json

# The fewest sizes for a fit, since a power law fits any two points.
FEWEST_SIZES = 3
# A law predicts sizes up to this many times beyond its fitted range.
REACH = 10.0
# The GPT-Neo tokenizer's 50,257 tokens, padded.
PAPER_VOCAB = 50_304
PAPER_CONTEXT = 1024
SHAPE: tuple[str, ...] = ("num_layers", "d_model", "num_heads", "num_kv_heads", "vocab_size")
SHAPE += ("seq_len", "rope_theta", "norm_eps", "architecture", "head_width")


@dataclass(frozen=True)
class Size:
    """A model size with its shape, module width, batch size, amount of data and learning rate."""

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    d_dense: int
    # MLP width of the core of modular models.
    d_core: int
    d_aux: int
    batch_size: int
    # Sequences in a forward pass, over all ranks.
    micro_batch: int
    core_tokens: int
    peak_lr: float
    seq_len: int
    vocab_size: int
    precision: str = "bfloat16"
    rope_theta: float = ModelConfig.rope_theta
    norm_eps: float = ModelConfig.norm_eps
    architecture: str = ModelConfig.architecture
    head_width: int = ModelConfig.head_width
    # Id of an imported dense model to start from, or "" for random weights.
    start: str = ""

    def model(self, d_mlp: int, modules: tuple[ModuleSpec, ...] = ()) -> ModelConfig:
        shape = {name: getattr(self, name) for name in SHAPE}
        return ModelConfig(d_mlp=d_mlp, modules=modules, **shape)

    def dense(self) -> ModelConfig:
        return self.model(self.d_dense)

    def modular(self, domains: tuple[str, ...], kind: str = "mlp") -> ModelConfig:
        """Returns the config of a core with a module of `kind` for each auxiliary domain.

        A LoRA module gets as many parameters as an MLP module.
        """
        width = self.d_aux if kind == "mlp" else lora_rank(self.d_model, self.d_core, self.d_aux)
        modules = (ModuleSpec(d, kind, width) for d in domains if d != CORE)
        return self.model(self.d_core, tuple(modules))


def match_import(size: Size, model: ModelConfig, num_parameters: int, import_id: str) -> Size:
    """Returns `size` with the shape and weights of an imported model, and a new name."""
    return dataclasses.replace(
        size,
        name=f"imported-{num_parameters / 1e6:.3g}M",
        d_dense=model.d_mlp,
        d_core=model.d_mlp,
        start=import_id,
        **{name: getattr(model, name) for name in SHAPE},
    )


def lora_rank(d_model: int, d_mlp: int, d_aux: int) -> int:
    """Returns the rank of a LoRA with as many parameters as a module MLP (`app:equal-compute`)."""
    return round((2 * d_model * d_aux + d_aux + d_model) / (2 * (d_model + d_mlp)))


def _ladder(*sizes: Size) -> dict[str, Size]:
    return {size.name: size for size in sizes}


def _paper(name, layers, d_mlp, d_aux, batch, micro_batch, core_tokens, peak_lr) -> Size:
    d_model = d_mlp // 4
    shape = (name, layers, d_model, 8, 2, d_mlp, d_mlp, d_aux)
    return Size(*shape, batch, micro_batch, core_tokens, peak_lr, PAPER_CONTEXT, PAPER_VOCAB)


def _small(name, layers, d_model, d_aux, batch, micro_batch, core_tokens, peak_lr) -> Size:
    """Returns a size that trains on CPU cores within a night [ours].

    The precision is float32, because bfloat16 is no faster at this width (FINDINGS.md).
    """
    shape = (name, layers, d_model, 4, 2, 4 * d_model, 4 * d_model, d_aux)
    return Size(*shape, batch, micro_batch, core_tokens, peak_lr, 64, 1024, "float32")


# Name, layers, core and dense d_mlp, auxiliary d_mlp, batch, micro-batch ([ours] except 800M), core
# tokens, peak rate. 2B: batch 1,328 [ours], since micro-batches do not divide the printed 1,329.
PAPER_SIZES = _ladder(
    _paper("50M", 6, 1536, 128, 72, 24, 960_000_000, 1.3e-3),
    _paper("100M", 9, 2560, 256, 128, 32, 2_100_000_000, 1.1e-3),
    _paper("200M", 13, 3584, 384, 216, 72, 4_000_000_000, 8.7e-4),
    _paper("400M", 18, 4864, 512, 368, 92, 8_000_000_000, 7.0e-4),
    _paper("800M", 24, 6400, 640, 672, 96, 16_100_000_000, 5.7e-4),
    _paper("2B", 32, 9216, 896, 1328, 16, 40_300_000_000, 4.3e-4),
    _paper("5B", 47, 12288, 1216, 2752, 64, 99_400_000_000, 3.2e-4),
)


# For two CPU cores, minutes to a night. Chosen on seeds 0 to 3 (FINDINGS.md), with 9 core
# tokens for each parameter except the embedding, modules half as wide as the MLP, one route a step,
# and 0.6 x the demo law's rate. 3M is 10.6 times beyond that law's sizes, and has 1.4 times the
# rate for its batch of 16.
DEMO_SIZES = _ladder(
    _small("0.1M", 2, 32, 64, 8, 8, 800_000, 3.9e-3),
    _small("0.15M", 2, 40, 80, 8, 8, 1_060_000, 3.2e-3),
    _small("0.28M", 3, 56, 112, 8, 8, 1_980_000, 2.2e-3),
    _small("0.6M", 4, 96, 192, 8, 8, 5_450_000, 1.2e-3),
    _small("1.2M", 5, 128, 256, 8, 8, 10_520_000, 8e-4),
    _small("3M", 6, 192, 384, 16, 16, 25_530_000, 7e-4),
)
# To fit laws, with few steps, because a grid trains every size two dozen times.
GRID_DEMO_SIZES = _ladder(
    _small("0.1M", 2, 32, 16, 32, 8, 300_000, 6e-3),
    _small("0.2M", 2, 48, 24, 32, 8, 400_000, 5e-3),
    _small("0.3M", 3, 64, 32, 32, 8, 500_000, 4e-3),
)
SMOKE_SIZES = _ladder(
    _small("tiny", 2, 32, 16, 16, 4, 40_000, 8e-3),
    _small("small", 2, 48, 24, 16, 4, 60_000, 6e-3),
)

# Simple Stories. Core and one module are together as wide as the dense MLP, so a forward pass costs
# the same. The authors' logs have one epoch of 16,544 steps of 128 x 256 tokens, which are 99% of
# 501,664,802 core + 46,188,871 auxiliary tokens.
STORIES_STEPS, STORIES_CORE, STORIES_AUX = 16_544, 501_664_802, 46_188_871
STORIES_AUX_SHARE = STORIES_AUX / STORIES_CORE
_STORIES_TOKENS = round(STORIES_STEPS * 128 * 256 / (1 + STORIES_AUX_SHARE))
STORIES_SIZES = {
    "26M": Size("26M", 8, 512, 8, 2, 2048, 1856, 192, 128, 16, _STORIES_TOKENS, 5e-3, 256, 4096)
}
CALIBRATED_SIZES = {
    "demo": ("0.15M", "0.28M"),
    "study": DEMO_SIZES,
    "gpu": ("3M", "10M"),
    "stories": STORIES_SIZES,
    "paper": PAPER_SIZES,
}


@dataclass(frozen=True)
class Law:
    """Predicts a dense model's peak learning rate and batch size.

    Each prediction is a coefficient x (number of parameters) ^ an exponent.
    """

    name: str
    lr_coefficient: float
    lr_exponent: float
    batch_coefficient: float
    batch_exponent: float
    seq_len: int
    source: str
    num_sizes: int = 0
    # Parameters of the smallest and the largest size.
    smallest: float = 0.0
    largest: float = 0.0
    no_law: str = ""

    def __post_init__(self) -> None:
        require_fields("law", self, 0, "lr_coefficient", "batch_coefficient", open_low=True)
        require_fields("law", self, -math.inf, "lr_exponent", "batch_exponent")
        require_int("law.seq_len", self.seq_len, 1)
        require_int("law.num_sizes", self.num_sizes, 0)
        require_real("law.smallest", self.smallest, 0.0, open_low=self.num_sizes > 0)
        require_real("law.largest", self.largest, self.smallest, open_low=self.num_sizes > 1)

    def lr(self, num_parameters: float) -> float:
        return self.lr_coefficient * num_parameters**self.lr_exponent

    def batch(self, num_parameters: float, seq_len: int | None = None) -> float:
        """Predicts the batch size in sequences of `seq_len` tokens (default: `Law.seq_len`)."""
        sequences = self.batch_coefficient * num_parameters**self.batch_exponent
        return sequences * self.seq_len / (seq_len or self.seq_len)

    @property
    def flaw(self) -> str:
        """The reason why the law's fit is rejected, or "" if it is accepted."""
        if self.no_law or self.num_sizes >= FEWEST_SIZES:
            return self.no_law
        return f"fitted to {self.num_sizes} sizes, at least {FEWEST_SIZES} are needed"

    def times_beyond(self, num_parameters: float) -> float:
        """Returns the factor by which a model lies outside the range of fitted sizes.

        Returns 1 for a model in the range. Returns inf if the range is unknown.
        """
        if not self.num_sizes:
            return math.inf
        return max(num_parameters / self.largest, self.smallest / num_parameters, 1.0)

    def predicts(self, num_parameters: float) -> bool:
        return not self.flaw and self.times_beyond(num_parameters) <= REACH

    def doubts(self, sizes: Mapping[str, float]) -> tuple[str, ...]:
        """Returns reasons not to use the law for `sizes`, which maps names to parameter counts."""
        doubts = [f"no law: {self.flaw}"] if self.flaw else []
        beyond = {name: self.times_beyond(number) for name, number in sizes.items()}
        far = [f"{name} is {times:,.3g} times" for name, times in beyond.items() if times > REACH]
        if far and self.num_sizes:
            ends = f"{self.smallest:,.0f} to {self.largest:,.0f} parameters"
            fitted = f"the fitted sizes, {ends}"
            doubts.append(f"more than {REACH:g} times beyond {fitted}: {', '.join(far)}")
        return tuple(doubts)


# The authors fitted it to these sizes by name (50e6). The presets have its printed rates for 800M,
# 2B and 5B too. The evidence ends at 4B, so the law itself needs --trust-law for 5B (FINDINGS.md).
PAPER_SOURCE = "the paper, `app:lr-bs-scaling`: 50M to 400M"
PAPER_LAW = Law("paper", 0.311, -0.308, 4.93e-5, 0.799, PAPER_CONTEXT, PAPER_SOURCE, 4, 50e6, 400e6)
# Fitted to small models on generated stories, where the best batch does not depend on size. It does
# not hold for large models. No preset reads it.
DEMO_LAW = Law(
    name="demo",
    lr_coefficient=6.607885487742214,
    lr_exponent=-0.6087045250229418,
    batch_coefficient=6.384464389673658,
    batch_exponent=-0.004234183716755794,
    seq_len=64,
    source="lr_bs_grid, preset demo on stories: 0.1M to 0.3M, 2 seeds, 2026-11-21",
    num_sizes=3,
    smallest=88_704,
    largest=268_096,
    no_law="0.1M: curvature within the noise (1.8 standard errors, two seeds)",
)
LAWS = {law.name: law for law in (PAPER_LAW, DEMO_LAW)}


def load_law(name_or_path: str) -> Law:
    """Returns a law of `LAWS` by name, or reads the fields of `Law` from a JSON file.

    Other fields in the file are ignored. A rejected fit is not an error here (see `Law.flaw`).
    Raises ValueError for an unknown name or an invalid file.
    """
    if name_or_path in LAWS:
        return LAWS[name_or_path]
    try:
        stored = read_json(local_path("law", name_or_path))
    except ValueError as error:
        allowed = f"one of {', '.join(LAWS)}, or a law's JSON file ({error})"
        raise invalid("law", name_or_path, allowed + suggest(name_or_path, LAWS)) from error
    fields = {field.name: field.default for field in dataclasses.fields(Law)}
    values = {name: stored[name] for name in fields if name in stored}
    needed = [name for name, default in fields.items() if default is dataclasses.MISSING]
    if lacking := [name for name in needed if name not in values]:
        why = f" (no law: {values['no_law']})" if values.get("no_law") else ""
        expected = f"a JSON object that also has {', '.join(lacking)}{why}"
        raise invalid("law", name_or_path, expected)
    return from_plain(Law, values, ("law",))


def require_evidence(law: Law, name: str, sizes: Mapping[str, float]) -> None:
    if doubts := law.doubts(sizes):
        allowed = "a law whose evidence covers the sizes, or --trust-law"
        raise invalid("law", name, f"{allowed}; {'; '.join(doubts)}")


def apply_law(size: Size, law: Law, num_parameters: int) -> Size:
    """Returns the size with the peak learning rate and batch that the law predicts.

    `num_parameters` counts the dense model's parameters. The law predicts the tokens in a batch,
    whatever the sequence length. The batch is rounded to whole micro-batches. A batch that rounds
    to 0 becomes one micro-batch, whose size is the divisor of `micro_batch` nearest to the
    prediction on a log scale. Raises ValueError for a prediction that is not positive and finite.
    """
    try:
        peak_lr = law.lr(num_parameters)
        sequences = law.batch(num_parameters, size.seq_len)
    except OverflowError:
        peak_lr = sequences = math.inf
    if not (0.0 < peak_lr < math.inf and 0.0 < sequences < math.inf):
        allowed = f"a law with a positive, finite rate and batch at {num_parameters:,} parameters"
        raise invalid("law", law.name, f"{allowed}, found {(peak_lr, sequences)}")
    num_micro = round(sequences / size.micro_batch)
    if num_micro:
        return dataclasses.replace(size, peak_lr=peak_lr, batch_size=num_micro * size.micro_batch)
    divisors = [d for d in range(1, size.micro_batch + 1) if size.micro_batch % d == 0]
    batch = min(divisors, key=lambda d: abs(math.log(d / sequences)))
    return dataclasses.replace(size, peak_lr=peak_lr, batch_size=batch, micro_batch=batch)
