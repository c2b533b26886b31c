"""Trains smoke presets of studies and searches at two commits on this machine, and compares bytes:
a study in this process, a grid, and a campaign of studies with the other searches.

No hash is committed: other kinds of processors round differently.
"""

import contextlib
import csv
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    ("experiments/scaling.py", "--preset", "smoke", "--in-process"),
    ("experiments/lr_bs_grid.py", "--preset", "smoke"),
    (
        *("experiments/all.py", "--preset", "smoke"),
        *("--studies", "stories", "titration", "--searches", "hyperparams", "maxent_search"),
    ),
)
COMPARED = (
    "runs/*/result.json",
    "runs/*/attempts/*/weights.safetensors",
    "evaluations/*/result.json",
    "studies/*/*.csv",  # tables, and a search's trials
    "studies/*/law.json",
    "studies/*/best.json",
)
TIMES = ("elapsed_s",)  # columns that no two executions share
SURROUNDINGS = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI", "GRAM_STORAGE")


def compare_with(commit: str) -> int:
    """Trains here and at a commit, and prints each file as equal or different; returns 1 if one
    differs."""
    with (
        tempfile.TemporaryDirectory(prefix="gram-record-") as folder,
        worktree(commit, Path(folder, "code")) as code,
    ):
        now, before = (
            trained(root, Path(folder, name)) for root, name in ((ROOT, "now"), (code, "before"))
        )
    lines = compared(before, now)
    print("\n".join(lines))
    num_equal = sum(line.startswith("equal ") for line in lines)
    print(f"{num_equal} files are equal to those of {commit}, {len(lines) - num_equal} are not")
    return int(num_equal < len(lines) or not lines)


@contextlib.contextmanager
def worktree(commit: str, path: Path) -> Iterator[Path]:
    """The files of a commit at `path`, until the block ends."""
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)


def trained(root: Path, storage: Path) -> dict[str, str]:
    """Runs the campaign of a checkout in a new storage, and returns its hashes as `hashes`."""
    environment = {name: value for name, value in os.environ.items() if name not in SURROUNDINGS}
    environment |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local"}
    for command in COMMANDS:
        print(f"{storage.name}: {' '.join(command)}", flush=True)
        done = subprocess.run(
            [sys.executable, *command, "--storage", str(storage)],
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\n{' '.join(command)} in {root} ended with {done.returncode}")
    return hashes(storage)


def hashes(storage: Path) -> dict[str, str]:
    """Returns the SHA-256 of every compared file by its place in the storage, without the name of
    the attempt."""
    found = {}
    for path in (path for pattern in COMPARED for path in sorted(storage.glob(pattern))):
        place = path.relative_to(storage)
        name = Path(*place.parts[:2], place.name) if "attempts" in place.parts else place
        content = without_times(path) if path.suffix == ".csv" else path.read_bytes()
        found[str(name)] = hashlib.sha256(content).hexdigest()
    return found


def without_times(path: Path) -> bytes:
    """Returns a table's rows without the columns of times."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
    return repr(rows).encode()


def compared(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns a line for each file: equal, different, gone or new."""

    def state(name: str) -> str:
        if name not in now:
            return "gone"
        if name not in before:
            return "new"
        return "equal" if before[name] == now[name] else "different"

    return [f"{state(name)} {name}" for name in sorted({*before, *now})]
