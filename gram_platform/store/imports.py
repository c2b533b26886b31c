"""An imported model: weights that no run of this storage has made, and where they came from.

    imports/<import_id>/{config.json, weights.safetensors, tokenizer.json, result.json}

The id is a hash of shape and weights, and of the tokenizer where there is one (text is packed with it), so that a model
imported twice is one, and a run that starts from it is the same run everywhere. Imports from before the tokenizer was a
part of the id keep theirs. Immutable: `result.json` is written last.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gram_platform.config import IMPORTED, ModelConfig
from gram_platform.config.identity import invalid, short_hash, to_plain
from gram_platform.store.directory import NodeDirectory
from gram_platform.store.files import CorruptFile, Folder, hash_file, seal
from gram_platform.store.local import LocalFolder
from gram_platform.store.weights import WEIGHTS

if TYPE_CHECKING:
    import torch

TOKENIZER = "tokenizer.json"


def import_id(model: ModelConfig, weights_sha256: str, tokenizer: bytes | None = None) -> str:
    """What a view names the model by: `IMPORTED` and 12 hexadecimal digits. `tokenizer`: its tokenizer.json, if any."""
    hashes = {"weights_sha256": weights_sha256}
    if tokenizer is not None:
        hashes["tokenizer_sha256"] = _sha256(tokenizer)
    return IMPORTED + short_hash({"model": model, **hashes})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class ImportDirectory(NodeDirectory):
    """`<storage>/imports/<import_id>`; its config is `{"model": ...}`, its result the provenance."""

    kind = "import"
    id_field = "import_id"

    def __init__(self, root: Folder, node_id: str) -> None:
        super().__init__(root.child("imports", node_id), node_id)

    def complete(
        self, model: ModelConfig, fields: Mapping, write: Callable[[str], None], tokenizer: bytes | None = None
    ) -> dict:
        """Let `write` fill a local path with the weights, then publish; returns the result in force.

        `fields`: `weights_sha256`, and the provenance. `tokenizer`: the checkpoint's tokenizer.json.
        """
        expected = import_id(model, fields["weights_sha256"], tokenizer)
        if self.node_id != expected:
            raise invalid("import_id", expected, f"{self.node_id}, the directory's")
        self._ensure_config({"model": to_plain(model)})
        if self.result() is None:
            self.folder.write_with(WEIGHTS, write)
            if tokenizer is not None:
                self.folder.write(TOKENIZER, tokenizer)
                fields = {**fields, "tokenizer_sha256": _sha256(tokenizer)}
        return self.publish(seal({**fields, "import_id": self.node_id}))

    def require_result(self) -> dict:
        """The provenance; ValueError when the import was not finished."""
        result = self.result()
        if result is None:
            raise invalid("import_id", self.node_id, f"an import of this storage ({self.folder.path})")
        return result

    def tokenizer(self, local: Path) -> Path | None:
        """Its tokenizer.json, None without one; from an object store a copy under the folder `local`."""
        expected = self.require_result().get("tokenizer_sha256")
        if expected is None:
            return None
        path = Path(self.folder.file(TOKENIZER))
        if not isinstance(self.folder, LocalFolder):
            copies = LocalFolder(str(local / "tokenizers"), writable=True)
            copies.write(f"{expected}.json", self.folder.read(TOKENIZER))
            path = Path(copies.file(f"{expected}.json"))
        if hash_file(str(path)) != expected:
            raise CorruptFile(f"{self.folder.path}/{TOKENIZER} is not what was imported: import the model again")
        return path

    @contextlib.contextmanager
    def open_weights(self) -> "Iterator[Mapping[str, torch.Tensor]]":
        """The weights, read from disk one by one; verified before. ValueError when they are not what was imported."""
        from gram_platform.store.checkpoint import hash_named  # here, because they import torch
        from gram_platform.store.tensors import open_weights

        result = self.require_result()
        with open_weights(self.folder) as tensors:
            if hash_named((name, tensors[name]) for name in sorted(tensors)) != result["weights_sha256"]:
                raise CorruptFile(f"{self.folder.path}/{WEIGHTS} is not what was imported: import the model again")
            yield tensors

    def weights(self) -> "dict[str, torch.Tensor]":
        """All of `open_weights`, in memory."""
        with self.open_weights() as tensors:
            return dict(tensors)
