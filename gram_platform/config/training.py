"""Defines the parts of a `RunConfig`, such as model, mixture, routing and optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gram_platform.config.identity import (
    add_field,
    invalid,
    require_choice,
    require_each_once,
    require_fields,
    require_int,
    require_name,
    require_real,
)

# The domain D1 in every config, whatever the corpus calls it.
CORE = "core"
# Under partial labels, the pool of all domains' unlabelled text.
UNLABELLED = "unlabelled"
# The prefix of a domain whose unlabelled text has a pool of its own.
UNLABELLED_OF = "unlabelled:"


def is_unlabelled(name: str) -> bool:
    return name == UNLABELLED or name.startswith(UNLABELLED_OF)


def core_first(domains: tuple, name=lambda domain: domain) -> tuple:
    """Sorts items by domain, core first, so that their order does not change a config's id.

    `name(item)` returns the item's domain.
    """
    return tuple(sorted(domains, key=lambda d: (name(d) != CORE, name(d))))


RESERVED_UNITS = "reserved"
MODULE_KINDS = ("mlp", "lora", RESERVED_UNITS)
STARCODER2, LLAMA = ARCHITECTURES = ("starcoder2", "llama")


@dataclass(frozen=True)
class ModuleSpec:
    """A domain's module. In every layer, it is an MLP beside the core MLP or a LoRA on it.

    A `reserved` module acts as additional hidden units of the core MLP. It has no output bias, and
    its other biases are trained only with the core. A reserved module can have query heads, which
    share an additional key-value head.
    """

    domain: str
    kind: str
    # Hidden units, or the rank of a lora.
    width: int
    num_heads: int = add_field(0)

    def __post_init__(self) -> None:
        require_name("module.domain", self.domain)
        require_choice("module.kind", self.kind, MODULE_KINDS)
        require_int("module.width", self.width, 1)
        require_int("module.num_heads", self.num_heads, 0)
        if self.num_heads and self.kind != RESERVED_UNITS:
            raise invalid("module.num_heads", self.num_heads, "0 except in reserved modules")


@dataclass(frozen=True)
class ModelConfig:
    """The config of a decoder-only transformer with grouped-query attention.

    `d_mlp` is the core MLP's width, or 0 without a core MLP, as in DEMix.
    """

    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    d_mlp: int
    vocab_size: int
    seq_len: int
    modules: tuple[ModuleSpec, ...] = ()
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02
    # The end-of-document token, which attention never crosses; -1: none.
    document_end: int = add_field(-1)
    # The stock model whose block this is.
    architecture: str = add_field(STARCODER2)
    # The width of a head; 0: d_model / num_heads.
    head_width: int = add_field(0)

    def __post_init__(self) -> None:
        sizes = ("num_layers", "d_model", "num_heads", "num_kv_heads", "vocab_size", "seq_len")
        require_fields("model", self, 1, *sizes)
        require_fields("model", self, 0, "d_mlp", "head_width")
        require_fields("model", self, -1, "document_end", high=self.vocab_size - 1)
        require_choice("model.architecture", self.architecture, ARCHITECTURES)
        require_fields("model", self, 0, "rope_theta", "norm_eps", "init_std", open_low=True)
        if self.head_width % 2:
            raise invalid("model.head_width", self.head_width, "an even number")
        if self.head_width * self.num_heads == self.d_model:
            object.__setattr__(self, "head_width", 0)
        if not self.head_width and self.d_model % (2 * self.num_heads):
            allowed = f"a multiple of 2 x num_heads = {2 * self.num_heads}"
            raise invalid("model.d_model", self.d_model, allowed)
        if self.num_heads % self.num_kv_heads:
            allowed = f"a divisor of num_heads = {self.num_heads}"
            raise invalid("model.num_kv_heads", self.num_kv_heads, allowed)
        object.__setattr__(self, "modules", core_first(self.modules, lambda m: m.domain))
        most = max((module.num_heads for module in self.modules), default=0)
        require_int("model.modules.num_heads", most, 0, self.group_size)
        domains = [m.domain for m in self.modules]
        if len(set(domains)) != len(domains):
            raise invalid("model.modules", domains, "at most one module for each domain")
        if self.d_mlp == 0 and not domains:
            raise invalid("model.d_mlp", self.d_mlp, "at least 1 in a model without modules")
        if self.d_mlp == 0 and (others := {m.kind for m in self.modules} - {"mlp"}):
            allowed = "only mlp modules in a model without a core MLP"
            raise invalid("model.modules", sorted(others), allowed)

    @property
    def head_dim(self) -> int:
        return self.head_width or self.d_model // self.num_heads

    @property
    def group_size(self) -> int:
        """The number of query heads that share a key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def is_llama(self) -> bool:
        """True for RMSNorm and SwiGLU, False for LayerNorm and GELU MLPs with biases."""
        return self.architecture == LLAMA

    @property
    def module_domains(self) -> tuple[str, ...]:
        return tuple(m.domain for m in self.modules)


