"""What the directories of runs and of evaluations share: config, tags, and a result that the first writer makes."""

import json
import warnings
from collections.abc import Mapping

from gram_platform.config.identity import canonical_json, invalid
from gram_platform.store.files import CorruptFile, Folder, unseal

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
