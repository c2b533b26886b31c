"""Watches a study's runs in the bucket, twice a second, from the storage's own host: no cut link
hides them.
"""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.cluster.box.cluster import S3_PORT, Cluster

POLL_S = 0.5
WATCH = """
import boto3, json, sys, time
s3 = boto3.client("s3", endpoint_url=f"http://localhost:{sys.argv[2]}")
before = None
while True:
    prefix = f"{sys.argv[1]}/runs/"
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="gram", Prefix=prefix)
    keys = [entry["Key"].split("/")[2:] for page in pages for entry in page.get("Contents", ())]
    runs = {key[0]: {"attempts": {}, "step": 0, "done": False} for key in keys}
    for key in keys:
        run = runs[key[0]]
        run["done"] |= key[1] == "result.json"
        if key[1] == "attempts" and key[3] == "lease.json":
            found = s3.get_object(Bucket="gram", Key=prefix + "/".join(key))
            lease = json.loads(found["Body"].read())
            shown = ("step", "host", "released", "time")
            run["attempts"][key[2]] = {name: lease[name] for name in shown}
        if key[1] == "attempts" and key[3] == "checkpoints" and key[-1] == "manifest.json":
            run["step"] = max(run["step"], int(key[4]))
    if runs != before:
        print(json.dumps({"time": time.time(), "runs": runs}), flush=True)
    before = runs
    time.sleep(float(sys.argv[3]))
"""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Place:
    """Where a run was at a moment: its newest attempt, that one's host and step, and the newest
    checkpoint's step.
    """

    run_id: str
    attempt: str
    host: str
    step: int
    checkpoint: int


class Watch:
    """What the bucket showed of one storage's runs; each look is {"time": Unix time, "runs": {run
    id: ...}}.

    A run has `attempts` (by id: step, host, released, time of the lease), `step` (of the newest
    checkpoint) and `done`.
    """

    def __init__(self, cluster: Cluster, storage: str, log: Path) -> None:
        self.cluster, self.log = cluster, log
        command = ("python", "-c", WATCH, storage.removeprefix("s3://gram/"), S3_PORT, POLL_S)
        self.process = cluster["storage"].start(*command, log=log, env=cluster.variables)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster["storage"].kill(self.process)

    def looks(self) -> list[dict]:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, find: Callable[[dict], Value | None], timeout_s: float) -> Value:
        """What `find` returns of the newest look's runs, once that is not None."""
        deadline = time.monotonic() + timeout_s
        while (found := find((self.looks() or [{"runs": {}}])[-1]["runs"])) is None:
            assert time.monotonic() < deadline, f"after {timeout_s} s: {self.looks()[-1:]}"
            time.sleep(POLL_S)
        return found

    def place(self, step: int, timeout_s: float) -> Place:
        """A run under way that has made this step, and has a checkpoint."""

        def find(runs: dict) -> Place | None:
            for run_id, run in runs.items():
                for attempt, lease in sorted(run["attempts"].items())[-1:]:
                    if (
                        lease["step"] >= step
                        and run["step"]
                        and not (run["done"] or lease["released"])
                    ):
                        return Place(run_id, attempt, lease["host"], lease["step"], run["step"])
            return None

        return self.wait_for(find, timeout_s)

    def next_step_s(self, place: Place, winner: str, since: float) -> float:
        """Seconds from `since` until the bucket showed another step of the run by the attempt that
        won in the end.

        A heartbeat that was under way at that time does not count.
        """
        last = place.step if winner == place.attempt else 0
        for look in self.looks():
            step = (
                look["runs"]
                .get(place.run_id, {"attempts": {}})["attempts"]
                .get(winner, {"step": 0})["step"]
            )
            if look["time"] < since + 2 * POLL_S:
                last = max(last, step)
            elif step > last:
                return look["time"] - since
        raise AssertionError(f"{winner} made no step of {place.run_id}")

    def repeated_steps(self, run_id: str) -> int:
        """Steps that more than one attempt made: of each attempt those beyond the checkpoint that
        the next began at.
        """
        began: dict[str, int] = {}  # attempt -> step of the checkpoint when it was first seen
        made: dict[str, int] = {}
        for look in self.looks():
            run = look["runs"].get(run_id, {"attempts": {}, "step": 0})
            for name, lease in run["attempts"].items():
                began.setdefault(name, run["step"])
                made[name] = max(made.get(name, 0), lease["step"])
        return sum(
            max(0, made[name] - began[after]) for name, after in itertools.pairwise(sorted(began))
        )

    def finished(self, before: float) -> dict[str, int]:
        """The runs that had a result at a time, with the number of their attempts then."""
        looks = [look for look in self.looks() if look["time"] <= before]
        runs = looks[-1]["runs"] if looks else {}
        return {run_id: len(run["attempts"]) for run_id, run in runs.items() if run["done"]}
