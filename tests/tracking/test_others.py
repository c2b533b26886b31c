"""What other trackers get is what MLflow gets, read back from their files."""

import json
import struct
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from gram_platform.config.identity import InvalidField
from gram_platform.store import Store
from gram_platform.tracking.entry import curve_metrics, node_entry, result_metrics, unescape
from gram_platform.tracking.others import write_nodes
from tests.store.training import train
from tests.tracking.planted import EVALUATION, RUN, TAGS, evaluate


def scalars(folder: Path) -> set[tuple[str, int, float, float]]:
    """(name, step, value, time) of every scalar in a folder's event file: records of length, crc,
    bytes, crc."""
    (path,) = folder.glob("events.*")
    data, found = path.read_bytes(), set()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        # A text is a tensor.
        values = [value for value in event.summary.value if not value.tensor.dtype]
        found |= {(value.tag, event.step, value.simple_value, event.wall_time) for value in values}
        data = data[12 + length + 4 :]
    return found


@pytest.fixture
def store(tmp_path):
    """A storage with a run at its half."""
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    train(store.root, RUN, last=4)
    return store


def finish(store: Store) -> None:
    """Ends the run, with its evaluation."""
    store.run(RUN.run_id).add_tags(TAGS)
    train(store.root, RUN)
    evaluate(store)


def test_a_storage_as_event_files(store, tmp_path):
    directory = store.run(RUN.run_id)
    folder = tmp_path / "events"
    assert write_nodes(store, "tensorboard", folder) == {"written": 1, "unchanged": 0}
    finish(store)
    assert write_nodes(store, "tensorboard", folder) == {"written": 2, "unchanged": 0}
    assert write_nodes(store, "tensorboard", folder) == {"written": 0, "unchanged": 2}
    names = {f"gram_tiny_all_s0_{RUN.run_id}", f"gram_tiny_all_s0,_evaluated_{EVALUATION.eval_id}"}
    assert {path.name for path in folder.iterdir()} == names
    entry, records = node_entry(directory), directory.records()
    sent = curve_metrics(records, entry, -1) + result_metrics(entry, records)
    found = scalars(folder / f"gram_tiny_all_s0_{RUN.run_id}")
    assert {(name, step) for name, step, _, _ in found} == {(unescape(m.key), m.step) for m in sent}
    of_core = {step: (value, time) for name, step, value, time in found if name == "loss/core"}
    assert of_core == {s: (pytest.approx(2.0 / s, rel=1e-6), 1.5e9 + s) for s in range(1, 9)}
    evaluated = scalars(folder / f"gram_tiny_all_s0,_evaluated_{EVALUATION.eval_id}")
    assert {("loss/core", 2.5), ("loss/virology", 3.25)} <= {
        (name, value) for name, _, value, _ in evaluated
    }


def wandb_records(path: Path) -> list:
    """The records of an offline run's file, in LevelDB's log format: blocks of 32 KiB of (crc,
    length, type, bytes)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, part = path.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(part))
            part = b""
    return found


def test_a_storage_as_runs_of_wandb(store, tmp_path, monkeypatch):
    pytest.importorskip(
        "wandb", reason="wandb is not installed: pip install -c constraints.txt -e '.[wandb]'"
    )
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = tmp_path / "wandb"
    assert write_nodes(store, "wandb", folder) == {"written": 1, "unchanged": 0}
    finish(store)
    assert write_nodes(store, "wandb", folder) == {"written": 2, "unchanged": 0}
    assert write_nodes(store, "wandb", folder) == {"written": 0, "unchanged": 2}
    (path,) = folder.glob(f"gram_tiny_all_s0_{RUN.run_id}/wandb/offline-run-*/*.wandb")
    records = wandb_records(path)
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.run_id, run.display_name, run.project) == (RUN.run_id, "gram tiny all s0", "gram")
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in records
    ]
    losses = {row["_step"]: row["loss/core"] for row in rows if "loss/core" in row}
    assert losses == {step: pytest.approx(2.0 / step) for step in range(1, 9)}
    (path,) = folder.glob(f"*_{EVALUATION.eval_id}/wandb/offline-run-*/*.wandb")
    (run,) = [record.run for record in wandb_records(path) if record.HasField("run")]
    assert (run.run_group, run.job_type) == (RUN.run_id, "evaluation")


def test_wandb_that_is_not_installed(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InvalidField) as refused:
        write_nodes(store, "wandb", tmp_path / "wandb")
    assert (refused.value.field, refused.value.value) == ("to", "wandb")


NAMES = ("../../home/.ssh/x", "/etc", "\0\x1b[31m", "\ud800", "ü" * 300)


@pytest.mark.parametrize("method", NAMES)
def test_a_node_is_one_folder_whatever_its_tags_are(store, tmp_path, method):
    finish(store)
    (Path(store.root) / "runs" / RUN.run_id / "tags.json").write_text(
        json.dumps({**TAGS, "method": method})
    )
    folder = tmp_path / "a" / "b" / "events"
    before = set(tmp_path.rglob("*"))
    assert write_nodes(store, "tensorboard", folder) == {"written": 2, "unchanged": 0}
    assert write_nodes(store, "tensorboard", folder) == {"written": 0, "unchanged": 2}
    made = set(tmp_path.rglob("*")) - before - {*folder.parents}
    assert all(folder == path or folder in path.parents for path in made)
    assert len(list(folder.iterdir())) == 2
    assert not any(path.name.startswith(".") for path in folder.iterdir())


def test_a_folder_of_the_user_is_never_removed(store, tmp_path):
    """A storage can name its node as the last word of any folder."""
    for kind, target in (("notes", None), ("a link", tmp_path / "home")):
        mine = tmp_path / "events" / f"{kind} {RUN.run_id}"
        mine.parent.mkdir(exist_ok=True)
        if target:
            target.mkdir()
            (target / "written").touch()
            mine.symlink_to(target)
        else:
            mine.mkdir()
        (mine / "page").write_text("mine")
    write_nodes(store, "tensorboard", tmp_path / "events")
    assert [
        (path / "page").read_text()
        for path in sorted((tmp_path / "events").glob(f"[na]* {RUN.run_id}"))
    ] == ["mine"] * 2
