"""An evaluation's directory: config, tags, and a result that is written once."""

import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gram_platform.config import AnyEvaluation
from gram_platform.config.identity import invalid
from gram_platform.store.directory import RESULT, NodeDirectory
from gram_platform.store.files import CorruptFile, Folder, seal

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

    def status(self) -> str:
        """ "complete" or "absent": an evaluation is short enough to be done again from the beginning."""
        return "absent" if self.result() is None else "complete"

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
        from gram_platform.store.checkpoint import hash_tensors, load_tensors  # here, because it imports torch

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
        from gram_platform.store.checkpoint import hash_tensors, save_tensors

        digest = hash_tensors(tensors)
        self.folder.write_with(_tensors_name(digest), lambda path: save_tensors(path, tensors))
        return digest


def _tensors_name(digest: str) -> str:
    return f"tensors-{digest[:16]}.safetensors"
