"""Which nodes are done, in an object store whose requests are counted."""

import math
from collections import Counter
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pandas.testing import assert_frame_equal

from benchmarks.driver import planted
from benchmarks.many_runs import write_study
from gram_platform.engine.execution import Execution
from gram_platform.engine.life import DIVERGENCE, NodeLifecycle
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import load_runs, load_store
from tests.executed import run_in_process

PAGE = 100  # keys of a listing; S3, Google's and Azure's stores give 1,000
FILES = 3  # of a planted node: config, tags, result


class Counted(MemoryFileSystem):
    """Counts requests; a listing takes one for each page of keys."""

    protocol = "counted"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    requests: ClassVar[Counter] = Counter()

    def find(self, path, detail=False, **kwargs):
        prefix = self._strip_protocol(path) + "/"
        keys = sorted(key for key in self.store if key.startswith(prefix))
        self.requests["find"] += max(1, math.ceil(len(keys) / PAGE))
        return {
            key: {"name": key, "size": self.store[key].size, "created": self.store[key].modified}
            for key in keys
        }


def _counting(name):
    original = getattr(MemoryFileSystem, name)

    def call(self, *args, **kwargs):
        self.requests[name] += 1
        return original(self, *args, **kwargs)

    return call


for _name in ("cat_file", "pipe_file", "exists", "ls", "rm", "mv"):
    setattr(Counted, _name, _counting(_name))
fsspec.register_implementation("counted", Counted, clobber=True)


@pytest.fixture(autouse=True)
def empty():
    Counted.store.clear()
    Counted.pseudo_dirs[:] = [""]
    Counted.requests.clear()


def finished_study(number: int) -> Store:
    """A storage in which a study of this many nodes is done."""
    store = Store(f"counted://bucket/of-{number}").open_for_writing()
    for node in planted(number):
        directory = store.node(node.kind, node.id)
        directory.ensure_config(node.config)
        directory.add_tags(node.names)
        hashes = {"weights_sha256": "0" * 64} if node.is_run else {}
        directory.folder.write_sealed("result.json", {directory.id_field: node.id, **hashes})
    return store


def requests_of_submission(store: Store, number: int) -> int:
    Counted.requests.clear()
    progress = run_in_process(planted(number), Execution(store.root))
    assert len(progress.done) == progress.reused == number
    return Counted.requests.total()


def test_a_study_that_is_done_costs_a_request_for_each_page_of_the_listing():
    """Once the storage has been looked through: the first submission after the end reads what it
    does not know."""
    requests = {}
    for number in (10, 100):
        store = finished_study(number)
        assert requests_of_submission(store, number) > 2 * number
        requests[number] = requests_of_submission(store, number)
    more_pages = FILES * (100 - 10) // PAGE + 1
    assert requests[100] - requests[10] <= more_pages
    assert requests[100] < 20


def test_what_changed_since_is_read_again():
    store, nodes = finished_study(20), planted(20)
    lifecycle = NodeLifecycle(store)
    assert set(lifecycle.ends(nodes).values()) == {""}
    Counted.requests.clear()
    torn, removed, retagged = (store.node(node.kind, node.id) for node in nodes[:3])
    torn.folder.write("result.json", b"{")
    removed.folder.remove("result.json")
    retagged.add_tags({"study": "another"})
    with pytest.warns(RuntimeWarning, match=torn.node_id):
        ends = lifecycle.ends(nodes)
    lost = {nodes[0].id, nodes[1].id}
    # What needs a run that is trained again is compared with it afterwards.
    waiting = {node.id for node in nodes if node.needs & lost}
    assert {node.id for node in nodes if ends[node.id] is None} == lost | waiting
    found = store.read_finished([(nodes[2].kind, nodes[2].id)])[nodes[2].id]
    assert found is not None
    assert found.tags == retagged.tags()
    assert found.sha256 == retagged.result()["sha256"]


def test_nodes_that_nobody_began_cost_nothing_and_begun_ones_are_looked_at():
    store = Store("counted://bucket/new").open_for_writing()
    nodes = planted(50)
    store.run(nodes[0].id).record_failure("0001-x", "not finite", DIVERGENCE)
    store.run(nodes[5].id).ensure_config(nodes[5].config)
    Counted.requests.clear()
    ends = NodeLifecycle(store).ends(nodes)
    assert {node_id: end for node_id, end in ends.items() if end is not None} == {
        nodes[0].id: "not finite"
    }
    assert Counted.requests.total() < 20


def test_tags_of_another_study_are_added_to_what_is_done():
    store = finished_study(20)
    nodes = planted(20)
    NodeLifecycle(store).ends(nodes)
    store.node(nodes[0].kind, nodes[0].id).folder.write_json("tags.json", {"size": "tiny"})
    NodeLifecycle(store).ends(nodes)
    assert store.node(nodes[0].kind, nodes[0].id).tags() == nodes[0].names


def test_an_index_that_is_no_index_is_written_again():
    store = finished_study(20)
    store._folder.write("index.json", b'{"run/x": 3}')
    assert requests_of_submission(store, 20) > requests_of_submission(store, 20)


def test_a_mirror_that_has_everything_costs_requests_for_unfinished_nodes_alone(tmp_path):
    """What changed is sent, in the order of parents; with no ids every node is compared."""
    run_ids, eval_ids = write_study("counted://bucket/mirrored", 10, 5)
    store, tracker = (
        Store("counted://bucket/mirrored").open_for_writing(),
        Tracker(f"sqlite:///{tmp_path}/mlflow.db"),
    )
    assert tracker.sync(store, run_ids + eval_ids) == {"sent": 24, "unchanged": 0}
    done = [*run_ids[:7], *eval_ids]
    assert tracker.sync(store, done) == {"sent": 0, "unchanged": len(done)}
    Counted.requests.clear()
    assert Tracker(tracker.tracking_uri).sync(store, done) == {"sent": 0, "unchanged": len(done)}
    assert Counted.requests.total() < 10
    store.evaluation(eval_ids[0]).add_tags({"study": "another"})
    assert tracker.sync(store, done) == {"sent": 1, "unchanged": len(done) - 1}
    assert tracker.sync(store) == {"sent": 0, "unchanged": 24}
    assert_frame_equal(load_runs(tracker.tracking_uri), load_store(store), check_exact=True)
