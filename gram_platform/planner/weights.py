"""Lists a model's parameters by name, set, sharding group and shape, and counts the values on each rank."""

import math
from dataclasses import dataclass
from functools import lru_cache

from gram_platform.config import ModelConfig
from gram_platform.config.routing import CORE_MLP, SHARED, module_set


@dataclass(frozen=True)
class Weight:
    """One parameter. A `group` is sharded, gathered and reduced together ("": the root's group)."""

    name: str
    set: str
    group: str
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    def shard(self, rank: int, num_ranks: int) -> int:
        """Counts values of this rank's rows: dimension 0 in chunks of ceil(rows / ranks), as torch.chunk cuts it."""
        rows, chunk = self.shape[0], -(-self.shape[0] // num_ranks)
        return (min(rows, (rank + 1) * chunk) - min(rows, rank * chunk)) * (self.num_values // rows)

    def padded_shard(self, num_ranks: int) -> int:
        """Counts values that every rank stores: FSDP2 pads ranks of few or no rows to the first rank's size."""
        return self.shard(0, num_ranks)


@lru_cache(maxsize=256)
def model_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """Lists the parameters of `model.transformer.Transformer`, grouped as `train.sharding` shards them."""
    d_model, vocab = config.d_model, config.vocab_size
    weights = [
        Weight("wte.weight", SHARED, "", (vocab, d_model)),
        *_norm("ln_f", "", d_model),
        Weight("lm_head.weight", SHARED, "", (vocab, d_model)),
    ]
    for layer in range(config.num_layers):
        weights += _block(config, f"blocks.{layer}")
    return tuple(weights)


def _norm(name: str, group: str, d_model: int) -> list[Weight]:
    return [Weight(f"{name}.{part}", SHARED, group, (d_model,)) for part in ("weight", "bias")]


def _block(config: ModelConfig, block: str) -> list[Weight]:
    d_model = config.d_model
    qkv_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    weights = [
        *_norm(f"{block}.ln_1", block, d_model),
        Weight(f"{block}.attn.qkv_proj.weight", SHARED, block, (qkv_width, d_model)),
        Weight(f"{block}.attn.o_proj.weight", SHARED, block, (d_model, d_model)),
        *_norm(f"{block}.ln_2", block, d_model),
    ]
    if config.d_mlp:
        weights += _mlp(f"{block}.mlp", CORE_MLP, block, d_model, config.d_mlp)
    for module in config.modules:
        name, own_set = f"{block}.aux.{module.domain}", module_set(module.domain)
        if module.kind == "lora":  # stays in its block's group
            weights += _lora(name, own_set, block, config, module.width)
        else:
            weights += _mlp(name, own_set, name, d_model, module.width)
    return weights


def _mlp(name: str, own_set: str, group: str, d_model: int, width: int) -> list[Weight]:
    shapes = {"c_fc.weight": (width, d_model), "c_fc.bias": (width,)}
    shapes |= {"c_proj.weight": (d_model, width), "c_proj.bias": (d_model,)}
    return [Weight(f"{name}.{part}", own_set, group, shape) for part, shape in shapes.items()]


def _lora(name: str, own_set: str, group: str, config: ModelConfig, rank: int) -> list[Weight]:
    shapes = {"fc_a": (rank, config.d_model), "fc_b": (config.d_mlp, rank)}
    shapes |= {"proj_a": (rank, config.d_mlp), "proj_b": (config.d_model, rank)}
    return [Weight(f"{name}.{part}.weight", own_set, group, shape) for part, shape in shapes.items()]
