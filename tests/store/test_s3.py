"""The storage on S3 through the real driver: names, first writers, a run that is continued."""

import pytest

from gram_platform.store import Store
from tests.object_store import running_s3
from tests.store.training import run_config, train
from tests.tiny import weights_of


@pytest.fixture
def root(monkeypatch):
    with running_s3(monkeypatch, "gram") as bucket:
        yield f"{bucket}/study"


def test_storage_on_s3(root, tmp_path):
    store = Store(root).open_for_writing()
    folder = store.study_dir("some")
    assert [folder.create("first.json", b"1"), folder.create("first.json", b"2")] == [True, False]
    assert (folder.read("first.json"), folder.size("first.json"), folder.list()) == (
        b"1",
        1,
        ["first.json"],
    )
    assert folder.address("first.json") == f"{root}/studies/some/first.json"
    folder.rename("first.json", "second.json")
    folder.remove("absent.json")
    assert (folder.exists("first.json"), folder.list()) == (False, ["second.json"])
    folder.remove("second.json")
    assert folder.list() == []
    with pytest.raises(FileNotFoundError):
        folder.read("second.json")

    run = run_config(8)
    assert train(root, run, last=4) is None
    assert (store.run(run.run_id).status(), store.run(run.run_id).read_committed_step()) == (
        "interrupted",
        4,
    )
    assert train(root, run) == train(str(tmp_path), run)
    assert store.run(run.run_id).status() == "complete"
    assert [record["step"] for record in store.run(run.run_id).records()] == list(range(1, 9))
    local = Store(str(tmp_path)).run(run.run_id)
    assert weights_of(store.run(run.run_id))["weights"].equal(weights_of(local)["weights"])