def merge_config(config: ModelConfig, active: Mapping[str, float]) -> ModelConfig:
    """Returns the config of the dense model that results from merging a view's modules.

    Its MLP is as wide as the core MLP and active module MLPs together. Each active module with
    heads adds a key-value head and `group_size` query heads. A Llama then gets further heads until
    the number of query heads divides `d_model`, which Llamas require.
    """
    modules = [m for m in config.modules if m.domain in active]
    width = config.d_mlp + sum(m.width for m in modules if m.kind != "lora")
    num_kv_heads = config.num_kv_heads + sum(m.num_heads > 0 for m in modules)
    is_padded = config.is_llama and num_kv_heads > config.num_kv_heads
    while is_padded and config.d_model % (num_kv_heads * config.group_size):
        num_kv_heads += 1
    return replace(
        config,
        num_heads=num_kv_heads * config.group_size,
        num_kv_heads=num_kv_heads,
        d_mlp=width,
        modules=(),
        head_width=config.head_dim,
    )


ACCUMULATIONS = ("heterogeneous", "uniform")
COMPANIONS = ("one", "subset", "all")
MISDIRECTION = "misdirection"
DISTILLATION = "distillation"
MAXENT_KINDS = ("maxent_kl", "maxent_entropy")
OBJECTIVES = ("cross_entropy", DISTILLATION, *MAXENT_KINDS, MISDIRECTION, "gradient_difference")


@dataclass(frozen=True)
class Slice:
    """`num_sequences` consecutive sequences of a domain's permutation, starting at `first`."""

    domain: str
    first: int
    num_sequences: int

    def __post_init__(self) -> None:
        require_name("slice.domain", self.domain)
        require_int("slice.first", self.first, 0)
        require_int("slice.num_sequences", self.num_sequences, 1)


@dataclass(frozen=True)
class DomainBudget:
    """The `num_draws` sequences that a run draws from a pool as the domain `name`.

    The pool consists of `slices` of any domains. Without `slices`, it is the first `num_sequences`
    of the domain's permutation. Sequences repeat only if `num_draws` > `num_sequences`.
    """

    name: str
    num_sequences: int
    num_draws: int
    slices: tuple[Slice, ...] = ()

    def __post_init__(self) -> None:
        require_name("data.domains.name", self.name)
        require_fields(f"data.domains[{self.name}]", self, 1, "num_sequences", "num_draws")
        ordered = sorted(self.slices, key=lambda p: (p.domain != CORE, p.domain, p.first))
        object.__setattr__(self, "slices", tuple(ordered))
        pooled = sum(part.num_sequences for part in self.pool)
        if pooled != self.num_sequences:
            field = f"data.domains[{self.name}].num_sequences"
            raise invalid(field, self.num_sequences, f"its slices' sum, {pooled}")

    @property
    def pool(self) -> tuple[Slice, ...]:
        return self.slices or (Slice(self.name, 0, self.num_sequences),)


