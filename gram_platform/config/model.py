"""Configures a model: its shape and its auxiliary modules."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gram_platform.config.domains import core_first
from gram_platform.config.identity import added, invalid, require_choice, require_int, require_name, require_real

MODULE_KINDS = ("mlp", "lora")


@dataclass(frozen=True)
class ModuleSpec:
    """A domain's module in every layer: an MLP that adds to the core MLP's output, or a LoRA on its two projections."""

    domain: str
    kind: str
    width: int  # hidden units of an mlp, rank of a lora

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
    document_end: int = added(-1)  # token that ends a document, which attention never crosses; -1: no such token

    def __post_init__(self) -> None:
        for name in ("num_layers", "d_model", "num_heads", "num_kv_heads", "vocab_size", "seq_len"):
            require_int(f"model.{name}", getattr(self, name), 1)
        require_int("model.d_mlp", self.d_mlp, 0)
        require_int("model.document_end", self.document_end, -1, self.vocab_size - 1)
        for name in ("rope_theta", "norm_eps", "init_std"):
            require_real(f"model.{name}", getattr(self, name), 0.0, open_low=True)
        if self.d_model % (2 * self.num_heads):
            raise invalid("model.d_model", self.d_model, f"a multiple of 2 x num_heads = {2 * self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise invalid("model.num_kv_heads", self.num_kv_heads, f"a divisor of num_heads = {self.num_heads}")
        object.__setattr__(self, "modules", core_first(self.modules, lambda m: m.domain))
        domains = [m.domain for m in self.modules]
        if len(set(domains)) != len(domains):
            raise invalid("model.modules", domains, "at most one module for each domain")
        if self.d_mlp == 0 and not domains:
            raise invalid("model.d_mlp", self.d_mlp, "at least 1 in a model without modules")
        if self.d_mlp == 0 and any(m.kind == "lora" for m in self.modules):
            raise invalid("model.modules", "lora", "only mlp modules in a model without a core MLP")

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def module_domains(self) -> tuple[str, ...]:
        return tuple(m.domain for m in self.modules)


def merged_config(config: ModelConfig, active: Mapping[str, float]) -> ModelConfig:
    """Returns a view's dense shape: its MLP is as wide as the core MLP and all active MLP modules together."""
    extra = sum(m.width for m in config.modules if m.domain in active and m.kind == "mlp")
    return replace(config, d_mlp=config.d_mlp + extra, modules=())
