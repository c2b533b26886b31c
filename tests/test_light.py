"""Lists, help and misspelt words import nothing that takes seconds: they answer within a second of
a processor."""

import json
import subprocess
import sys

from gram_platform.cli import COMMANDS
from gram_platform.cli.run import OURS
from tests.conftest import ROOT

HEAVY = (
    *("torch", "ray", "mlflow", "pandas", "scipy", "plotly", "optuna", "sqlalchemy"),
    *("datasets", "pyarrow", "transformers", "huggingface_hub"),
)
LISTS = ([], ["methods"], ["presets"], ["corpora"], ["sizes"], ["studies", "--json"])
WRONG = (
    ["staus"],
    ["--hlep"],
    ["list", "metods"],
    ["run", "scalign"],
    ["run", "scaling", "--seds", "1"],
    ["run", "scaling", "--preset", "smok"],
    ["run", "scaling", "--preset", "smoke", "--methods", "filterin"],
    ["run", "scaling", "--preset", "smoke", "--sizes", "tinny"],
    ["run", "scaling", "--set", "routng.p_aux_spread=0.1"],
    ["run", "lr_bs_grid", "--preset", "smok"],
)
PROGRAM = """
import contextlib, io, json, runpy, sys
from gram_platform.cli import main
def run(command):
    if command[:1] != ["python"]:
        return main(command)
    sys.argv = command[1:]
    runpy.run_path(command[1], run_name="__main__")
commands, heavy = json.loads(sys.argv[1])
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            run(command)
            code = 0
        except SystemExit as end:
            code = end.code
    print(json.dumps([command, code, sorted(set(heavy) & set(sys.modules))]))
"""


def imported(commands, *arguments: str) -> list[tuple[list[str], int, list[str]]]:
    """Returns each command with its exit code and what it, or one before it, has imported of
    HEAVY."""
    texts = json.dumps([[*command, *arguments] for command in commands])
    command = [sys.executable, "-c", PROGRAM, f"[{texts}, {json.dumps(HEAVY)}]"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_lists_and_misspelt_words_import_nothing_heavy():
    found = imported([["list", *of] for of in LISTS] + list(WRONG))
    assert [code for _, code, _ in found] == [0] * len(LISTS) + [2] * len(WRONG)
    assert not [(command, heavy) for command, _, heavy in found if heavy]


def test_help_imports_nothing_heavy():
    found = imported(
        [[], *([name] for name in COMMANDS), *(["run", name] for name in OURS)], "--help"
    )
    assert {code for _, code, _ in found} == {0}
    assert not [(command, heavy) for command, _, heavy in found if heavy]


def test_the_files_of_experiments_import_nothing_heavy_before_the_flags_are_read():
    files = sorted(
        str(path)
        for path in (ROOT / "experiments").glob("*.py")
        if path.stem not in ("bench", "one_run")
    )
    found = imported([["python", file] for file in files], "--help")
    # It checks the flags of each study in its turn.
    wrong = [file for file in files if not file.endswith("/all.py")]
    found += imported([["python", file] for file in wrong], "--preset", "smok")
    assert [code for _, code, _ in found] == [0] * len(files) + [2] * len(wrong)
    assert not [(command, heavy) for command, _, heavy in found if heavy]


def test_a_storage_is_inspected_without_anything_heavy(tmp_path):
    found = imported((["status"], ["gc", "--dry-run"]), "--storage", str(tmp_path))
    assert [(code, heavy) for _, code, heavy in found] == [(0, [])] * 2