@dataclass(frozen=True)
class DataConfig:
    """The training mixture. `data_id` is the hash of the packed corpus's recipe."""

    data_id: str
    domains: tuple[DomainBudget, ...]

    def __post_init__(self) -> None:
        if not self.data_id:
            raise invalid("data.data_id", self.data_id, "the id of a corpus recipe")
        object.__setattr__(self, "domains", core_first(self.domains, lambda d: d.name))
        require_each_once("data.domains", [d.name for d in self.domains])

    @property
    def num_draws(self) -> int:
        return sum(d.num_draws for d in self.domains)


@dataclass(frozen=True)
class RoutingConfig:
    """Configures what a batch activates and trains. Models without modules ignore probabilities."""

    # p_cr: a core batch also activates and trains a random module.
    p_core_robust: float = 0.0
    # p_as: an auxiliary batch also trains the core.
    p_aux_spread: float = 1.0
    # heterogeneous: a route for each micro-batch. uniform: a route for each window.
    accumulation: str = "heterogeneous"
    # Train only modules: the branches of FT-LoRA and FT-MLP.
    freeze_core: bool = False
    p_aux_spread_of: tuple[tuple[str, float], ...] = add_field(())
    # Relative frequency as companion; (): all equal.
    companion_weights: tuple[tuple[str, float], ...] = add_field(())
    # one; subset: each module with probability 1/2, a random one if none is drawn; or all.
    companions: str = add_field("one")
    # An auxiliary batch activates a random subset of other modules, or all, untrained.
    p_aux_companion: float = add_field(0.0)
    # An auxiliary batch that does not train the core trains the embedding and the norms.
    spreads_embeddings: bool = add_field(False)

    def __post_init__(self) -> None:
        require_fields(
            "routing", self, 0, "p_core_robust", "p_aux_spread", "p_aux_companion", high=1
        )
        require_choice("routing.accumulation", self.accumulation, ACCUMULATIONS)
        require_choice("routing.companions", self.companions, COMPANIONS)
        if self.companions != "one" and self.companion_weights:
            allowed = "() unless companions='one'"
            raise invalid("routing.companion_weights", self.companion_weights, allowed)
        for domain, spread in self.p_aux_spread_of:
            require_real(f"routing.p_aux_spread_of[{domain}]", spread, 0.0, 1.0)
        for domain, weight in self.companion_weights:
            require_real(f"routing.companion_weights[{domain}]", weight, 0.0, open_low=True)
        for name in ("p_aux_spread_of", "companion_weights"):
            pairs = tuple(sorted((domain, float(value)) for domain, value in getattr(self, name)))
            object.__setattr__(self, name, pairs)
            if len(dict(pairs)) < len(pairs):
                raise invalid(f"routing.{name}", pairs, "each domain once")

    def spread(self, domain: str) -> float:
        return dict(self.p_aux_spread_of).get(domain, self.p_aux_spread)


@dataclass(frozen=True)
class OptimizerConfig:
    """Configures AdamW, and the warm-up-stable-decay schedule of its learning rate."""

    peak_lr: float
    warmup_fraction: float
    decay_fraction: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    # On matrices only, unless `decay_vectors`.
    weight_decay: float = 0.1
    # 0: no clipping.
    clip_norm: float = 1.0
    # One norm over all sets [ours], the only value. Every id contains the field.
    clip_scope: str = "global"
    decay_vectors: bool = add_field(False)

    def __post_init__(self) -> None:
        require_fields("optimizer", self, 0, "peak_lr", "eps", open_low=True)
        require_fields(
            "optimizer", self, 0, "warmup_fraction", "decay_fraction", "beta1", "beta2", high=1
        )
        if self.warmup_fraction + self.decay_fraction > 1.0:
            allowed = "at most 1 - warmup_fraction"
            raise invalid("optimizer.decay_fraction", self.decay_fraction, allowed)
        require_fields("optimizer", self, 0, "weight_decay", "clip_norm")
        require_choice("optimizer.clip_scope", self.clip_scope, ("global",))


