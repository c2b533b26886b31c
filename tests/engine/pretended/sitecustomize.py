"""Pretended GPUs that fail; Python imports this file in every process that has its folder on
PYTHONPATH.

`$PRETENDED` names a folder with `plan.json`, and gets what happens in `log-<pid>.jsonl`. After its
first pretended error a process is of no use any more, as after a real one; on a machine with
`$BROKEN` no process is of any.
"""

import importlib.util
import json
import os
import random
import sys
import time
from pathlib import Path

FOLDER = os.environ.get("PRETENDED", "")
MOST = 3  # errors of a run between two checkpoints, and of an evaluation
TEXT = (
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported"
    " asynchronously"
)


class Device:
    """What is pretended in this process."""

    def __init__(self) -> None:
        self.plan = json.loads(Path(FOLDER, "plan.json").read_text())
        self.is_poisoned = "BROKEN" in os.environ
        self.dice, self.before = random.Random(f"{self.plan.get('seed')} {os.getpid()}"), 0.0

    def log(self, **facts) -> None:
        with open(Path(FOLDER, f"log-{os.getpid()}.jsonl"), "a") as file:
            file.write(
                json.dumps({"machine": os.environ["MACHINE"], "time": time.time(), **facts}) + "\n"
            )

    def use(self, node_id: str, step: int, committed: int = 0) -> None:
        """Uses the device for a step of a run, or for an evaluation; may raise the error of a
        device.
        """
        if not self.is_poisoned:
            kind = self._planned(node_id, step) or self._by_chance(node_id, committed)
            if kind:
                self.log(event=kind, id=node_id, step=step, committed=committed)
            if kind == "memory":
                raise MemoryError("pretended")
            self.is_poisoned = bool(kind)
        self.require()

    def require(self) -> None:
        if self.is_poisoned:
            raise RuntimeError(TEXT)

    def _planned(self, node_id: str, step: int) -> str:
        """`errors` of the plan: [id, step, kind, how often]."""
        for planned_id, planned_step, kind, number in self.plan.get("errors", ()):
            if (planned_id, planned_step) == (node_id, step) and counted(
                f"{node_id}-{step}", number
            ):
                return kind
        return ""

    def _by_chance(self, node_id: str, committed: int) -> str:
        """One error in `mean_s` of a process's work, at most `MOST` for a run between two
        checkpoints.
        """
        now = time.monotonic()
        elapsed_s, self.before = now - (self.before or now), now
        is_due = (
            "mean_s" in self.plan and self.dice.expovariate(1.0 / self.plan["mean_s"]) < elapsed_s
        )
        return "device" if is_due and counted(f"{node_id}-{committed}", MOST) else ""


def counted(name: str, most: int) -> bool:
    """Counts one more of a name, over all processes; False after `most`."""
    for number in range(most):
        try:
            os.close(os.open(Path(FOLDER, f"count-{name}-{number}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False


def change_torch(torch) -> None:
    ones = torch.ones

    def checked(*size, **how):
        if "device" in how:
            DEVICE.require()
        return ones(*size, **how)

    torch.ones = checked


def change_node(node) -> None:
    original = node.RunExecution._steps

    def steps(self, first_step):
        run_id = self.run.run_id
        DEVICE.log(event="start", id=run_id, step=first_step)
        DEVICE.require()
        for record in original(self, first_step):
            DEVICE.log(event="step", id=run_id, step=record.step)
            DEVICE.use(
                run_id, record.step, self.attempt.run.read_committed_step() if self.attempt else 0
            )
            yield record

    node.RunExecution._steps = steps


def change_evaluation(evaluation) -> None:
    original = evaluation.execute_profiles

    def execute_profiles(evaluations, *how):
        DEVICE.log(event="start", id=evaluations[0].eval_id, step=0)
        DEVICE.use(evaluations[0].eval_id, 0)
        return original(evaluations, *how)

    evaluation.execute_profiles = execute_profiles


CHANGES = {
    "torch": change_torch,
    "gram_platform.engine.node": change_node,
    "gram_platform.engine.evaluation": change_evaluation,
}


class Finder:
    """Changes a module right after its import."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in CHANGES:
            return None
        change = CHANGES.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER and "MACHINE" in os.environ:
    DEVICE = Device()
    sys.meta_path.insert(0, Finder)
