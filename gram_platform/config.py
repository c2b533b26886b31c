"""A run is a value: the frozen dataclasses that determine one training stage, and their ids.

`RunConfig` holds everything that can change a result and nothing else: no paths, names, hardware or tracking.
Two equal configs are the same run wherever they are executed; `run_id` is the hash of the config's canonical JSON.
A variant of a run is `dataclasses.replace(run, ...)`. Nothing but the standard library is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.identity import invalid, require_choice, require_int, require_name, require_real, short_hash

RECIPE_VERSION = 1  # raised when the same config would train to another result; part of every run_id
EVAL_VERSION = 1  # the same for evaluations
CORE = "core"  # the name of the domain D1 in every config, whatever the corpus calls it

MODULE_KINDS = ("mlp",)
ACCUMULATIONS = ("heterogeneous", "uniform")
PRECISIONS = ("float32", "bfloat16")
CLIP_SCOPES = ("global", "per_set")
OBJECTIVES = ("cross_entropy",)
VIEW_RULES = ("constant", "by_domain")


def core_first(domains: tuple, name=lambda domain: domain) -> tuple:
    """The one order of domains: core, then the others by name, so that equal mixtures are equal configs."""
    return tuple(sorted(domains, key=lambda d: (name(d) != CORE, name(d))))


# ------------------------------------------------------------------------------------------------ the config


@dataclass(frozen=True)
class ModuleSpec:
    """One auxiliary module of every layer: a small MLP whose output is added to the core MLP's."""

    domain: str
    kind: str
    width: int  # hidden units

    def __post_init__(self) -> None:
        require_name("module.domain", self.domain)
        require_choice("module.kind", self.kind, MODULE_KINDS)
        require_int("module.width", self.width, 1)


