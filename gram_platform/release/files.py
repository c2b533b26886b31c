"""Reads and writes a checkpoint's tensors and tokenizer in Hugging Face's layout.

Tensors are in one file, or in numbered files with an index:

    model.safetensors
    model-00001-of-00003.safetensors, ..., model.safetensors.index.json
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TypedDict

import torch

from gram_platform.config import IMPORTED
from gram_platform.config.crash_safe import sync
from gram_platform.config.identity import invalid
from gram_platform.config.written import read_json, require_fetched
from gram_platform.corpora.packed import TOKENIZER, PackedCorpus
from gram_platform.corpora.records import reading
from gram_platform.corpora.sources import Progress
from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.store.tensors import (
    DiskTensors,
    Shapes,
    once,
    open_tensors,
    stream_bytes,
    write_stream,
)

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def byte_counter(progress: Progress, activity: str, total: int) -> Callable[[int], None]:
    """Returns a callback that accumulates byte counts and reports the total to `progress`."""
    done = 0

    def add(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(activity, done, total)

    return add


def shards(shapes: Shapes, dtype: torch.dtype, max_file_bytes: int) -> dict[str, Shapes]:
    """Groups tensors into files of at most `max_file_bytes`. A larger tensor gets its own file."""
    groups = [{}]
    for name, shape in shapes.items():
        if groups[-1] and stream_bytes({**groups[-1], name: shape}, dtype) > max_file_bytes:
            groups.append({})
        groups[-1][name] = shape
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {
        f"model-{n:05d}-of-{len(groups):05d}.safetensors": group
        for n, group in enumerate(groups, 1)
    }


def write_tensors(
    folder: Path,
    files: Mapping[str, Shapes],
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
    progress: Callable[[int], None],
) -> None:
    """Writes tensors to the `files` planned by `shards`. Adds an index if there are several files.

    The (name, tensor) pairs must be in the same order as the shapes in `files`.
    """
    remaining = iter(tensors)
    for name, shapes in files.items():
        write_stream(folder / name, shapes, dtype, islice(remaining, len(shapes)), progress)
        sync(str(folder / name))
    assert next(remaining, None) is None, "more tensors than shapes"
    if len(files) > 1:
        num_values = sum(math.prod(shape) for held in files.values() for shape in held.values())
        file_of = {tensor: name for name, shapes in files.items() for tensor in shapes}
        index = {"metadata": {"total_size": num_values * dtype.itemsize}, "weight_map": file_of}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def file_names(folder: Path) -> list[str]:
    """Lists a checkpoint's safetensors files. Raises ValueError if any is missing."""
    if (folder / INDEX).is_file():
        names = sorted(set(_weight_map(folder).values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise invalid(INDEX, name, "safetensors files of the same folder")
            # `Path.is_file` would raise for an impossible name.
            if not os.path.isfile(folder / name):
                raise invalid(
                    "checkpoint", str(folder), f"a complete checkpoint, {name} is missing"
                )
        return names
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if pickled := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        raise invalid(
            "checkpoint",
            pickled[0],
            f"{SINGLE}: loading a pickled file can run any code, convert it elsewhere",
        )
    raise invalid("checkpoint", str(folder), f"a folder with {SINGLE} or {INDEX}")


@contextlib.contextmanager
def open_checkpoint(folder: Path) -> Iterator[DiskTensors]:
    """Context manager that yields a checkpoint's tensors, loaded on access.

    Raises ValueError if the files' tensors differ from those in the index.
    """
    with contextlib.ExitStack() as stack:
        files = {}
        for name in file_names(folder):
            with reading(folder / name):
                require_fetched("checkpoint", folder / name)
                files[name] = stack.enter_context(open_tensors(folder / name, once))
        if (folder / INDEX).is_file():
            stored = {(tensor, name) for name, file in files.items() for tensor in file.held}
            if wrong := sorted({tensor for tensor, _ in stored ^ _weight_map(folder).items()}):
                raise invalid(INDEX, wrong[:4], "each tensor once, in the file that the index says")
        yield DiskTensors.of_files(files.values())


def shapes_by_file(folder: Path) -> dict[str, Shapes]:
    """Returns {file name: {tensor name: shape}} of a checkpoint."""
    shapes = {}
    for name in file_names(folder):
        with open_tensors(folder / name, once) as file:
            shapes[name] = {tensor: rows.shape for tensor, rows in file.held.items()}
    return shapes


class WeightIndex(TypedDict):
    weight_map: dict[str, str]


def _weight_map(folder: Path) -> Mapping[str, str]:
    try:
        return read_json(folder / INDEX, WeightIndex)["weight_map"]
    except ValueError as error:
        raise invalid(INDEX, str(folder / INDEX), f"JSON with a weight_map ({error})") from None


def write_tokenizer(corpus: PackedCorpus, folder: Path, seq_len: int) -> int:
    """Writes the corpus's tokenizer so that `transformers` encodes text as in training.

    Encoding adds no special tokens, does not truncate or pad, and treats the names of special
    tokens as plain text. Returns the id of the end-of-text token.
    """
    tokenizer = load_tokenizer(corpus.tokenizer_path)
    end = end_of_text_id(tokenizer)
    absent = dict.fromkeys(("post_processor", "truncation", "padding"))
    _write(folder / TOKENIZER, json.loads(corpus.tokenizer_path.read_bytes()) | absent, False)
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    special = dict.fromkeys(names, tokenizer.id_to_token(end))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": seq_len,
        "split_special_tokens": True,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    _write(folder / "tokenizer_config.json", settings | special)
    _write(folder / "special_tokens_map.json", special)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    _write(folder / "generation_config.json", ids)
    return end


def find_corpus(store: Store, run_id: str) -> PackedCorpus | None:
    """Opens a run's corpus.

    Returns None if the corpus is not stored, or if `run_id` is the id of an import.
    """
    if run_id.startswith(IMPORTED):
        return None
    data_id = store.run(run_id).config()["data"]["data_id"]
    with contextlib.suppress(ValueError):
        return open_corpus(store, data_id)


def _write(path: Path, fields: dict, sort_keys: bool = True) -> None:
    text = json.dumps(fields, indent=2, sort_keys=sort_keys, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
