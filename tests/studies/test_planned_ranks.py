"""The ranks that a dry run prints are those with which Ray starts the runs."""

import importlib
import pkgutil
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from gram_platform.store import Store
from gram_platform.studies import library
from gram_platform.studies.dry_run import describe
from gram_platform.studies.library import scaling
from gram_platform.studies.workplace import open_workplace, with_ranks
from tests.submitted import plan_of


def module_of(name: str):
    return importlib.import_module(f"{library.__name__}.{name}")


NAMES = [module.name for module in pkgutil.iter_modules(library.__path__)]
STUDIES = [name for name in NAMES if hasattr(module_of(name), "STUDY")]
QUICK = ("scaling", "finetuning")


def printed_ranks(text: str) -> dict[tuple[str, str], int]:
    """The ranks by (method, size) in the table of memory; {} if the runs are too small for one."""
    lines = text.partition("\nmemory of one")[2].partition("\nranks: ")[0].splitlines()[2:]
    cells = (re.split(r"  +", line.strip()) for line in lines)
    return {(method, size): int(ranks) for method, size, _, ranks, *_ in cells}


def compare(study_name: str, storage: str) -> None:
    """Compares all presets of a study on a pretended machine with eight GPUs."""
    import ray

    ray.init(address="local", num_cpus=16, num_gpus=8, include_dashboard=False)
    module = module_of(study_name)
    for name, preset in module.STUDY.presets.items():
        device = "cpu" if preset.machine == "cpu" else "cuda"
        place = f"{storage}/{name}"
        words = ["--preset", name, "--seeds", "1", "--device", device, "--storage", place]
        plan = plan_of(module.STUDY, words)
        printed = printed_ranks(describe(plan))
        store = Store(place).open_for_writing()
        at = open_workplace(with_ranks(plan.on(device), store)[0], store, print)
        given = defaultdict(set)
        for node in plan.nodes:
            if node.is_run:
                line = node.method + " attacks" * node.is_attack, node.size
                given[line].add(at.placements[node.id].fewest.num_ranks)
        assert all(len(numbers) == 1 for numbers in given.values()), given
        expected = printed or dict.fromkeys(given, 1)
        assert {line: number for line, (number,) in given.items()} == expected, name
        print(f"compared {name}: {sorted(set(expected.values()))}")


@pytest.mark.parametrize(
    "study_name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STUDIES],
)
def test_every_preset_runs_on_the_ranks_that_its_dry_run_prints(study_name, tmp_path):
    code = (
        "import sys; from tests.studies.test_planned_ranks import compare; compare(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, study_name, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    module = module_of(study_name)
    assert done.stdout.count("compared ") == len(module.STUDY.presets)


def test_runs_that_have_begun_keep_their_ranks(storage):
    words = ["--preset", "paper", "--sizes", "50M", "--methods", "baseline", "--device", "cuda"]
    words += ["--seeds", "2", "--hardware", "8xH100", "--storage", str(storage)]
    plan, store = plan_of(scaling.STUDY, words), Store(storage).open_for_writing()
    one, other = (node for node in plan.nodes if node.is_run)
    begun = store.run(one.id)
    begun.ensure_config(one.config)
    with begun.start_attempt("a user") as attempt:
        attempt.heartbeat(1, 8, 100.0, num_ranks=8)
        while begun.progress()["step"] != 1:
            time.sleep(0.05)
    ranks = with_ranks(plan, store)[0].studies[0].ranks
    assert ranks.of(one.config, "50M") == 8 > ranks.of(other.config, "50M")
