"""Reads and writes directories of evaluations and imports. Runs use the same base class.

Functions import torch only if they read or write tensors.
"""

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict, TypeVar

from gram_platform.config import (
    IMPORTED,
    AnyEvaluation,
    ModelConfig,
    RunConfig,
    State,
    TaskScores,
    evaluation_from_plain,
)
from gram_platform.config.identity import InvalidField, hash_file, invalid, short_hash
from gram_platform.config.plain import from_plain
from gram_platform.config.terminal import warn
from gram_platform.corpora.packed import TOKENIZER
from gram_platform.store.checkpoints import WEIGHTS
from gram_platform.store.files import CorruptFile, Folder, seal, unseal
from gram_platform.store.folders import LocalFolder

if TYPE_CHECKING:
    import torch

    from gram_platform.store.tensors import DiskTensors

Config = TypeVar("Config")

CONFIG, TAGS, RESULT, TIMING = "config.json", "tags.json", "result.json", "timing.json"
TENSORS_HASH = "tensors_sha256"
# The result field {source id: its `weights_sha256`}.
SOURCE_HASHES = "source_weights_sha256"
WRONG_HASH = "its hash is not the result's"
# Ints stay ints, so that a result that is read and written again has the same bytes.
Number = float | int


class EvaluationResult(TypedDict):
    """Fields of an evaluation result that this module or a report reads."""

    eval_id: str
    losses: NotRequired[dict[str, Number]]
    surprisals: NotRequired[dict[str, Number]]


class EvaluationTiming(TypedDict, total=False):
    elapsed_s: float
    ended: float
    host: str
    device: str


class ImportResult(TypedDict):
    import_id: str
    weights_sha256: str


