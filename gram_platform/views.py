"""The weights of a view, loaded from the store."""

import dataclasses

import torch

from gram_platform.config import CORE, RunConfig, View, run_from_plain
from gram_platform.identity import invalid
from gram_platform.model.transformer import Transformer
from gram_platform.store import Store
from gram_platform.train.learner import DTYPES


def load_view(store: Store, view: View, precision: str = "float32") -> tuple[RunConfig, Transformer]:
    """(the run's config with only the view's modules, its model in `precision`), in evaluation mode.

    Modules that the view does not have are absent from the model, not switched off. ValueError when the run has no
    such module or no result.
    """
    run = run_from_plain(store.run(view.run_id).config())
    sources = {domain: view.run_id for domain, _ in view.weights} | dict(view.sources)
    if view.rule == "by_domain":
        sources.setdefault(CORE, view.run_id)
    specs, weights = [], {}
    for domain, run_id in sources.items():
        source = run_from_plain(store.run(run_id).config())
        specs += [_module_spec(source, run_id, domain)]
        weights |= {n: w for n, w in store.run(run_id).weights().items() if f".aux.{domain}." in n}
    weights |= {n: w for n, w in store.run(view.run_id).weights().items() if ".aux." not in n}
    model_config = dataclasses.replace(run.model, modules=tuple(specs))
    return dataclasses.replace(run, model=model_config), _model(model_config, weights, DTYPES[precision])


def _module_spec(source: RunConfig, run_id: str, domain: str):
    for module in source.model.modules:
        if module.domain == domain:
            return module
    raise invalid("view.weights", domain, f"one of run {run_id}'s modules: {', '.join(source.model.module_domains)}")


def _model(config, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    converted = {name: weight.to(dtype) for name, weight in weights.items()}
    model.load_state_dict(converted, assign=True)
    model.rotary.to_empty(device="cpu")
    model.rotary.reset_tables()
    return model.eval().requires_grad_(False)
