"""Models and runs that the planner is compared on."""

from dataclasses import replace

from gram_platform.config import ModelConfig, ModuleSpec, RoutingConfig
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.config.training import LLAMA
from gram_platform.planner.memory import CORE_MLP, SHARED
from tests import tiny

DOMAINS = ("core", "lisp", "virology", "nuclear", "cybersecurity")


def model(modules=(), d_mlp=128, num_kv_heads=2) -> ModelConfig:
    return ModelConfig(3, 32, 4, num_kv_heads, d_mlp, 1024, 32, modules)


def specs(kind, width, domains=tiny.DOMAINS[1:], num_heads=0) -> tuple[ModuleSpec, ...]:
    return tuple(ModuleSpec(d, kind, width, num_heads) for d in domains)


MODELS = {
    "dense": model(),
    "gram": model(specs("mlp", 16)),
    "lora": model(specs("lora", 4)),
    "demix": model(specs("mlp", 64, tiny.DOMAINS), d_mlp=0),
    "one key head a head": model(specs("mlp", 16), num_kv_heads=4),
    "llama": replace(model(specs("mlp", 16)), architecture=LLAMA),
    "sgtm": model(specs("reserved", 16)),
    "sgtm heads": model(specs("reserved", 16, num_heads=2)),
    "llama lora": replace(model(specs("lora", 4)), architecture=LLAMA),
}
MASKED = RoutingConfig(
    0.5, 0.0, "uniform", companions="all", p_aux_companion=1.0, spreads_embeddings=True
)
FIVE_B = PAPER_SIZES["5B"].modular(DOMAINS)


def run_of(name, micro_batch=4, passes=2, **parts):
    """A run with `passes` micro-batches a step; every domain often enough that every set steps."""
    window = micro_batch * passes
    sizes = {
        "micro_batch": micro_batch,
        "batch_size": window,
        "draws": (12 * window, 4 * window, 4 * window),
    }
    routing = MASKED if name.startswith("sgtm") else RoutingConfig(0.5, 0.5)
    return tiny.run_config(model=MODELS[name], **{"routing": routing, **sizes, **parts})


CORE_SETS = {SHARED, CORE_MLP}
