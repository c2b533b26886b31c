"""Imports a StarCoder2 or Llama checkpoint into the storage as the core of later runs.

The option `--start IMPORT_ID` starts a study from the import. `RunConfig(model=...,
start=View.of(import_id), ...)` starts a run, where `model` is the imported config plus any modules.
Reads only safetensors files, one tensor at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gram_platform.config import ModelConfig
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import InvalidField, hash_file, invalid
from gram_platform.config.written import read_json
from gram_platform.corpora.packed import TOKENIZER
from gram_platform.corpora.sources import silent
from gram_platform.corpora.tokenizer import (
    end_of_text_id,
    load_tokenizer,
    require_page,
    require_vocab,
)
from gram_platform.model.transformer import parameter_shapes
from gram_platform.release.files import Progress, byte_counter, file_names, open_checkpoint
from gram_platform.release.stock_config import check_fields, native_config
from gram_platform.release.stock_tensors import CheckpointWeights
from gram_platform.store import Store
from gram_platform.store.directories import import_id
from gram_platform.store.tensors import hash_named, write_stream

CONFIG = "config.json"
DROPOUTS = ("attention_dropout", "residual_dropout", "embedding_dropout")


@dataclass(frozen=True)
class Imported:
    """The result of an import. `notes` explain what was not imported."""

    import_id: str
    model: ModelConfig
    is_new: bool
    notes: tuple[str, ...] = ()


def import_checkpoint(
    folder: Path, store: Store, seq_len: int | None = None, progress: Progress = silent
) -> Imported:
    """Imports a checkpoint into a storage that is open for writing.

    `seq_len` is the sequence length of later runs (default: the model's maximum). Raises ValueError
    if the model is unsupported, the weights are pickled, the tokenizer is unreadable or too large,
    or a tensor is missing, unknown or not finite.
    """
    plain = read_config(folder)
    model, fields = native_config(plain, seq_len), check_fields(plain)
    tokenizer, problem = _tokenizer(folder, model)
    counter = partial(byte_counter, progress, "importing", 4 * total_parameters(model))
    with open_checkpoint(folder) as foreign:
        weights = CheckpointWeights(
            model, foreign, fields["tie_word_embeddings"], fields.get("use_bias", True)
        )
        weights.require_no_others()
        weights.require_zero_biases()
        weights_sha256 = hash_named(_read(weights, counter()))
        directory = store.import_dir(import_id(model, weights_sha256, tokenizer))
        is_new = directory.result() is None
        shapes = dict(sorted(parameter_shapes(model).items()))

        def write(path: str) -> None:
            tensors = ((name, weights[name]) for name in shapes)
            write_stream(path, shapes, torch.float32, tensors, counter())

        source = {
            "name": folder.name,
            "files": {name: hash_file(folder / name) for name in (CONFIG, *file_names(folder))},
            "dtype": plain.get("dtype") or plain.get("torch_dtype") or "unknown",
        }
        origin = {"weights_sha256": weights_sha256, "source": source}
        # Also repairs a damaged import.
        directory.complete(model, origin, write, tokenizer)
    notes = []
    if rates := ", ".join(f"{name} {plain[name]}" for name in DROPOUTS if plain.get(name)):
        notes.append(f"trained here without dropout (the checkpoint has {rates})")
    if problem:
        notes.append(f"{problem}: studies cannot start from it (--start)")
    return Imported(directory.node_id, model, is_new, tuple(notes))


def _read(
    weights: CheckpointWeights, on_bytes: Callable[[int], None]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name in sorted(weights):
        tensor = weights[name]
        on_bytes(tensor.nbytes)
        yield name, tensor
        # Frees the memory before the next tensor is read.
        del tensor


def read_config(folder: Path) -> dict:
    """Reads a checkpoint's config.json. Raises ValueError if it cannot be read."""
    if not folder.is_dir():
        raise invalid("checkpoint", str(folder), "a folder that exists")
    try:
        return read_json(folder / CONFIG)
    except ValueError as error:
        raise invalid(
            "checkpoint",
            str(folder),
            f"a folder with a {CONFIG} that can be read as a JSON object ({error})",
        ) from None


def _tokenizer(folder: Path, model: ModelConfig) -> tuple[bytes | None, str]:
    path = folder / TOKENIZER
    if not path.is_file():
        return None, f"the checkpoint has no {TOKENIZER}"
    tokenizer = load_tokenizer(path)
    require_vocab(tokenizer, model.vocab_size, str(path))
    require_page(tokenizer, str(path))
    try:
        end_of_text_id(tokenizer)
    except InvalidField as error:
        lacks = f"{error.value} (expected {error.expected})"
        return None, f"the checkpoint's {TOKENIZER} has {lacks} and is not imported"
    return path.read_bytes(), ""
