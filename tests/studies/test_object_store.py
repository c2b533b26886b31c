"""A study whose storage is an object store, on two machines that share nothing else."""

import json
import re
from pathlib import Path

import pytest

from gram_platform.corpora.parts import parts_of
from gram_platform.corpora.records import documents
from gram_platform.studies.library.scaling import STUDY
from tests.studies.mirrored import assert_mirrored_once
from tests.studies.processes import PYTHONPATH, SMALL, results, submit
from tests.submitted import study_plan

pytestmark = pytest.mark.ray


@pytest.fixture
def two_machines(tmp_path, monkeypatch):
    """Two nodes of Ray with one CPU and a data cache each; the driver has a third cache."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    cluster = Cluster()
    for machine in ("first", "second"):
        cache = {"GRAM_CACHE": str(tmp_path / machine)}
        cluster.add_node(
            num_cpus=1, object_store_memory=100 * 2**20, env_vars=cache, include_dashboard=False
        )
    monkeypatch.setenv("GRAM_CACHE", str(tmp_path / "driver"))
    yield cluster
    cluster.shutdown()


@pytest.mark.slow  # tests/store and the studies' own tests are the quick relatives
def test_a_study_in_an_object_store(finished_study, two_machines, tmp_path):
    bucket = tmp_path / "bucket"
    Path(f"{bucket}.log").touch()
    flags = (*SMALL, "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db")
    output = submit(bucket, flags, url=f"shelf://{bucket}", ray_address=two_machines.address)
    assert "nodes done" in output
    assert results(bucket) == results(finished_study)
    for machine in ("driver", "first", "second"):
        assert len(list((tmp_path / machine).glob("*/data/*/manifest.json"))) == 1, machine
    reads = [
        line
        for line in Path(f"{bucket}.log").read_text().splitlines()
        if line.startswith("cat_file")
    ]
    of_data = [line for line in reads if "/data/" in line and "manifest" not in line]
    assert len(of_data) == 2 * len(set(of_data))  # each file once for each machine
    assert_mirrored_once(bucket, f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.slow
def test_ranks_of_a_study_in_an_object_store(two_machines, tmp_path):
    """Ray Train keeps its own files in the store that the study names, by the study's credentials.

    The ranks of a machine fetch the training data of a corpus of the hub block by block, into one
    folder.
    """
    bucket = tmp_path / "bucket"
    Path(f"{bucket}.log").touch()
    corpus = f"hf://json?label=label&text=text&core=core&files={written_stories(tmp_path)}"
    place = ("--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db")
    flags = (*SMALL, "--corpus", corpus, "--num-workers", "2", *place)
    output = submit(bucket, flags, url=f"shelf://{bucket}", ray_address=two_machines.address)
    assert re.search(r"12 of 12 .*: 12 now", output)
    assert len(list((bucket / "ray_train").iterdir())) >= 2
    for machine in ("first", "second"):
        (blocks,) = (tmp_path / machine).glob("*/data/blocks-*")
        assert any(path.stat().st_blocks for path in blocks.glob("train/*.bin")), machine


def written_stories(folder: Path) -> Path:
    """Writes the stories of the smoke presets to a file that `datasets` reads as it reads the
    hub."""
    recipe = study_plan(STUDY, [*SMALL, "--storage", str(folder / "empty")]).corpora[0]
    stories = documents(
        recipe, tuple(unit for part in parts_of(recipe, recipe.units) for unit in part)
    )
    rows = [json.dumps({"label": label, "text": text}) for label, text in stories]
    path = folder / "stories.jsonl"
    path.write_text("\n".join(rows))
    return path
