"""What a package of this project says of its dependencies, and reading results where those of
training are missing."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from benchmarks.many_runs import write_study
from gram_platform import load_curves, load_runs, load_store, load_store_curves
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from tests.cluster import files
from tests.cluster.files import constraint
from tests.test_architecture import PACKAGE, ROOT, foreign, imported_modules, python_files, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
REQUIRED = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(text) for text in texts]
    for name, texts in PROJECT["optional-dependencies"].items()
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
BY_YEAR = {"fsspec", "s3fs", "gcsfs"}
NOT_TO_READ = {"torch", "ray", "optuna", "datasets", "tokenizers", "transformers", "safetensors"}
READ = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import gram_platform as gram
frames = [gram.load_store({storage!r}), gram.load_store_curves({storage!r})]
frames += [gram.load_runs({uri!r}), gram.load_curves({uri!r})]
print(json.dumps([frame.to_csv(index=False) for frame in frames]))
"""


def test_the_versions_of_python_agree():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [v for v in (f"3.{minor}" for minor in range(30)) if v in allowed] == PYTHONS
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())["jobs"]
    assert jobs["pinned"]["strategy"]["matrix"]["python"] == PYTHONS
    assert {
        setting["with"]["python-version"]
        for job in jobs.values()
        for setting in job["steps"]
        if "setup-python" in setting.get("uses", "")
    } == {PYTHONS[0], PYTHONS[-1], "${{ matrix.python }}"}
    named = re.search(r"Python (3\.\d[\d., or]+)", (ROOT / "README.md").read_text())
    assert re.findall(r"3\.\d+", named[1]) == PYTHONS


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_takes_a_python_that_passes_the_tests(tmp_path):
    place, taken = tmp_path / "python3", []
    for name in ("3.10", *PYTHONS, f"3.{int(PYTHONS[-1][2:]) + 1}"):
        pretended = f"import sys; sys.version_info = ({name.replace('.', ', ')}, 0)"
        place.write_text(
            f"#!/bin/sh\nexec {sys.executable} -c '{pretended}; exec(sys.argv[2])' \"$@\"\n"
        )
        place.chmod(0o755)
        command = [shutil.which("make"), "-n", "setup", f"VENV={tmp_path / 'venv'}"]
        found = subprocess.run(
            command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True
        )
        taken += [name] if "python3 -m venv" in found.stdout else []
    assert taken == PYTHONS


def test_every_direct_import_is_declared():
    names = foreign({name for path in python_files(PACKAGE) for name in imported_modules(path)})
    known = {
        name: set(map(canonicalize_name, found)) for name, found in packages_distributions().items()
    }
    declared = {canonicalize_name(requirement.name) for requirement in REQUIRED}
    of_extras = {"huggingface_hub", "transformers", "lm_eval", "wandb"}
    assert not [name for name in names - of_extras if not known[name] & declared]
    assert not declared - {distribution for name in names for distribution in known.get(name, ())}
    assert {"huggingface_hub", "transformers"} == {
        requirement.name for requirement in EXTRAS["hub"]
    }
    assert "lm-eval" in {requirement.name for requirement in EXTRAS["eval"]}


@pytest.mark.parametrize("requirement", REQUIRED, ids=lambda one: one.name)
def test_what_is_installed_is_allowed_and_the_next_major_is_not(requirement):
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)
    next_major = f"{int(re.match(r'[0-9]+', constraint(requirement.name))[0]) + 2}.0"
    assert requirement.specifier.contains(next_major) == (requirement.name in BY_YEAR)


def test_all_has_the_other_extras():
    (everything,) = EXTRAS["all"]
    assert (everything.name, everything.extras) == (
        PROJECT["name"],
        EXTRAS.keys() - {"all", "dev", "s3-tests"},
    )


def test_no_text_for_users_names_a_file_of_a_checkout():
    """A wheel has neither `docs` nor `experiments`. Of docstrings, `--help` shows only flags'."""
    found, of_checkout = [], re.compile(r"(?<![/#\w])(?:docs|experiments)/\w")
    for path in python_files(PACKAGE):
        tree = tree_of(path)
        nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
        docstrings = [ast.get_docstring(node, clean=False) for node in nodes]
        shows_docstrings = path.parent.name == "cli" or path.name == "flags.py"
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        texts = [text for text in texts if shows_docstrings or text not in docstrings]
        found += [text for text in texts if isinstance(text, str) and of_checkout.search(text)]
    for path in (ROOT / PACKAGE).rglob("*.html"):
        found += of_checkout.findall(path.read_text())
    assert found == []


@pytest.mark.parametrize("repository", ["", "https://host.example/ORG/NAME"])
def test_the_description_leads_nowhere_that_an_index_lacks(repository):
    environment = os.environ | {"GRAM_REPOSITORY": repository}
    command = [sys.executable, "setup.py", "--long-description"]
    text = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    places = re.findall(r"\]\(([^)]*)\)", text)
    assert (f"]({repository}/raw/HEAD/docs/scaling-study.png)" in text) == bool(repository)
    assert ("[FINDINGS.md](" in text) == bool(repository)
    assert all("://" in place or place.startswith("#") for place in places)


def test_the_images_can_measure_a_gpus_utilisation():
    """By a version that the extra for machines of one's own allows too."""
    (nvml,) = EXTRAS["gpu"]
    pins = dict(
        line.split()[0].split("==")
        for line in files.text("requirements.txt").splitlines()
        if "==" in line
    )
    assert nvml.specifier.contains(pins[nvml.name])


def test_results_are_read_where_torch_and_ray_are_missing(tmp_path):
    storage, uri = str(tmp_path), f"sqlite:///{tmp_path}/mlflow.db"
    write_study(storage, num_runs=10, num_points=4)
    Tracker(uri).sync(Store(storage))
    frames = [load_store(storage), load_store_curves(storage), load_runs(uri), load_curves(uri)]
    code = READ.format(absent=NOT_TO_READ, storage=storage, uri=uri)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        frame.to_csv(index=False) for frame in frames
    ]
    assert len(frames[0]) == len(frames[2]) == 10 + 2 * 7
