"""Keeps which machines the last submission left out, for `gram status` and reports."""

import time
from collections.abc import Mapping, Sequence
from typing import TypedDict

from gram_platform.store.root import Store

# A file in the study's folder; absent where no machine was left out.
CORDONED = "cordoned.json"
# Unix times above it have no date.
MOST_SECONDS = 2**37


class Cordoned(TypedDict):
    """A machine that was left out: why, and since which Unix time."""

    message: str
    time: float


def write_cordoned(store: Store, study: str, machines: Sequence[Mapping]) -> None:
    """Writes the machines that were left out, as `Cordoned` with any other JSON fields."""
    folder = store.study_dir(study)
    if machines:
        folder.write_json(CORDONED, {"machines": list(machines)})
    else:
        folder.remove(CORDONED)


def read_cordoned(store: Store, study: str) -> list[dict]:
    """Reads the machines that the study's last submission left out."""
    machines = store.study_dir(study).read_spare(CORDONED, dict[str, list[Cordoned]])
    return [
        machine for machine in machines.get("machines", []) if 0 <= machine["time"] < MOST_SECONDS
    ]


def cordoned_lines(store: Store, study: str) -> list[str]:
    """Says of each machine that the last submission left out since when, and why."""
    lines = []
    for found in read_cordoned(store, study):
        date = time.strftime("%Y-%m-%d %H:%M", time.gmtime(found["time"]))
        lines.append(f"Left out since {date} UTC: {found['message']}.")
    return lines