@dataclass(frozen=True)
class EvalPoints:
    """Configures equally spaced validations during training, with all modules active."""

    # 0: no evaluation while training.
    num_points: int
    # The first sequences of each domain's validation split.
    num_sequences: int
    domains: tuple[str, ...]
    # Stop after this many evaluations without a better mean loss over domains; 0: never.
    patience: int = 0
    # Equally spaced steps after which `probe_norms` measures each module's gradients.
    num_probes: int = add_field(0)

    def __post_init__(self) -> None:
        require_fields("eval_points", self, 0, "num_probes", "patience", "num_points")
        require_fields("eval_points", self, 1, "num_sequences")
        for name in self.domains:
            require_name("eval_points.domains", name)
        object.__setattr__(self, "domains", core_first(self.domains))


@dataclass(frozen=True)
class Objective:
    """The loss to minimise: cross entropy (CE), distillation, or a loss that unlearns domains.

    `distillation` minimises KL(run's start || model). Training begins from a noised copy of the
    start: matrices are (1 - noise) start + noise x noise_scale x Xavier-uniform matrix, biases and
    norm gains are (1 - noise) start + noise x initial value.

    In unlearning, half of each window's micro-batches are from forget domains. The loss is a forget
    term on these + `retain_weight` x CE on the others. The kinds have these forget terms (ME:
    maximum entropy, p: the predicted distribution):

    - `maxent_entropy` (ME): KL(p || uniform) (the paper).
    - `maxent_kl` (ME): KL(uniform || p) (Yuan and others, 2024).
    - `gradient_difference`: -CE.
    - `misdirection`: the squared distance of a layer's activations to a fixed random vector. This
      kind replaces CE with the squared distance to the activations of the run's start.

    If `responses_after` is set, CE counts only tokens between this text and the document's end.
    """

    kind: str = "cross_entropy"
    forget: tuple[str, ...] = ()
    retain_weight: float = 1.0
    # Stop after the first step whose mean ME is at most this; 0: never.
    stop_below: float = add_field(0.0)
    # Misdirection trains this many first layers, and steers the output of the last of them.
    steered_layers: int = add_field(0)
    # Misdirection: length of the forget domains' target vector.
    steering: float = add_field(0.0)
    responses_after: str = add_field("")
    # Distillation: the authors' alpha and beta.
    noise: float = add_field(0.0)
    noise_scale: float = add_field(0.0)

    def __post_init__(self) -> None:
        require_fields(
            "objective",
            self,
            0,
            "stop_below",
            "retain_weight",
            "steered_layers",
            "steering",
            "noise_scale",
        )
        require_fields("objective", self, 0, "noise", high=1)
        if (self.noise or self.noise_scale) and self.kind != DISTILLATION:
            raise invalid("objective.noise", self.noise, "0 without distillation, as noise_scale")
        if self.stop_below and self.kind not in MAXENT_KINDS:
            raise invalid("objective.stop_below", self.stop_below, "0 unless MaxEnt is minimised")
        if self.responses_after and self.kind != "cross_entropy":
            allowed = "no text unless it is cross_entropy"
            raise invalid("objective.responses_after", self.responses_after, allowed)
        require_choice("objective.kind", self.kind, OBJECTIVES)
        object.__setattr__(self, "forget", core_first(self.forget))
        if (self.kind in OBJECTIVES[:2]) == bool(self.forget):
            allowed = "domains to unlearn, () with cross_entropy and distillation"
            raise invalid("objective.forget", self.forget, allowed)
        if {self.steered_layers > 0, self.steering > 0.0} != {self.kind == MISDIRECTION}:
            steered = (self.steered_layers, self.steering)
            allowed = "both above 0 with misdirection, otherwise both 0"
            raise invalid("objective.steered_layers, steering", steered, allowed)
