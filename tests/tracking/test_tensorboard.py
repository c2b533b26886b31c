"""TensorBoard's event files have what MLflow gets, read back without TensorBoard."""

import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from gram_platform.config import Evaluation, View
from gram_platform.store import Store
from gram_platform.tracking.entry import curve_metrics, result_metrics, run_entry, unescape
from gram_platform.tracking.tensorboard import write_events
from tests.store.training import run_config, train

RUN = run_config(8)
TAGS = {"method": "gram", "size": "tiny", "seed": "0", "profile": "all"}
EVALUATION = Evaluation(View.of(RUN.run_id, {"virology": 1.0}), "d" * 12, ("core", "virology"), 4)


def scalars(folder: Path) -> set[tuple[str, int, float, float]]:
    """(name, step, value, time) of every scalar in a folder's event file: records of length, crc, bytes, crc."""
    (path,) = folder.glob("events.*")
    data, found = path.read_bytes(), set()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        values = [value for value in event.summary.value if not value.tensor.dtype]  # a text is a tensor
        found |= {(value.tag, event.step, value.simple_value, event.wall_time) for value in values}
        data = data[12 + length + 4 :]
    return found


def test_a_storage_as_event_files(tmp_path):
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    directory, place = store.run(RUN.run_id), store.evaluation(EVALUATION.eval_id)
    train(store.root, RUN, last=4)
    folder = tmp_path / "events"
    assert write_events(store, folder) == {"written": 1, "unchanged": 0}
    directory.add_tags(TAGS)  # which name it
    train(store.root, RUN)
    place.ensure_config(EVALUATION)
    place.add_tags(TAGS)
    place.complete({"losses": {"core": 2.5, "virology": 3.25}}, {"elapsed_s": 0.5})
    assert write_events(store, folder) == {"written": 2, "unchanged": 0}
    assert write_events(store, folder) == {"written": 0, "unchanged": 2}
    names = {f"gram tiny all s0 {RUN.run_id}", f"gram tiny all s0, evaluated {EVALUATION.eval_id}"}
    assert {path.name for path in folder.iterdir()} == names
    entry, records = run_entry(directory), directory.records()
    sent = curve_metrics(records, entry, -1) + result_metrics(entry, records)
    found = scalars(folder / f"{entry.name} {RUN.run_id}")
    assert {(name, step) for name, step, _, _ in found} == {(unescape(m.key), m.step) for m in sent}
    of_core = {step: (value, time) for name, step, value, time in found if name == "loss/core"}
    assert of_core == {s: (pytest.approx(2.0 / s, rel=1e-6), 1.5e9 + s) for s in range(1, 9)}
    evaluated = scalars(folder / f"gram tiny all s0, evaluated {EVALUATION.eval_id}")
    assert {("loss/core", 2.5), ("loss/virology", 3.25)} <= {(name, value) for name, _, value, _ in evaluated}
