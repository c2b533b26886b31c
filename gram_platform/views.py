"""The weights of a view, taken from the store: as a routed model, or as the plain dense model it is."""

import dataclasses

import torch

from gram_platform.config import CORE, ModelConfig, ModuleSpec, RunConfig, View, run_from_plain
from gram_platform.identity import invalid
from gram_platform.model.merge import merged_config, merged_weights
from gram_platform.model.transformer import Transformer
from gram_platform.store import Store
from gram_platform.train.learner import DTYPES


def view_weights(store: Store, view: View) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """(the model with only the view's modules, its float32 weights by name), modules from the runs they belong to.

    Modules that the view does not have are absent, not switched off. ValueError when a run has no such module.
    """
    run = _config(store, view.run_id)
    sources = {domain: view.run_id for domain, _ in view.weights} | dict(view.sources)
    if view.rule == "by_domain":
        sources.setdefault(CORE, view.run_id)
    specs = [_module_spec(_config(store, run_id), run_id, domain) for domain, run_id in sources.items()]
    weights = {}
    for run_id in {view.run_id, *sources.values()}:  # each is read once, and one is held at a time
        wanted = [f".aux.{domain}." for domain, source in sources.items() if source == run_id]
        for name, weight in store.run(run_id).weights().items():
            is_shared = ".aux." not in name and run_id == view.run_id
            if is_shared or any(part in name for part in wanted):
                weights[name] = weight
    return dataclasses.replace(run.model, modules=tuple(specs)), weights


def load_view(store: Store, view: View, precision: str = "float32") -> tuple[ModelConfig, Transformer]:
    """(`view_weights`' shape, its routed model in `precision`), in evaluation mode."""
    config, weights = view_weights(store, view)
    return config, model_of(config, weights, precision)


def materialised(store: Store, view: View) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """The view as one dense model: its shape and float32 weights. ValueError for a view that depends on the domain."""
    if view.rule != "constant":
        raise invalid("view.rule", view.rule, "constant: another view is a different model for each domain")
    config, weights = view_weights(store, view)
    active = dict(view.weights)
    return merged_config(config, active), merged_weights(config, weights, active)


def model_of(config: ModelConfig, weights: dict[str, torch.Tensor], precision: str = "float32") -> Transformer:
    """A model of these weights, in evaluation mode."""
    with torch.device("meta"):
        model = Transformer(config)
    converted = {name: weight.to(DTYPES[precision]) for name, weight in weights.items()}
    model.load_state_dict(converted, assign=True)
    model.rotary.to_empty(device="cpu")
    model.rotary.reset_tables()
    return model.eval().requires_grad_(False)


def _config(store: Store, run_id: str) -> RunConfig:
    return run_from_plain(store.run(run_id).config())


def _module_spec(source: RunConfig, run_id: str, domain: str) -> ModuleSpec:
    for module in source.model.modules:
        if module.domain == domain:
            return module
    raise invalid("view.weights", domain, f"one of run {run_id}'s modules: {', '.join(source.model.module_domains)}")
