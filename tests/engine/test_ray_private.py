"""Which module uses Ray beside its public calls."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.exceptions import RaySystemError, RayTaskError
from ray.train._internal.storage import StorageContext
from ray.tune import TuneError
from ray.tune.experiment import Trial

from gram_platform.engine.ray_private import error_of_trial

PACKAGE = Path(__file__).parents[2] / "gram_platform"


@pytest.fixture
def trial(tmp_path, monkeypatch) -> Trial:
    """A real trial whose files are in a folder of the test, not in that of a running Ray."""
    monkeypatch.setattr(StorageContext, "_get_session_path", lambda self: str(tmp_path / "ray"))
    storage = StorageContext(
        tmp_path.as_uri(), experiment_dir_name="experiment", trial_dir_name="trial"
    )
    trial = Trial("any", stub=True, storage=storage)
    trial.init_local_path()
    return trial


def test_one_module_imports_private_names_of_ray():
    found = {path for path in PACKAGE.rglob("*.py") if any(map(is_private, imported(path)))}
    assert {path.name for path in found} == {"ray_private.py"}, found


@pytest.mark.parametrize("error", [TuneError("no\nworker"), RaySystemError("no worker")])
def test_an_error_that_ray_tune_does_not_pickle_is_read_from_its_text(trial, error):
    trial.handle_error(RaySystemError("an earlier one"))
    trial.handle_error(error)
    assert str(error_of_trial(trial)) == str(error)


def test_an_error_of_a_trials_task_keeps_its_class(trial):
    trial.handle_error(RayTaskError("run", "text of the traceback", ValueError("wrong")))
    assert isinstance(error_of_trial(trial), RayTaskError)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_private(name: str) -> bool:
    library, *parts = name.split(".")
    return library == "ray" and any(part.startswith("_") or part == "generated" for part in parts)
