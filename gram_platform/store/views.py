"""Reads the weights of a view, as a routed model or merged into one dense model.

The core MLP and the active module MLPs of a layer have the same input. The sum of their outputs is
the output of one wider MLP. The wider c_fc (and c_gate, for SwiGLU) stacks the rows of all c_fc.
The wider c_proj concatenates the columns of all c_proj, each multiplied by the weight of its
module. LoRAs are added to the core MLP's weights.

Attention heads are merged in the same way. In the core, each key-value head serves a group of query
heads. A module has one key-value head. If a module has fewer query heads than one group of the
core, heads of zeros are added.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F

from gram_platform.config import ModelConfig, View
from gram_platform.config.identity import invalid
from gram_platform.config.routing import module_set
from gram_platform.config.training import RESERVED_UNITS, merge_config
from gram_platform.model.pieces import RowsOnDisk
from gram_platform.model.transformer import (
    Rotary,
    Transformer,
    is_module,
    parameter_set,
    parameter_shapes,
)
from gram_platform.store import Store
from gram_platform.store.tensors import DiskTensors
from gram_platform.train.learner import DTYPES

Weights = Mapping[str, torch.Tensor]


@contextlib.contextmanager
def open_view(store: Store, view: View) -> Iterator[tuple[ModelConfig, DiskTensors]]:
    """Context manager that yields (config, float32 weights by name) of a view's routed model.

    The config and the weights contain only the view's modules. Other modules are never in memory.
    Modules can be from different runs. Each access reads a tensor from disk. Raises ValueError if a
    run lacks a module.
    """
    config = view_model(store, view)
    with contextlib.ExitStack() as stack:
        run_ids = dict.fromkeys((view.run_id, *view.origins.values()))
        files = {
            run_id: stack.enter_context(store.origin(run_id).open_weights()).holders
            for run_id in run_ids
        }
        holders = {name: held for name, held in files[view.run_id].items() if not is_module(name)}
        for domain, run_id in view.origins.items():
            for name, held in files[run_id].items():
                if parameter_set(name) == module_set(domain):
                    holders[name] = held
        yield config, DiskTensors(holders)


def load_view(
    store: Store, view: View, precision: str = "float32"
) -> tuple[ModelConfig, Transformer]:
    """Loads a view's config and routed model (in dtype `precision`, in evaluation mode)."""
    with open_view(store, view) as (config, weights):
        return config, model_of(config, weights, precision)


@contextlib.contextmanager
def open_dense(store: Store, view: View) -> Iterator[tuple[ModelConfig, dict[str, RowsOnDisk]]]:
    """Context manager that yields (config, float32 weights) of the view as one dense model.

    Rows are read and merged on access. Raises ValueError unless the view's rule is `constant`.
    """
    if view.rule != "constant":
        allowed = "constant, because other views are a different model for each domain"
        raise invalid("view.rule", view.rule, allowed)
    with open_view(store, view) as (config, weights):
        active = dict(view.weights)
        dense = merge_config(config, active)
        merge, rows = functools.partial(merge_rows, config, weights.rows, active), {}
        for name, shape in parameter_shapes(dense).items():
            read = merge if ".mlp." in name or ".attn." in name else weights.rows
            rows[name] = RowsOnDisk(shape, functools.partial(read, name))
        yield dense, rows


def model_of(
    config: ModelConfig, weights: Mapping[str, torch.Tensor], precision: str = "float32"
) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    converted = {name: weight.to(DTYPES[precision]) for name, weight in weights.items()}
    model.load_state_dict(converted, assign=True)
    model.rotary = Rotary(config.head_dim, config.seq_len, config.rope_theta)
    return model.eval().requires_grad_(False)


def view_model(store: Store, view: View) -> ModelConfig:
    """Reads a view's model config with only its modules. Raises ValueError if one is missing."""
    return view.model(lambda run_id: store.origin(run_id).model_config())


