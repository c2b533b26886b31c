"""docs/first-gpu.md: every block of commands as it is written, on the CPU at the smallest size."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/first-gpu.md").read_text()
STEPS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"(?:^    [^\n]*\n)+", re.MULTILINE)
BEGIN = BLOCK.findall(PAGE.split("## ")[0])[0]  # what the reader types first


def blocks(title: str) -> list[str]:
    return [textwrap.dedent(block) for block in BLOCK.findall(STEPS[title])]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home with programs `python` and `gcc`, whatever the machine has."""
    home = tmp_path_factory.mktemp("home")
    (home / "bin").mkdir()
    (home / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (home / "bin/python").chmod(0o755)
    return home


def run(home: Path, commands: str) -> subprocess.CompletedProcess:
    """In one shell, after the page's first lines; waits for what runs in the background."""
    path = os.pathsep.join([str(home / "bin"), os.environ["PATH"]])
    rehearsal = {
        "HOME": str(home),
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "DEVICE": "cpu",
        "SIZES": "tiny",
    }
    script = f"{textwrap.dedent(BEGIN)}\n{commands}\ncode=$?; wait; exit $code"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=os.environ | rehearsal,
        capture_output=True,
        text=True,
        check=False,
    )


def step(home: Path, title: str, codes=(0,)) -> str:
    """What the blocks of a step print; each ends with one of the codes, the last command's."""
    printed = ""
    for block in blocks(title):
        done = run(home, block)
        assert done.returncode in codes, block + done.stdout[-2000:] + done.stderr[-2000:]
        printed += done.stdout
    return printed


@pytest.mark.slow  # `tests/train/test_sharding.py` compares ranks with one process too
def test_two_ranks(home):
    check, study = blocks("Two GPUs and more")
    done = run(home, check)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" holds") == 5
    assert (home / "first-gpu/ranks.txt").read_text() == done.stdout
    # Needs two GPUs, or some minutes: tests/engine has it on CPUs.
    assert "--num-workers 2" in study


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_from_here_and_back(home):
    on_gpu, rehearsal = blocks("0. Before, on any machine")
    assert "12 nodes" in run(home, on_gpu).stdout
    assert run(home, rehearsal).returncode == 0
    step(home, "2. Text, in the background: 50 s of one core")
    assert list((home / "first-gpu/gpu/data").iterdir()), (home / "first-gpu/pack.log").read_text()
    printed = step(home, "6. Real runs: 100 s", codes=(0, 3))
    assert re.search(r"results.tar.gz: \d+ of \d+ nodes", printed)
    assert "FAILED" not in printed
    assert "files written to" in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("title", "codes", "shown"),
    [
        # The code is 1 where no daemon shares a GPU.
        ("1. The machine: 20 s", (0, 1), " (None|[0-9]+) (True|False)\n"),
        ("3. Is the GPU fit? 60 s", (0, 1), "planner's table"),  # 1: this machine may be busy
        ("4. FSDP2 on one GPU: 60 s", (0,), "resumed from 1 rank tiny, float32"),
        ("5. Compiled, merged, together: 200 s", (0,), "micro-batches of tiny"),
    ],
)
def test_the_other_steps(home, title, codes, shown):
    printed = step(home, title, codes)
    assert re.search(shown, printed)
    missed = [line for line in printed.splitlines() if line.endswith(" missed")]
    # These rows compare speeds, and this machine may be busy.
    assert all(line.startswith(("training ", "2 small runs", "4 small runs")) for line in missed), (
        missed
    )