@dataclass(frozen=True)
class ModelConfig:
    """Decoder-only transformer with grouped-query attention; `d_mlp` is the core MLP's width (0: none, as in DEMix)."""

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

    def __post_init__(self) -> None:
        for name in ("num_layers", "d_model", "num_heads", "num_kv_heads", "vocab_size", "seq_len"):
            require_int(f"model.{name}", getattr(self, name), 1)
        require_int("model.d_mlp", self.d_mlp, 0)
        for name in ("rope_theta", "norm_eps", "init_std"):
            require_real(f"model.{name}", getattr(self, name), 0.0, open_low=True)
        if self.d_model % (2 * self.num_heads):
            raise invalid("model.d_model", self.d_model, f"a multiple of 2 x num_heads = {2 * self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise invalid("model.num_kv_heads", self.num_kv_heads, f"a divisor of num_heads = {self.num_heads}")
        object.__setattr__(self, "modules", core_first(self.modules, lambda m: m.domain))
        domains = [m.domain for m in self.modules]
        if len(set(domains)) != len(domains):
            raise invalid("model.modules", domains, "one module for each domain at most")
        if self.d_mlp == 0 and CORE not in domains:
            raise invalid("model.d_mlp", self.d_mlp, f"at least 1 unless a module serves {CORE!r}")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def module_domains(self) -> tuple[str, ...]:
        return tuple(m.domain for m in self.modules)


@dataclass(frozen=True)
class DomainBudget:
    """What a run draws from one domain: `num_draws` sequences out of the first `num_sequences` of its permutation.

    Nothing repeats while num_draws <= num_sequences; beyond that every full pass is a fresh order of the same pool.
    """

    name: str
    num_sequences: int
    num_draws: int

    def __post_init__(self) -> None:
        require_name("data.domains.name", self.name)
        require_int(f"data.domains[{self.name}].num_sequences", self.num_sequences, 1)
        require_int(f"data.domains[{self.name}].num_draws", self.num_draws, 1)


@dataclass(frozen=True)
class DataConfig:
    """The training mixture. `data_id` names the packed corpus by the hash of its recipe."""

    data_id: str
    domains: tuple[DomainBudget, ...]

    def __post_init__(self) -> None:
        if not self.data_id or not isinstance(self.data_id, str):
            raise invalid("data.data_id", self.data_id, "the id of a corpus recipe")
        object.__setattr__(self, "domains", core_first(self.domains, lambda d: d.name))
        names = [d.name for d in self.domains]
        if not names or len(set(names)) != len(names):
            raise invalid("data.domains", names, "one or more domains, each once")

    @property
    def num_draws(self) -> int:
        return sum(d.num_draws for d in self.domains)


@dataclass(frozen=True)
class RoutingConfig:
    """The paper's routing probabilities; a model without modules ignores them."""

    p_core_robust: float = 0.0  # p_cr: a core batch also activates one random module
    p_aux_spread: float = 1.0  # p_as: an auxiliary batch also trains the core
    accumulation: str = "heterogeneous"  # each micro-batch its own route, or one route a window

    def __post_init__(self) -> None:
        require_real("routing.p_core_robust", self.p_core_robust, 0.0, 1.0)
        require_real("routing.p_aux_spread", self.p_aux_spread, 0.0, 1.0)
        require_choice("routing.accumulation", self.accumulation, ACCUMULATIONS)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (one for each parameter set) with a warm-up, stable, decay schedule over the run's steps."""

    peak_lr: float
    warmup_fraction: float
    decay_fraction: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1  # on matrices only
    clip_norm: float = 1.0
    clip_scope: str = "global"

    def __post_init__(self) -> None:
        require_real("optimizer.peak_lr", self.peak_lr, 0.0, open_low=True)
        for name in ("warmup_fraction", "decay_fraction", "beta1", "beta2"):
            require_real(f"optimizer.{name}", getattr(self, name), 0.0, 1.0)
        if self.warmup_fraction + self.decay_fraction > 1.0:
            raise invalid("optimizer.decay_fraction", self.decay_fraction, "at most 1 - warmup_fraction")
        require_real("optimizer.eps", self.eps, 0.0, open_low=True)
        require_real("optimizer.weight_decay", self.weight_decay, 0.0)
        require_real("optimizer.clip_norm", self.clip_norm, 0.0, open_low=True)
        require_choice("optimizer.clip_scope", self.clip_scope, CLIP_SCOPES)


@dataclass(frozen=True)
class EvalPoints:
    """Equally spaced evaluations on the validation split, with every module active (the last is at the end)."""

    num_points: int  # 0: none while training
    num_sequences: int  # of each domain, the first ones of its validation split
    domains: tuple[str, ...]

    def __post_init__(self) -> None:
        require_int("eval_points.num_points", self.num_points, 0)
        require_int("eval_points.num_sequences", self.num_sequences, 1)
        for name in self.domains:
            require_name("eval_points.domains", name)
        object.__setattr__(self, "domains", core_first(self.domains))


@dataclass(frozen=True)
class View:
    """What is evaluated: a run, the weights of its active modules, and where modules come from if not from that run."""

    run_id: str
    weights: tuple[tuple[str, float], ...] = ()  # (domain, weight), sorted, zeros dropped
    sources: tuple[tuple[str, str], ...] = ()  # (domain, run_id) for modules of other runs
    rule: str = "constant"  # by_domain: DEMix, the domain's expert if granted, else the core's

    def __post_init__(self) -> None:
        for domain, weight in self.weights:
            require_name("view.weights", domain)
            require_real(f"view.weights[{domain}]", weight, 0.0, 1.0)
        object.__setattr__(self, "weights", tuple(sorted((d, float(w)) for d, w in self.weights if w)))
        object.__setattr__(self, "sources", tuple(sorted(self.sources)))
        require_choice("view.rule", self.rule, VIEW_RULES)
        stray = sorted(set(dict(self.sources)) - set(dict(self.weights)))
        if stray:
            raise invalid("view.sources", stray, "domains that have a weight in the view")

    @classmethod
    def of(cls, run_id: str, weights: Mapping[str, float] | None = None, **parts) -> "View":
        return cls(run_id, tuple((weights or {}).items()), **parts)

    def active(self, domain: str) -> dict[str, float]:
        """The modules of the forward pass on a batch of `domain`, with their weights."""
        weights = dict(self.weights)
        if self.rule == "constant":
            return weights
        return {domain: weights[domain]} if domain in weights else {CORE: 1.0}

    @property
    def view_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, "view": self})


