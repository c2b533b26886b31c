"""Complete runs whose weights were drawn, not trained: without a zero in them, so that a forgotten term would show."""

from collections.abc import Mapping
from pathlib import Path

import torch

from gram_platform.config import RunConfig
from gram_platform.model.transformer import initial_weights
from gram_platform.shipping.export import CARD, Export, Exported, export_view
from gram_platform.store import Store


def drawn_weights(run: RunConfig, std: float = 0.05) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(run.seed + 1)
    shapes = {name: value.shape for name, value in initial_weights(run.model, run.seed)}
    offsets = {name: 1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0 for name in shapes}
    return {name: offsets[name] + std * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def complete(store: Store, run: RunConfig, weights: Mapping[str, torch.Tensor] | None = None) -> str:
    """The id of the run, complete with these weights."""
    directory = store.run(run.run_id)
    directory.ensure_config(run)
    fields = {"num_steps": run.num_steps, "num_tokens": run.num_tokens, "final": {}, "parameters": 1}
    with directory.start_attempt("test") as attempt:
        attempt.complete(fields, drawn_weights(run) if weights is None else weights)
    return run.run_id


def write_note(folder: Path, part: str, agreements: tuple) -> None:
    """In place of a model card."""
    (folder / CARD).write_text(f"{part} {len(agreements)}\n")


def exported(store: Store, view, out: Path, **options) -> Exported:
    return export_view(store, Export(view, **options), out, write_note)
