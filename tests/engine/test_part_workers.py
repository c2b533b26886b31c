"""Parts of a corpus as Ray tasks: the bytes of one process, and a killed worker loses its part
alone.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import InvalidField
from gram_platform.corpora import Packing, prepare, resolve, sources
from gram_platform.corpora.parts import PartFiles
from gram_platform.corpora.records import ChangedText, Unit
from gram_platform.engine import part_workers as part_workers_module
from gram_platform.engine.part_workers import STARTS_PACK_MACHINES, part_workers, placement
from tests.corpora.conftest import make_records, write_jsonl

pytestmark = pytest.mark.ray
SETTINGS = {
    "core_label": "core",
    "seq_len": 16,
    "vocab_size": 300,
    "validation_sequences": 20,
    "sample_bytes": 50_000,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("anywhere", [True, False])
def test_tasks_pack_the_bytes_of_one_process(ray_cluster, tmp_path, monkeypatch, anywhere):
    """A piece of a file, whole files and several files a part, where the keys of all decide the
    split.
    """
    draw, folder = random.Random(0), tmp_path / "text"
    write_jsonl(folder / "large.jsonl", make_records(0, 200))
    for seed in range(1, 12):
        write_jsonl(folder / f"{seed}.jsonl", make_records(seed, draw.randint(2, 30)))
    monkeypatch.setattr(sources, "PIECE_BYTES", 12_000)
    recipe, said = resolve(folder, Packing(**SETTINGS)), []
    alone = prepare(recipe, tmp_path / "alone")
    workers = part_workers(lambda: None, anywhere)
    packed = prepare(recipe, tmp_path / "together", lambda *report: said.append(report), workers)
    assert packed.manifest == alone.manifest
    last = [report for report in said if report[0].startswith("packing")][-1]
    num_parts = int(last[0].split(" of ")[1].split(",")[0])
    assert num_parts > 4
    assert last[0].startswith(f"packing, part {num_parts} of {num_parts}, ")
    assert last[1] == last[2]


def logged(log: Path, victim: int, part: tuple[Unit], folder: Path) -> None:
    """Writes the part's number; the process of the victim dies the first time, half-way."""
    number = part[0].span[0]
    with log.open("a") as file:
        file.write(f"{number}\n")
    (folder / "number").write_text(str(number))
    if number == victim and log.read_text().split().count(str(number)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(120)
def test_a_killed_worker_loses_its_part_alone(ray_cluster, tmp_path):
    parts = [(Unit((), span=(number, number + 1, 0)),) for number in range(12)]
    files = PartFiles(tmp_path / "parts", part_workers(lambda: None, True), lambda *report: None, 0)
    folders = files.write("packing", partial(logged, tmp_path / "log", 5), parts)
    assert [(folder / "number").read_text() for folder in folders] == [
        str(number) for number in range(12)
    ]
    assert Counter((tmp_path / "log").read_text().split()) == {
        str(n): 1 + (n == 5) for n in range(12)
    }
    again = files.write("packing", partial(logged, tmp_path / "log", 5), parts)
    assert again == folders
    assert len((tmp_path / "log").read_text().split()) == 13


@pytest.mark.timeout(120)
def test_a_bad_record_is_the_error_of_one_process(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PIECE_BYTES", 2_000)
    path = write_jsonl(tmp_path / "a.jsonl", make_records(0, 60))
    recipe = resolve(path, Packing(**SETTINGS))
    with path.open("a") as file:
        file.write("{\n")
    # And no error of Ray.
    with pytest.raises(ChangedText):
        prepare(recipe, tmp_path / "data", workers=part_workers(lambda: None, False))


def away(task: int) -> None:
    raise Unavailable(f"the hub does not answer {task}")


def test_a_server_that_is_away_is_no_bad_input(ray_cluster):
    """The caller of the tasks sees the kind of error that may pass."""
    with pytest.raises(Unavailable):
        list(part_workers(lambda: None, True)(away, range(2)))


PLACES = """
import json, os, time
import ray
from ray.cluster_utils import Cluster
from gram_platform.engine.machine import num_cpus
from gram_platform.engine.part_workers import part_workers, placement

small = {"object_store_memory": 100 * 2**20}
head = {"num_cpus": 0, "include_dashboard": False, **small}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=4, num_gpus=1, **small)
cluster.add_node(num_cpus=0, resources={"pack": 2}, **small)
ray.init(address=cluster.address, log_to_driver=False)
shapes = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
kind_of = lambda shape: next((kind for kind in ("GPU", "pack") if kind in shape), "driver")
kinds = {node: kind_of(shape) for node, shape in shapes.items()}

def work(task):
    time.sleep(0.3)
    return ray.get_runtime_context().get_node_id(), os.getpid()

seen = {"cores": num_cpus()}
for name, anywhere in (("anywhere", True), ("here", False)):
    found = [place for _, place in part_workers(lambda: None, anywhere)(work, range(8))]
    places, processes = ({place[k] for place in found} for k in (0, 1))
    at_once = placement(anywhere).at_once
    seen[name] = [sorted({kinds[node] for node in places}), len(processes), at_once]
print("SEEN", json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_machines_for_packing_are_used_and_no_machine_with_a_gpu():
    """And a driver's machine, without CPUs in Ray, does on all its cores what must be done
    there."""
    environment = {
        name: value for name, value in os.environ.items() if name != STARTS_PACK_MACHINES
    }
    command = [sys.executable, "-c", PLACES]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.split("SEEN ", 1)[1].splitlines()[0])
    assert seen["anywhere"][:2] == [["pack"], 2]
    assert seen["here"] == [["driver"], min(seen["cores"], 8), seen["cores"]]


def test_a_cluster_that_starts_machines_for_packing_is_asked_for_them_alone(
    ray_cluster, monkeypatch
):
    assert placement(anywhere=True).options["num_cpus"] == 1
    monkeypatch.setenv(STARTS_PACK_MACHINES, "1")
    monkeypatch.setattr(part_workers_module, "has_fixed_size", lambda: False)
    asked = placement(anywhere=True).options
    assert (asked["num_cpus"], asked["resources"]) == (0, {"pack": 1})
    assert placement(anywhere=False).options["num_cpus"] == 1, (
        "the text is on this machine, which has CPUs"
    )


def test_a_cluster_of_fixed_size_waits_for_no_machine_for_packing(ray_cluster, monkeypatch):
    """Such as a Ray in a container of our image, whose variable says what another cluster has."""
    monkeypatch.setenv(STARTS_PACK_MACHINES, "1")
    assert placement(anywhere=True).options["num_cpus"] == 1
    monkeypatch.setenv(STARTS_PACK_MACHINES, "true")
    with pytest.raises(InvalidField) as caught:
        placement(anywhere=True)
    assert (caught.value.field, caught.value.value) == (STARTS_PACK_MACHINES, "true")
