"""A study without Ray: in this process, and its nodes on a machine that has hardly more than
torch."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gram_platform.engine.handover import main, read_nodes
from gram_platform.studies.library import scaling, stories
from tests.refused import refused
from tests.studies.processes import ROOT, SMALL, attempts, results, submit, table, written
from tests.submitted import execute, parse, plan_of
from tests.test_architecture import NOT_IN_CORE

NO_RAY = {"ray_address": "127.0.0.1:1"}  # nothing listens there: a study that starts Ray fails
ELSEWHERE = f"""
import sys
from importlib.machinery import PathFinder
class Poor(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = {sorted(NOT_IN_CORE - {"safetensors", "fsspec", "tokenizers"})!r}
        return None if name.split(".")[0] in absent else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Poor
from gram_platform.engine.handover import main
main(sys.argv[1:])
"""

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def elsewhere(*arguments: str) -> subprocess.CompletedProcess:
    """Runs the other machine's command in a process without the libraries that it does not have."""
    command = [sys.executable, "-c", ELSEWHERE, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """The file of a study's missing nodes: all of them."""
    folder = tmp_path_factory.mktemp("exported")
    output = submit(
        folder / "storage", (*SMALL, "--export-nodes", str(folder / "nodes.json")), **NO_RAY
    )
    assert "12 of 12 nodes" in output
    assert not (folder / "storage").exists()
    return folder / "nodes.json"


@pytest.mark.slow
def test_a_study_in_process_writes_the_same_bytes(finished_study, prepared_storage):
    output = submit(prepared_storage, (*SMALL, "--in-process"), **NO_RAY)
    assert re.search(r"12 of 12 .*: 12 now", output)
    assert results(prepared_storage) == results(finished_study)
    assert table(prepared_storage) == table(finished_study)


@pytest.mark.slow
def test_results_from_elsewhere_are_a_studys_own(exported, finished_study, tmp_path):
    archive, away, home = tmp_path / "results.tar.gz", tmp_path / "away", tmp_path / "home"
    flags = (str(exported), "--storage", str(away), "--archive", str(archive))
    first = elsewhere(*flags, "--max-minutes", "0.0001")
    assert first.returncode == 3, first.stderr
    for _ in range(2):  # the second time it finds everything done
        done = elsewhere(*flags, "--device", "cpu")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].split(", ") == ["12 of 12 nodes done", "0 failed"]
    with tarfile.open(archive) as packed:
        assert not [
            name for name in packed.getnames() if "weights" in name or "checkpoints" in name
        ]
    output = subprocess.run(
        [
            sys.executable,
            "-m",
            "gram_platform.engine.handover",
            str(archive),
            "--unpack",
            "--storage",
            str(home),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"files written to {home}" in output.stdout
    before = (results(home), written(home), attempts(home))
    assert before[0] == results(finished_study)
    output = submit(home, (*SMALL, "--in-process"), **NO_RAY)
    assert re.search(r"12 of 12 .*: 0 now", output)
    assert (results(home), written(home), attempts(home)) == before
    assert table(home) == table(finished_study)


@pytest.mark.slow
def test_missing_nodes_come_with_the_runs_that_they_need(finished_copy, tmp_path):
    """Weights do not travel: a missing evaluation is exported with its run."""
    nodes = read_nodes(export(finished_copy, tmp_path))[0]
    assert nodes == []
    (lost,) = [path for path in finished_copy.glob("evaluations/*") if baseline(path)]
    (lost / "result.json").unlink()
    (run, evaluation), recipes = read_nodes(export(finished_copy, tmp_path))
    assert evaluation.id == lost.name
    assert evaluation.needs == {run.id}
    assert list(recipes) == [run.config.data.data_id]


def baseline(folder: Path) -> bool:
    return '"method":"baseline"' in (folder / "tags.json").read_text().replace(" ", "")


def export(storage: Path, folder: Path) -> Path:
    path = folder / "nodes.json"
    flags = parse(scaling.STUDY, [*SMALL, "--storage", str(storage), "--export-nodes", str(path)])
    assert execute(scaling.STUDY, flags) == 0
    return path


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: "[" * 100_000,
        lambda plain: plain | {"nodes": 7},
        lambda plain: (
            plain | {"nodes": [n | {"tags": n["tags"] | {"seed": 0}} for n in plain["nodes"]]}
        ),
        lambda plain: plain | {"nodes": plain["nodes"][1:]},
        lambda plain: json.dumps(plain).replace('"seed": 0', '"seed": 1'),
    ],
    ids=["deep", "nodes", "number as a tag", "without a run", "other ids"],
)
def test_a_changed_file_is_refused_before_anything_starts(exported, tmp_path, change):
    changed, storage = tmp_path / "nodes.json", tmp_path / "storage"
    plain = change(json.loads(exported.read_text()))
    changed.write_text(plain if isinstance(plain, str) else json.dumps(plain))
    with pytest.raises(SystemExit) as ended:
        main([str(changed), "--storage", str(storage)])
    assert ended.value.code == 2
    assert not storage.exists()


def test_text_that_is_elsewhere_is_asked_for(exported, tmp_path):
    """Only generated stories are packed from a recipe."""
    changed = tmp_path / "nodes.json"
    changed.write_text(exported.read_text().replace('"StoriesSource"', '"FilesSource"'))
    with pytest.raises(SystemExit) as ended:
        main([str(changed), "--storage", str(tmp_path / "storage")])
    assert ended.value.code == 2
    assert not list((tmp_path / "storage").glob("runs/*"))


def test_flags_that_need_ray_are_refused(tmp_path):
    for wanted in ("2", "tiny=2", "auto"):
        with refused("num_workers"):
            plan_of(scaling.STUDY, ["--preset", "smoke", "--in-process", "--num-workers", wanted])
    with refused("export_nodes"):
        plan_of(
            scaling.STUDY,
            [
                "--preset",
                "smoke",
                "--sizes",
                "tiny",
                "--start",
                "imported-x",
                "--export-nodes",
                "f",
            ],
        )
    for wanted in (["--in-process"], ["--export-nodes", str(tmp_path / "f")]):
        flags = parse(stories.STUDY, ["--preset", "paper", "--storage", str(tmp_path), *wanted])
        with refused(wanted[0].removeprefix("--").replace("-", "_")):
            execute(stories.STUDY, flags)
    assert not [*tmp_path.iterdir()]
    flags = parse(
        stories.STUDY, ["--preset", "demo", "--export-nodes", str(tmp_path / "no folder" / "f")]
    )
    with refused("export_nodes"):
        execute(stories.STUDY, flags)
