"""Complete runs whose weights were drawn, not trained: without a zero in them, so that a forgotten
term would show.

And a checkpoint of another's, with the tokenizer that it may have.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from gram_platform.config import RunConfig
from gram_platform.corpora.tokenizer import END_OF_TEXT
from gram_platform.model.pieces import Piece, rank_rows
from gram_platform.model.transformer import parameter_shapes
from gram_platform.release.export import CARD, ExportRequest, ExportResult, export_view
from gram_platform.release.files import SINGLE
from gram_platform.release.serving.policy import TokenRule, token_digest, token_entry
from gram_platform.release.stock_config import native_config
from gram_platform.release.stock_tensors import foreign_shapes
from gram_platform.store import Store
from gram_platform.store.checkpoints import SHARDS
from gram_platform.store.shards import write_shard
from gram_platform.store.tensors import hash_tensors


def drawn_weights(run: RunConfig, std: float = 0.05) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(run.seed + 1)
    shapes = parameter_shapes(run.model)
    offsets = {
        name: 1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0
        for name in shapes
    }
    return {
        name: offsets[name] + std * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def complete(
    store: Store,
    run: RunConfig,
    weights: Mapping[str, torch.Tensor] | None = None,
    num_ranks: int = 1,
) -> str:
    """The id of the run, complete with these weights, as so many ranks write it."""
    directory, weights = store.run(run.run_id), drawn_weights(run) if weights is None else weights
    directory.ensure_config(run)
    fields = {
        "num_steps": run.num_steps,
        "num_tokens": run.num_tokens,
        "final": {},
        "parameters": 1,
    }
    with directory.start_attempt("test") as attempt:
        if num_ranks == 1:
            attempt.complete(fields, weights)
            return run.run_id
        folder, files = directory.attempts.child(attempt.attempt_id, SHARDS), {}
        for rank in range(num_ranks):
            rows = {n: rank_rows(len(w), rank, num_ranks) for n, w in weights.items()}
            held = {
                n: Piece(w[slice(*rows[n])], rows[n][0], tuple(w.shape)) for n, w in weights.items()
            }
            files |= write_shard(folder, held, rank, num_ranks)
        attempt.complete_shards(fields, files, hash_tensors(weights))
    return run.run_id


def write_note(folder: Path, part: str, agreements: tuple) -> None:
    """In place of a model card."""
    (folder / CARD).write_text(f"{part} {len(agreements)}\n")


def exported(store: Store, view, out: Path, **options) -> ExportResult:
    return export_view(store, ExportRequest(view, **options), out, write_note)


FOREIGN = {
    "model_type": "starcoder2",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
Change = Callable[[dict[str, torch.Tensor]], None]


def checkpoint(folder: Path, change: Change = lambda tensors: None, **fields) -> Path:
    """The folder with a checkpoint of drawn weights; `change` alters its tensors, `fields` its
    config.json alone."""
    generator = torch.Generator().manual_seed(0)
    shapes = foreign_shapes(native_config(FOREIGN))
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name in tensors:
        if "self_attn" in name and name.endswith("bias"):
            tensors[name].zero_()
    change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FOREIGN | fields))
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    return folder


def write_words(folder: Path, *words: str) -> bytes:
    """A tokenizer.json with these tokens, of which the end of a text is special; its bytes."""
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.add_special_tokens([word for word in words if word == END_OF_TEXT])
    tokenizer.save(str(folder / "tokenizer.json"))
    return (folder / "tokenizer.json").read_bytes()


def entry_of(name: str, token: str, profiles: tuple[str, ...], metrics: bool = False) -> str:
    """An entry of a policy, whose default is the first profile."""
    rule = TokenRule(name, token_digest(token), profiles, profiles[0], metrics, None)
    return token_entry(rule)
