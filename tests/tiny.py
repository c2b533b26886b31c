"""Tiny configs and data that several tests share."""

import numpy as np

from gram_platform.config import (
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    ModuleSpec,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
    Slice,
)

DOMAINS = ("core", "lisp", "virology")
SEQ_LEN = 16
VOCAB = 64
HIDDEN = (Slice("core", 24, 12), Slice("lisp", 24, 6), Slice("virology", 24, 6))
LABELLED = tuple(DomainBudget(d, 24, n) for d, n in zip(DOMAINS, (32, 16, 16), strict=True))
HALF_LABELLED = DataConfig("tiny", (*LABELLED, DomainBudget("unlabelled", 24, 32, HIDDEN)))


def model_config(modular: bool = True, d_mlp: int = 32, num_layers: int = 2) -> ModelConfig:
    modules = tuple(ModuleSpec(d, "mlp", 8) for d in DOMAINS[1:]) if modular else ()
    return ModelConfig(num_layers, 16, 4, 2, d_mlp, VOCAB, SEQ_LEN, modules)


def run_config(
    modular: bool = True,
    draws: tuple[int, ...] = (64, 16, 16),
    routing: RoutingConfig | None = None,
    batch_size: int = 8,
    micro_batch: int = 2,
    **parts,
) -> RunConfig:
    budgets = tuple(DomainBudget(d, 24, n) for d, n in zip(DOMAINS, draws, strict=True) if n)
    defaults = {
        "model": model_config(modular),
        "data": DataConfig("tiny", budgets),
        "routing": routing or RoutingConfig(0.5, 0.3),
        "optimizer": OptimizerConfig(3e-3, 0.2, 0.2),
        "eval_points": EvalPoints(0, 4, DOMAINS),
        "seed": 0,
        "precision": "float32",
    }
    return RunConfig(batch_size=batch_size, micro_batch=micro_batch, **{**defaults, **parts})


def arrays(num_sequences: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """Learnable sequences: each domain counts up with a stride of its own."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, VOCAB, (len(DOMAINS), num_sequences, 1))
    steps = np.arange(SEQ_LEN + 1)
    return {
        d: ((starts[i] + (i + 1) * steps) % VOCAB).astype(np.uint16) for i, d in enumerate(DOMAINS)
    }


def materialised(store, view):
    """Reads all of `open_dense` into memory: (config, weights) of a view as one dense model."""
    from gram_platform.store.views import open_dense  # imports torch, which configs do without

    with open_dense(store, view) as (config, weights):
        return config, {name: rows[0 : rows.shape[0]] for name, rows in weights.items()}


def initial_weights(config, seed: int):
    """Yields (name, float32 tensor) of every parameter."""
    from gram_platform.model.transformer import initial_weight, parameter_shapes

    for name, shape in parameter_shapes(config).items():
        yield name, initial_weight(config, seed, name, shape)


def merged_weights(config, weights, active):
    """Merges all weights of a view in memory: those of `merge_config`'s model, by name."""
    from gram_platform.store.views import merge_layer

    merged = {n: w for n, w in weights.items() if n.split(".")[2:3] not in (["aux"], ["heads"])}
    for layer in range(config.num_layers):
        merged |= merge_layer(config, weights, active, f"blocks.{layer}")
    return merged


def documents_in(packed, split: str, domain: str) -> int:
    return packed.manifest["domains"][domain][split]["num_documents"]


def weights_of(directory) -> dict:
    """Reads the weights of a run or an import into memory."""
    with directory.open_weights() as tensors:
        return dict(tensors)


def full_state(learner) -> dict:
    """Gathers all that `load_state` restores as whole CPU tensors by name; every rank must call
    it."""
    values = {
        name: getattr(value, "full_tensor", lambda value=value: value)()
        for name, value in learner._tensors()
    }
    return {name: value.to("cpu", copy=True) for name, value in values.items()}