def merge_layer(
    config: ModelConfig, weights: Weights, active: Mapping[str, float], block: str
) -> dict[str, torch.Tensor]:
    """Merges MLP and attention of the layer `block` (such as `blocks.0`). Reads no other layer."""

    def read(name: str, first: int, stop: int) -> torch.Tensor:
        return weights[name][first:stop]

    return {
        name: merge_rows(config, read, active, name, 0, shape[0])
        for name, shape in parameter_shapes(merge_config(config, active)).items()
        if name.startswith((f"{block}.mlp.", f"{block}.attn."))
    }


# Reads rows [first, stop) of a tensor by its name.
ReadRows = Callable[[str, int, int], torch.Tensor]


def merge_rows(
    config: ModelConfig,
    read: ReadRows,
    active: Mapping[str, float],
    name: str,
    first: int,
    stop: int,
) -> torch.Tensor:
    """Returns rows [first, stop) of a merged MLP or attention tensor.

    `name` is the merged tensor's name, such as `blocks.0.mlp.c_fc.weight`. `read` reads rows of the
    routed model's tensors. Reads all rows of output biases, LoRAs and merged qkv projections, but
    only the needed rows of other tensors.
    """
    if ".attn." in name:
        return _merge_heads(config, read, active, name, first, stop)
    block, _, part = name.partition(".mlp.")
    kinds = ("mlp",) if part == "c_proj.bias" else ("mlp", RESERVED_UNITS)
    mlps = [m for m in config.modules if m.kind in kinds and m.domain in active]
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
        # Except in c_proj, the rows are the hidden units of one owner after another.
        if not part.startswith("c_proj"):
            low, high = (min(max(row - begin, 0), width) for row in (first, stop))
        begin += width
        rows = read(f"{owner}.{part}", low, high)
        if owner.endswith(".mlp") and part.endswith("weight"):
            for change in _lora_changes(config, read, active, block, part):
                rows = rows + change[low:high]
        pieces.append(weight * rows if part == "c_proj.weight" else rows)
    return torch.cat(pieces, dim=1 if part == "c_proj.weight" else 0)


def _merge_heads(
    config: ModelConfig,
    read: ReadRows,
    active: Mapping[str, float],
    name: str,
    first: int,
    stop: int,
) -> torch.Tensor:
    modules = [m for m in config.modules if m.num_heads and m.domain in active]
    if not modules:
        return read(name, first, stop)
    block, _, part = name.partition(".attn.")
    h, num_kv_heads = config.head_dim, merge_config(config, active).num_kv_heads
    # The rows of their queries, and of their keys or values.
    owners = [(name, config.num_heads * h, config.num_kv_heads * h, 1.0)]
    owners += [
        (f"{block}.heads.{m.domain}.{part}", m.num_heads * h, h, active[m.domain]) for m in modules
    ]
    is_output, stacks = part == "o_proj.weight", []
    for owner, num_queries, num_keys, weight in owners:
        if is_output:
            stacks.append([(weight * read(owner, first, stop)).T])
        else:
            rows = read(owner, 0, num_queries + 2 * num_keys)
            stacks.append(rows.split([num_queries, num_keys, num_keys]))
    merged = []
    for number, of_owners in enumerate(zip(*stacks, strict=True)):
        group = 1 if number else config.group_size
        numbers = (group * num_keys for _, _, num_keys, _ in owners)
        rows = torch.cat([_fill(*pair) for pair in zip(of_owners, numbers, strict=True)])
        merged.append(_fill(rows, group * num_kv_heads * h))
    return merged[0].T.contiguous() if is_output else torch.cat(merged)[first:stop]


def _fill(rows: torch.Tensor, number: int) -> torch.Tensor:
    return F.pad(rows, (0, 0, 0, number - len(rows)))


def _lora_changes(
    config: ModelConfig, read: ReadRows, active: Mapping[str, float], block: str, part: str
) -> Iterator[torch.Tensor]:
    side = part.removeprefix("c_").removesuffix(".weight")
    num_rows = config.d_model if side == "proj" else config.d_mlp
    for module in config.modules:
        if module.kind == "lora" and module.domain in active:
            lora = f"{block}.aux.{module.domain}.{side}"
            change = read(f"{lora}_b.weight", 0, num_rows) @ read(
                f"{lora}_a.weight", 0, module.width
            )
            yield active[module.domain] * change
