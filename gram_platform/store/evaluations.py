"""An evaluation's directory: config, tags, and a result that is written once."""

import socket
import time
from collections.abc import Mapping

from gram_platform.config import Evaluation
from gram_platform.identity import invalid
from gram_platform.store.directory import NodeDirectory
from gram_platform.store.files import Folder, seal


class EvaluationDirectory(NodeDirectory):
    """`<storage>/evaluations/<eval_id>/{config.json, tags.json, result.json, timing.json}`."""

    kind = "evaluation"
    id_field = "eval_id"

    def __init__(self, root: Folder, eval_id: str) -> None:
        super().__init__(root.child("evaluations", eval_id), eval_id)
        self.eval_id = eval_id

    def ensure_config(self, evaluation: Evaluation) -> None:
        """Store the config; ValueError when the directory belongs to another one."""
        if evaluation.eval_id != self.eval_id:
            raise invalid("eval_id", evaluation.eval_id, f"{self.eval_id}, the directory's")
        self._ensure_config(evaluation)

    def status(self) -> str:
        """ "complete" or "absent": an evaluation is short enough to be done again from the beginning."""
        return "absent" if self.result() is None else "complete"

    def timing(self) -> dict:
        """When and where the evaluation ended and how long it took, if that is known; {} before the end."""
        return self.folder.read_json("timing.json") or {}

    def complete(self, result: Mapping, timing: Mapping | None = None) -> dict:
        """Write the deterministic fields of `result` (eval_id and sha256 are added); returns the result in force.

        `timing` may hold `elapsed_s`; the time of the end and the host are added.
        """
        if self.result() is None:
            self.folder.write_json(
                "timing.json", {**(timing or {}), "ended": time.time(), "host": socket.gethostname()}
            )
        return self.publish(seal({**result, "eval_id": self.eval_id}))