@dataclass(frozen=True)
class RunConfig:
    """One training stage, completely. Equal configs are the same run."""

    model: ModelConfig
    data: DataConfig
    routing: RoutingConfig
    optimizer: OptimizerConfig
    batch_size: int  # sequences an optimizer step (a window)
    micro_batch: int  # global sequences of one route: it shapes the science, ranks split it
    eval_points: EvalPoints
    seed: int
    precision: str = "bfloat16"  # of the forward and backward pass; master weights and optimizer are float32
    objective: str = "cross_entropy"
    start: View | None = None

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, 1)
        require_int("micro_batch", self.micro_batch, 1)
        require_int("seed", self.seed, 0, 2**63 - 1)
        require_choice("precision", self.precision, PRECISIONS)
        require_choice("objective", self.objective, OBJECTIVES)
        if self.batch_size % self.micro_batch:
            raise invalid("micro_batch", self.micro_batch, f"a divisor of batch_size = {self.batch_size}")
        for domain in self.data.domains:
            if domain.num_draws % self.route_unit:
                allowed = f"a multiple of {self.route_unit} sequences, what one route consumes"
                raise invalid(f"data.domains[{domain.name}].num_draws", domain.num_draws, allowed)
        if self.data.num_draws % self.batch_size:
            allowed = f"draws that add up to whole steps of {self.batch_size} sequences"
            raise invalid("data.domains", self.data.num_draws, allowed)
        if self.eval_points.num_points > self.num_steps:
            raise invalid("eval_points.num_points", self.eval_points.num_points, f"at most the {self.num_steps} steps")

    @property
    def route_unit(self) -> int:
        """Sequences that share one route: a micro-batch, or a whole window under uniform accumulation."""
        return self.micro_batch if self.routing.accumulation == "heterogeneous" else self.batch_size

    @property
    def num_steps(self) -> int:
        return self.data.num_draws // self.batch_size

    @property
    def micro_batches_per_step(self) -> int:
        return self.batch_size // self.micro_batch

    @property
    def num_tokens(self) -> int:
        return self.data.num_draws * self.model.seq_len

    @property
    def run_id(self) -> str:
        return short_hash({"recipe_version": RECIPE_VERSION, "run": self})


@dataclass(frozen=True)
class Evaluation:
    """The losses of one view on fixed validation sequences; a node of a study like a run is."""

    view: View
    data_id: str
    domains: tuple[str, ...]
    num_sequences: int
    split: str = "validation"
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", core_first(self.domains))
        require_int("evaluation.num_sequences", self.num_sequences, 1)
        require_choice("evaluation.split", self.split, ("validation", "train"))
        require_choice("evaluation.precision", self.precision, PRECISIONS)

    @property
    def eval_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, "evaluation": self})


# -------------------------------------------------------------------------------------------------- decoding


def run_from_plain(plain: Mapping) -> RunConfig:
    """The inverse of `to_plain` for a run, validated again."""
    model = dict(plain["model"], modules=tuple(ModuleSpec(**m) for m in plain["model"]["modules"]))
    data = dict(plain["data"], domains=tuple(DomainBudget(**d) for d in plain["data"]["domains"]))
    points = dict(plain["eval_points"], domains=tuple(plain["eval_points"]["domains"]))
    parts = {
        "model": ModelConfig(**model),
        "data": DataConfig(**data),
        "routing": RoutingConfig(**plain["routing"]),
        "optimizer": OptimizerConfig(**plain["optimizer"]),
        "eval_points": EvalPoints(**points),
        "start": None if plain["start"] is None else view_from_plain(plain["start"]),
    }
    return RunConfig(**{**plain, **parts})


def view_from_plain(plain: Mapping) -> View:
    pairs = {key: tuple(tuple(pair) for pair in plain[key]) for key in ("weights", "sources")}
    return View(**{**plain, **pairs})


def evaluation_from_plain(plain: Mapping) -> Evaluation:
    return Evaluation(**{**plain, "view": view_from_plain(plain["view"]), "domains": tuple(plain["domains"])})
