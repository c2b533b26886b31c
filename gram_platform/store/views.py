"""Reads the weights of a view, as a routed model or merged into the equal dense model."""

import contextlib
import functools
from collections.abc import Iterator, Mapping

import torch

from gram_platform.config import ModelConfig, View
from gram_platform.config.identity import invalid
from gram_platform.config.routing import module_set
from gram_platform.config.training import merged_config
from gram_platform.model.merge import merged_rows
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


@contextlib.contextmanager
def open_view(store: Store, view: View) -> Iterator[tuple[ModelConfig, DiskTensors]]:
    """Yields (the model's config with only the view's modules, float32 weights by name).

    Each module comes from its own run, and each access reads its tensor from disk. Modules outside
    the view are absent, not switched off, and their bytes are nowhere in this process's memory.
    ValueError when a run lacks a module.
    """
    config = view_model(store, view)
    with contextlib.ExitStack() as stack:
        open_ids = dict.fromkeys((view.run_id, *view.origins.values()))
        opened = {
            run_id: stack.enter_context(store.origin(run_id).open_weights()) for run_id in open_ids
        }
        holders = {
            name: held for name, held in opened[view.run_id].holders.items() if not is_module(name)
        }
        for domain, run_id in view.origins.items():
            of_run, of_domain = opened[run_id].holders.items(), module_set(domain)
            holders |= {name: held for name, held in of_run if parameter_set(name) == of_domain}
        yield config, DiskTensors(holders)


def load_view(
    store: Store, view: View, precision: str = "float32"
) -> tuple[ModelConfig, Transformer]:
    """Loads (the view's config, its routed model in `precision`), in evaluation mode."""
    with open_view(store, view) as (config, weights):
        return config, model_of(config, weights, precision)


@contextlib.contextmanager
def open_dense(store: Store, view: View) -> Iterator[tuple[ModelConfig, dict[str, RowsOnDisk]]]:
    """Yields (config, float32 weights) of the view merged into one dense model, rows on demand.

    ValueError unless the view's rule is constant.
    """
    if view.rule != "constant":
        allowed = "constant, because other views are a different model for each domain"
        raise invalid("view.rule", view.rule, allowed)
    with open_view(store, view) as (config, weights):
        active = dict(view.weights)
        dense = merged_config(config, active)
        merged, rows = functools.partial(merged_rows, config, weights.rows, active), {}
        for name, shape in parameter_shapes(dense).items():
            rows[name] = RowsOnDisk(
                shape, functools.partial(merged if ".mlp." in name else weights.rows, name)
            )
        yield dense, rows


def model_of(
    config: ModelConfig, weights: Mapping[str, torch.Tensor], precision: str = "float32"
) -> Transformer:
    """Makes a model of these weights, in evaluation mode."""
    with torch.device("meta"):
        model = Transformer(config)
    converted = {name: weight.to(DTYPES[precision]) for name, weight in weights.items()}
    model.load_state_dict(converted, assign=True)
    model.rotary = Rotary(config.head_dim, config.seq_len, config.rope_theta)
    return model.eval().requires_grad_(False)


def view_model(store: Store, view: View) -> ModelConfig:
    """Reads the model's config with only the view's modules; ValueError when a run lacks one."""
    return view.model(lambda run_id: store.origin(run_id).model_config())
