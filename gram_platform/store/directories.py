"""The directories of evaluations and imported models, and what they share with those of runs."""

import contextlib
import hashlib
import json
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gram_platform.config import IMPORTED, AnyEvaluation, ModelConfig, State
from gram_platform.config.identity import canonical_json, invalid, short_hash, to_plain
from gram_platform.store.checkpoints import WEIGHTS
from gram_platform.store.files import CorruptFile, Folder, hash_file, seal, unseal
from gram_platform.store.folders import LocalFolder

CONFIG, TAGS, RESULT = "config.json", "tags.json", "result.json"


class NodeDirectory:
    """One directory of the storage; `kind` is "run" or "evaluation", `node_id` its run_id or eval_id."""

    kind: str
    id_field: str

    def __init__(self, folder: Folder, node_id: str) -> None:
        self.folder = folder
        self.node_id = node_id

    def config(self) -> dict:
        """The stored config as plain JSON (see `run_from_plain`); ValueError when the storage has no such node."""
        plain = self.folder.read_json(CONFIG)
        if plain is None:
            raise invalid(self.id_field, self.node_id, f"one of the {self.kind}s in this storage ({self.folder.path})")
        return plain

    def tags(self) -> dict[str, str]:
        """The tags of all studies that use this node."""
        try:
            return self.folder.read_json(TAGS) or {}
        except CorruptFile as error:
            self.folder.set_aside(TAGS, error)
            return {}

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Merge `tags` into the stored ones, new values over old. On an object store the last of two writers wins."""
        wrong = {key: value for key, value in tags.items() if not isinstance(key, str) or not isinstance(value, str)}
        if wrong:
            raise invalid("tags", wrong, "strings under strings")
        if tags.items() <= self.tags().items():
            return
        with self.folder.lock("tags"):
            self.folder.write_json(TAGS, {**self.tags(), **tags}, durable=False)

    def result(self) -> dict | None:
        """The sealed result, None while there is none; a corrupted file is set aside with a warning and is none."""
        try:
            result = self.folder.read_sealed(RESULT)
            if result is not None and result.get(self.id_field) != self.node_id:
                raise CorruptFile(f"it belongs to {self.id_field} {result.get(self.id_field)!r}")
        except CorruptFile as error:
            self.folder.set_aside(RESULT, error)
            return None
        return result

    def publish(self, data: bytes) -> dict:
        """Make `data` the result unless there is one; returns the result in force, warning when that one differs."""
        if self.folder.create(RESULT, data):
            return unseal(data)
        existing = self.result()
        if existing is None:
            return self.publish(data)
        if existing != unseal(data):
            text = "finished again with another result; the first one stays"
            warnings.warn(f"{self.kind} {self.node_id} {text}", RuntimeWarning, stacklevel=3)
        return existing

    def _ensure_config(self, config: object) -> None:
        text = canonical_json(config)
        if self.folder.create(CONFIG, (text + "\n").encode()):
            return
        try:
            existing = self.folder.read_json(CONFIG)
        except CorruptFile as error:
            self.folder.set_aside(CONFIG, error)
            self._ensure_config(config)
            return
        if existing != json.loads(text):
            raise invalid(
                "config", self.folder.file(CONFIG), f"the config of {self.kind} {self.node_id}, found another one"
            )


if TYPE_CHECKING:
    import torch

TIMING = "timing.json"
TENSORS_HASH = "tensors_sha256"  # in the result: of the tensors that lie beside it


class EvaluationDirectory(NodeDirectory):
    """`<storage>/evaluations/<eval_id>/{config.json, tags.json, result.json, timing.json}`.

    What is too large for JSON lies beside it in `tensors-<hash>.safetensors`: of two writers, the result names its own.
    """

    kind = "evaluation"
    id_field = "eval_id"

    def __init__(self, root: Folder, eval_id: str) -> None:
        super().__init__(root.child("evaluations", eval_id), eval_id)
        self.eval_id = eval_id

    def ensure_config(self, evaluation: AnyEvaluation) -> None:
        """Store the config; ValueError when the directory belongs to another one."""
        if evaluation.eval_id != self.eval_id:
            raise invalid("eval_id", evaluation.eval_id, f"{self.eval_id}, the directory's")
        self._ensure_config(evaluation)

    def status(self) -> State:
        """Reads the evaluation's state, complete or absent: it is short, and is never continued half-way."""
        return State.ABSENT if self.result() is None else State.COMPLETE

    def timing(self) -> dict:
        """When and where the evaluation ended and how long it took, if that is known; {} before the end."""
        try:
            return self.folder.read_json(TIMING) or {}
        except CorruptFile as error:
            self.folder.set_aside(TIMING, error)
            return {}

    def complete(
        self, result: Mapping, timing: Mapping | None = None, tensors: Mapping[str, "torch.Tensor"] | None = None
    ) -> dict:
        """Write the deterministic fields of `result` (eval_id and sha256 are added); returns the result in force.

        `timing` may hold `elapsed_s`; the time of the end and the host are added. `tensors` are written before, and
        the result says their hash.
        """
        if self.result() is None:
            facts = {**(timing or {}), "ended": time.time(), "host": socket.gethostname()}
            self.folder.write_json(TIMING, facts)
        if tensors:
            result = {**result, TENSORS_HASH: self._write_tensors(tensors)}
        return self.publish(seal({**result, "eval_id": self.eval_id}))

    def tensors(self) -> dict[str, "torch.Tensor"]:
        """The tensors of a complete evaluation, verified against its result. ValueError when it has none.

        Corrupted ones are set aside, and the result with them, so that submitting again makes them again.
        """
        from gram_platform.store.tensors import hash_tensors, load_tensors  # here, because it imports torch

        digest = (self.result() or {}).get(TENSORS_HASH)
        if digest is None:
            raise invalid("eval_id", self.eval_id, "a complete evaluation that keeps tensors")
        name = _tensors_name(digest)
        try:
            with self.folder.local_copy(name) as path:
                tensors = load_tensors(path)
            if hash_tensors(tensors) == digest:
                return tensors
            reason = "its hash is not the result's"
        except FileNotFoundError:
            reason = ""
        except ValueError as error:
            reason = str(error)
        if reason:
            self.folder.set_aside(name, reason)
        self.folder.set_aside(RESULT, f"{name} is not what it says")
        raise invalid("eval_id", self.eval_id, "an evaluation with intact tensors; submit again to make them again")

    def _write_tensors(self, tensors: Mapping[str, "torch.Tensor"]) -> str:
        from gram_platform.store.tensors import hash_tensors, save_tensors

        digest = hash_tensors(tensors)
        self.folder.write_with(_tensors_name(digest), lambda path: save_tensors(path, tensors))
        return digest


def _tensors_name(digest: str) -> str:
    return f"tensors-{digest[:16]}.safetensors"


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
        from gram_platform.store.shards import open_weights
        from gram_platform.store.tensors import hash_named  # here, because they import torch

        result = self.require_result()
        with open_weights(self.folder) as tensors:
            if hash_named((name, tensors[name]) for name in sorted(tensors)) != result["weights_sha256"]:
                raise CorruptFile(f"{self.folder.path}/{WEIGHTS} is not what was imported: import the model again")
            yield tensors

    def weights(self) -> "dict[str, torch.Tensor]":
        """All of `open_weights`, in memory."""
        with self.open_weights() as tensors:
            return dict(tensors)
