"""Merges a view into one dense model: folds active modules into the MLP and leaves inactive modules out.

A sum of MLPs is one wider MLP, and W + t B A is one matrix. A module's weight t scales an MLP's output, and a LoRA's
change of both projections. So the merged model has the view's logits up to rounding.
"""

from collections.abc import Mapping

import torch

from gram_platform.config import ModelConfig

Weights = Mapping[str, torch.Tensor]


def merged_weights(config: ModelConfig, weights: Weights, active: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """Returns float32 weights of `merged_config`'s model; leaves the inputs unchanged."""
    merged = {name: value for name, value in weights.items() if ".mlp." not in name and ".aux." not in name}
    for layer in range(config.num_layers):
        merged |= merged_mlp(config, weights, active, f"blocks.{layer}")
    return merged


def merged_mlp(config: ModelConfig, weights: Weights, active: Mapping[str, float], block: str) -> dict:
    """Returns the merged weights of one MLP, `block` being `blocks.<layer>`; reads only this layer's `weights`."""
    names = ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")
    stacks: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    if config.d_mlp:
        core = {name: weights[f"{block}.mlp.{name}"] for name in names}
        for module in config.modules:
            if module.kind == "lora" and module.domain in active:
                core = _with_lora(core, weights, f"{block}.aux.{module.domain}", active[module.domain])
        for name in names:
            stacks[name].append(core[name])
    for module in config.modules:
        if module.kind == "mlp" and module.domain in active:
            for name in names:
                value = weights[f"{block}.aux.{module.domain}.{name}"]
                stacks[name].append(active[module.domain] * value if name.startswith("c_proj") else value)
    return {
        f"{block}.mlp.c_fc.weight": torch.cat(stacks["c_fc.weight"]),
        f"{block}.mlp.c_fc.bias": torch.cat(stacks["c_fc.bias"]),
        f"{block}.mlp.c_proj.weight": torch.cat(stacks["c_proj.weight"], dim=1),
        f"{block}.mlp.c_proj.bias": torch.stack(stacks["c_proj.bias"]).sum(0),
    }


def _with_lora(core: Mapping, weights: Weights, lora: str, weight: float) -> dict:
    up = weights[f"{lora}.fc_b.weight"] @ weights[f"{lora}.fc_a.weight"]
    down = weights[f"{lora}.proj_b.weight"] @ weights[f"{lora}.proj_a.weight"]
    changed = {"c_fc.weight": core["c_fc.weight"] + weight * up, "c_proj.weight": core["c_proj.weight"] + weight * down}
    return {**core, **changed}
