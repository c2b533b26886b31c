"""Merges a view into the equal dense model: hidden units side by side, LoRAs added.

A layer sums core and active modules, and each is an MLP of the same input. So the sum is one MLP:
the rows of their c_fc, and of SwiGLU's c_gate, one after another, and the columns of their c_proj,
times the module's weight.
"""

from collections.abc import Callable, Iterator, Mapping

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.training import merged_config

Weights = Mapping[str, torch.Tensor]


def merged_mlp(
    config: ModelConfig, weights: Weights, active: Mapping[str, float], block: str
) -> dict:
    """Returns the merged weights of the MLP of `block`, `blocks.<layer>`; reads only these."""

    def read(name: str, first: int, stop: int) -> torch.Tensor:
        return weights[name][first:stop]

    num_hidden = merged_config(config, active).d_mlp
    rows = {"c_fc.weight": num_hidden, "c_proj.weight": config.d_model}
    if config.is_llama:
        rows["c_gate.weight"] = num_hidden
    else:
        rows |= {"c_fc.bias": num_hidden, "c_proj.bias": config.d_model}
    names = {f"{block}.mlp.{part}": stop for part, stop in rows.items()}
    return {name: merged_rows(config, read, active, name, 0, stop) for name, stop in names.items()}


# Reads rows [first, stop) of a tensor by its name.
ReadRows = Callable[[str, int, int], torch.Tensor]


def merged_rows(
    config: ModelConfig,
    read: ReadRows,
    active: Mapping[str, float],
    name: str,
    first: int,
    stop: int,
) -> torch.Tensor:
    """Returns rows [first, stop) of a merged MLP's tensor, such as `blocks.0.mlp.c_fc.weight`.

    `read` reads the routed model's weights: only rows that are needed, but output biases and LoRAs
    whole.
    """
    block, _, part = name.partition(".mlp.")
    mlps = [m for m in config.modules if m.kind == "mlp" and m.domain in active]
    owners = [(f"{block}.mlp", config.d_mlp, 1.0)] if config.d_mlp else []
    owners += [(f"{block}.aux.{m.domain}", m.width, active[m.domain]) for m in mlps]
    if part == "c_proj.bias":
        biases = [
            weight * read(f"{owner}.{part}", 0, config.d_model) for owner, _, weight in owners
        ]
        return torch.stack(biases).sum(0)[first:stop]
    pieces, begin = [], 0
    for owner, width, weight in owners:
        low, high = first, stop
        # The owners' hidden units are rows, one owner after another.
        if not part.startswith("c_proj"):
            low, high = (min(max(row - begin, 0), width) for row in (first, stop))
        begin += width
        rows = read(f"{owner}.{part}", low, high)
        if owner.endswith(".mlp") and part.endswith("weight"):
            for change in _lora_changes(config, read, active, block, part):
                rows = rows + change[low:high]
        pieces.append(weight * rows if part == "c_proj.weight" else rows)
    return torch.cat(pieces, dim=1 if part == "c_proj.weight" else 0)


def _lora_changes(
    config: ModelConfig, read: ReadRows, active: Mapping[str, float], block: str, part: str
) -> Iterator[torch.Tensor]:
    """Yields what each active LoRA adds to the core MLP's `part`."""
    side = part.removeprefix("c_").removesuffix(".weight")
    num_rows = config.d_model if side == "proj" else config.d_mlp
    for module in config.modules:
        if module.kind == "lora" and module.domain in active:
            lora = f"{block}.aux.{module.domain}.{side}"
            change = read(f"{lora}_b.weight", 0, num_rows) @ read(
                f"{lora}_a.weight", 0, module.width
            )
            yield active[module.domain] * change