@dataclass(frozen=True)
class NodeDirectory:
    """The directory of one node. `kind` is `run`, `evaluation` or `import`."""

    folder: Folder
    node_id: str

    kind: ClassVar[str]
    id_field: ClassVar[str]
    result_kind: ClassVar[Any]
    config_remedy: ClassVar[str] = "submit again"

    @property
    def remedy(self) -> str:
        # A read-only store cannot set the result aside, so the node would still count as done.
        first = "" if self.folder.writable else f"remove {self.folder.path} and "
        return f"{first}submit again"

    def id_of(self, plain: Mapping) -> str:
        raise NotImplementedError

    def config(self) -> dict:
        return self.config_as(dict)

    def config_as(self, read: Callable[[Mapping], Config]) -> Config:
        """Reads the config and converts it with `read`, such as `run_from_plain`.

        Raises ValueError if the storage has no such node, if the config does not match the node's
        id, or if `read` rejects the config.
        """
        plain = self.folder.read_json(CONFIG)
        if plain is None:
            expected = f"one of the {self.kind}s in this storage ({self.folder.path})"
            raise invalid(self.id_field, self.node_id, expected)
        try:
            if (node_id := self.id_of(plain)) != self.node_id:
                expected = f"the config of {self.node_id}: it is damaged, {self.config_remedy}"
                raise invalid(self.id_field, node_id, expected)
            return read(plain)
        except InvalidField as error:
            raise error.at(self.folder.file(CONFIG)) from error

    def model_config(self) -> ModelConfig:
        """Reads the model config of a run or an import. Raises the errors of `config_as`."""
        return self.config_as(lambda plain: from_plain(ModelConfig, plain.get("model"), ("model",)))

    def tags(self) -> dict[str, str]:
        """Reads this node's tags, which are merged from all studies that use the node."""
        return self.folder.read_or_set_aside(TAGS, dict[str, str])

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Merges `tags` into the stored tags.

        In an object store, simultaneous calls may overwrite each other's tags.
        """
        if not all(isinstance(text, str) for pair in tags.items() for text in pair):
            raise invalid("tags", dict(tags), "names and values that are strings")
        if tags.items() <= self.tags().items():
            return
        with self.folder.lock("tags"):
            self.folder.write_sealed(TAGS, {**self.tags(), **tags}, durable=False)

    def result(self) -> dict | None:
        """Reads and verifies the result, or returns None. Sets a corrupted result aside."""
        try:
            result = self.folder.read_sealed(RESULT, self.result_kind)
            if result is not None and result[self.id_field] != self.node_id:
                raise CorruptFile(f"it belongs to {self.id_field} {result[self.id_field]!r}")
        except CorruptFile as error:
            self.folder.set_aside(RESULT, error)
            return None
        return result

    def status(self) -> State:
        return State.ABSENT if self.result() is None else State.COMPLETE

    def require_result(self) -> dict:
        if (result := self.result()) is None:
            expected = f"a complete {self.kind} of this storage, found one that is {self.status()}"
            raise invalid(self.id_field, self.node_id, expected)
        return result

    def publish(self, data: bytes) -> dict:
        """If there is no result, stores `data` as the result. Returns the stored result.

        Warns if the existing result differs from `data`.
        """
        if self.folder.create(RESULT, data):
            return unseal(data)
        existing = self.result()
        if existing is None:
            return self.publish(data)
        if existing != unseal(data):
            node = f"{self.kind} {self.node_id}"
            warn(f"{node} finished again with another result; the first one stays", stacklevel=3)
        return existing

    def set_result_aside(self, reason: str, fault: str = "outdated") -> None:
        self.folder.set_aside(RESULT, reason, fault)

    def has_config(self) -> bool:
        try:
            return bool(self.config())
        except ValueError:
            return False

    def ensure_config(self, config: RunConfig | AnyEvaluation | TaskScores) -> None:
        """Stores the config if no intact one is stored. Sets a damaged config aside.

        Raises ValueError if `config` belongs to another node.
        """
        node_id = getattr(config, self.id_field)
        if node_id != self.node_id:
            raise invalid(
                self.id_field, node_id, f"the directory's {self.id_field}, {self.node_id}"
            )
        if self.has_config():
            return
        if self.folder.exists(CONFIG):
            self.folder.set_aside(CONFIG, f"it is not the config of {self.kind} {self.node_id}")
        self.folder.write_json(CONFIG, config)


@dataclass(frozen=True)
class EvaluationDirectory(NodeDirectory):
    """`<storage>/evaluations/<eval_id>/{config.json, tags.json, result.json, timing.json}`.

    Tensors are in `tensors-<hash>.safetensors`. The result contains this hash, so it never refers
    to tensors that another process wrote.
    """

    kind = "evaluation"
    id_field = "eval_id"
    result_kind = EvaluationResult

    def id_of(self, plain: Mapping) -> str:
        return evaluation_from_plain(plain).eval_id

    @property
    def eval_id(self) -> str:
        return self.node_id

    def timing(self) -> dict:
        """Reads the timing that `complete` stored. Returns {} if there is none."""
        return self.folder.read_or_set_aside(TIMING, EvaluationTiming)

    def complete(
        self,
        result: Mapping,
        timing: Mapping | None = None,
        tensors: Mapping[str, "torch.Tensor"] | None = None,
    ) -> dict:
        """Stores the tensors, and the result if there is none yet. Returns the stored result.

        `result` must have only deterministic fields. The stored result also has `eval_id`, `sha256`
        and the tensors' hash. `timing` has values such as `elapsed_s`. When stored, it also has
        `ended` and `host`.
        """
        if self.result() is None:
            facts = {**(timing or {}), "ended": time.time(), "host": socket.gethostname()}
            self.folder.write_sealed(TIMING, facts)
        if tensors:
            from gram_platform.store.tensors import hash_tensors, save_tensors

            digest = hash_tensors(tensors)
            self.folder.write_with(_tensors_name(digest), lambda path: save_tensors(path, tensors))
            result = {**result, TENSORS_HASH: digest}
        return self.publish(seal({**result, "eval_id": self.node_id}))

    def tensors(self) -> dict[str, "torch.Tensor"]:
        """Reads and verifies the tensors of a complete evaluation.

        Raises ValueError if the evaluation has no tensors. If their file is missing or corrupted,
        raises ValueError and sets the result aside, so that submitting again recomputes it.
        """
        from gram_platform.store.tensors import hash_tensors, load_tensors

        digest = (self.result() or {}).get(TENSORS_HASH)
        if not isinstance(digest, str):
            raise invalid("eval_id", self.node_id, "a complete evaluation that keeps tensors")
        name = _tensors_name(digest)
        try:
            with self.folder.local_copy(name) as path:
                tensors = load_tensors(path)
            if hash_tensors(tensors) == digest:
                return tensors
            self.folder.set_aside(name, WRONG_HASH)
        except FileNotFoundError:
            pass
        except ValueError as error:
            self.folder.set_aside(name, error)
        self.folder.set_aside(RESULT, f"{name} does not have its hash")
        expected = f"an evaluation with intact tensors; to make these again, {self.remedy}"
        raise invalid("eval_id", self.node_id, expected)


def _tensors_name(digest: str) -> str:
    return f"tensors-{digest[:16]}.safetensors"


@dataclass(frozen=True)
class ImportDirectory(NodeDirectory):
    """`<storage>/imports/<import_id>`: config `{"model": ...}`, weights, result and tokenizer."""

    kind = "import"
    id_field = "import_id"
    result_kind = ImportResult
    config_remedy = "import the model again"

    def id_of(self, plain: Mapping) -> str:
        return _hash_import(plain.get("model"), self.require_result())

    def complete(
        self,
        model: ModelConfig,
        fields: Mapping,
        write: Callable[[str], None],
        tokenizer: bytes | None = None,
    ) -> dict:
        """Stores an imported model and returns its result.

        `write(path)` writes the weights to a local path. `fields` has `weights_sha256` and fields
        about the model's origin. `tokenizer` is the content of tokenizer.json.
        """
        expected = import_id(model, fields["weights_sha256"], tokenizer)
        if self.node_id != expected:
            raise invalid("import_id", expected, f"the directory's import_id, {self.node_id}")
        self.folder.write_json(CONFIG, {"model": model})
        self.folder.write_with(WEIGHTS, write)
        if tokenizer is not None:
            self.folder.write(TOKENIZER, tokenizer)
            fields = {**fields, "tokenizer_sha256": _sha256(tokenizer)}
        return self.result() or self.publish(seal({**fields, "import_id": self.node_id}))

    def tokenizer(self, local: Path) -> Path | None:
        """Returns the local path of tokenizer.json, or None if the model has no tokenizer.

        If the storage is remote, copies the file to `local / "tokenizers"`.
        """
        expected = self.require_result().get("tokenizer_sha256")
        if expected is None:
            return None
        if isinstance(self.folder, LocalFolder):
            path = Path(self.folder.plain_file(TOKENIZER))
        else:
            copies = LocalFolder(str(local / "tokenizers"), writable=True)
            copies.write(f"{expected}.json", self.folder.read(TOKENIZER))
            path = Path(copies.file(f"{expected}.json"))
        if hash_file(path) != expected:
            raise self._alteration(TOKENIZER)
        return path

    @contextlib.contextmanager
    def open_weights(self) -> "Iterator[DiskTensors]":
        """Context manager that yields the verified weights. Each access reads them from disk.

        Raises CorruptFile if the weights were altered.
        """
        from gram_platform.store.shards import open_weights

        result = self.require_result()
        with open_weights(self.folder) as tensors:
            if tensors.sha256() != result["weights_sha256"]:
                raise self._alteration(WEIGHTS)
            yield tensors

    def _alteration(self, name: str) -> CorruptFile:
        file = f"{self.folder.path}/{name}"
        return CorruptFile(f"{file} differs from the imported file: import the model again")


def import_id(model: ModelConfig, weights_sha256: str, tokenizer: bytes | None = None) -> str:
    """Returns an imported model's id, a hash of its config, weights and tokenizer.json."""
    hashes = {"weights_sha256": weights_sha256}
    if tokenizer is not None:
        hashes["tokenizer_sha256"] = _sha256(tokenizer)
    return _hash_import(model, hashes)


def _hash_import(model: object, fields: Mapping) -> str:
    hashes = {k: fields[k] for k in ("weights_sha256", "tokenizer_sha256") if k in fields}
    return IMPORTED + short_hash({"model": model, **hashes})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
