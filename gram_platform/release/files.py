"""The tensor files of a checkpoint in Hugging Face's layout: one, or several with an index when they are large.

model.safetensors
model-00001-of-00003.safetensors ... and model.safetensors.index.json
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch

from gram_platform.config.identity import invalid
from gram_platform.store.tensors import DiskTensors, Shapes, open_tensors, stream_bytes, write_stream

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_FILE_BYTES = 5 * 10**9  # of one file: what Hugging Face's own writer keeps to by default, in its unit of GB
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def shards(shapes: Shapes, dtype: torch.dtype, max_file_bytes: int = MAX_FILE_BYTES) -> dict[str, Shapes]:
    """Which tensors each file has, in order. A tensor larger than `max_file_bytes` has a file of its own."""
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes.items():
        if groups[-1] and stream_bytes({**groups[-1], name: shape}, dtype) > max_file_bytes:
            groups.append({})
        groups[-1][name] = shape
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{n:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups, 1)}


def write_tensors(
    folder: Path,
    files: Mapping[str, Shapes],
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, torch.Tensor]],
    progress: Callable[[int], None],
) -> None:
    """Writes every file of `shards` from tensors that come in their order, one at a time, and the index if any."""
    coming = iter(tensors)
    for name, shapes in files.items():
        write_stream(folder / name, shapes, dtype, islice(coming, len(shapes)), progress)
    assert next(coming, None) is None, "more tensors than shapes"
    if len(files) > 1:
        total = sum(math.prod(shape) for shapes in files.values() for shape in shapes.values()) * dtype.itemsize
        places = {tensor: name for name, shapes in files.items() for tensor in shapes}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def file_names(folder: Path) -> list[str]:
    """The tensor files of a checkpoint. ValueError when there are none, or only pickled ones."""
    if (folder / INDEX).is_file():
        names = sorted(set(_weight_map(folder).values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise invalid(INDEX, name, "safetensors files of the same folder")
            if not (folder / name).is_file():
                raise invalid("checkpoint", str(folder), f"a whole one: {name} is missing")
        return names
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if pickled := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        allowed = f"{SINGLE}: a pickled file runs whatever code is in it, convert it elsewhere"
        raise invalid("checkpoint", pickled[0], allowed)
    raise invalid("checkpoint", str(folder), f"a folder with {SINGLE} or {INDEX}")


@contextlib.contextmanager
def open_checkpoint(folder: Path) -> Iterator[DiskTensors]:
    """The tensors of a checkpoint by name, each read when it is asked for. ValueError when it is not whole."""
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open_tensors(folder / name)) for name in file_names(folder)}
        if (folder / INDEX).is_file():
            _require_indexed(_weight_map(folder), files)
        yield DiskTensors.of_files(files.values())


def names_by_file(folder: Path) -> dict[str, set[str]]:
    """The tensors of every file of a checkpoint."""
    found = {}
    for name in file_names(folder):
        with open_tensors(folder / name) as file:
            found[name] = set(file.keys())
    return found


def _weight_map(folder: Path) -> Mapping[str, str]:
    try:
        places = json.loads((folder / INDEX).read_text())["weight_map"]
        return {str(tensor): str(name) for tensor, name in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid(INDEX, str(folder / INDEX), f"JSON with a weight_map ({error!r})") from None


def _require_indexed(places: Mapping[str, str], files: Mapping[str, object]) -> None:
    held = [(tensor, name) for name, file in files.items() for tensor in file.keys()]  # noqa: SIM118 (not a mapping)
    if sorted(held) != sorted(places.items()):
        odd = sorted({tensor for tensor, _ in set(held) ^ set(places.items())})
        raise invalid(INDEX, odd[:4], "each tensor once, in the file that the index says")
