"""What kills, damage and lost machines leave behind: nothing of it ends a run, and all of it goes
away in the end."""

import json
import time
from dataclasses import replace

import pytest
import torch

from gram_platform.cli import main
from gram_platform.config import Evaluation, View
from gram_platform.store import Store
from gram_platform.store.leases import GONE_AFTER_S
from gram_platform.store.runs import RunDirectory
from tests.refused import refused
from tests.store.training import final_fields, record, run_config, train
from tests.tiny import weights_of

RUN = run_config(8)
WEIGHTS = {"weights": torch.ones(2)}


@pytest.fixture
def directory(tmp_path) -> RunDirectory:
    directory = Store(tmp_path).open_for_writing().run(RUN.run_id)
    directory.ensure_config(RUN)
    return directory


def committed(directory: RunDirectory, *steps: int):
    """An attempt that committed these steps and was then killed: its lease is not released."""
    attempt = directory.start_attempt("killed", lease_seconds=0.0)
    last = 0
    for step in steps:
        attempt.commit(step, WEIGHTS, {}, [record(s) for s in range(last + 1, step + 1)])
        last = step
    attempt._lease._released.set()  # its thread ends as with its process
    return attempt


def of_another_machine(directory: RunDirectory, attempt_id: str, age_s: float) -> None:
    path = directory.folder.path + f"/attempts/{attempt_id}/lease.json"
    with open(path) as file:
        lease = json.load(file)
    with open(path, "w") as file:
        json.dump(
            lease | {"place": "elsewhere", "released": False, "time": time.time() - age_s}, file
        )


def test_a_damaged_segment_costs_its_records_and_no_training(directory, tmp_path):
    committed(directory, 3, 6)
    first = sorted(tmp_path.rglob("segments/*.jsonl"))[0]
    first.write_bytes(first.read_bytes().replace(b"1", b"2", 1))
    with directory.start_attempt("next", lease_seconds=0.0) as attempt:
        assert attempt.resume().step == 6
        attempt.complete(final_fields(RUN), WEIGHTS, [record(7), record(8)])
    with pytest.warns(RuntimeWarning, match=first.name):
        assert [r["step"] for r in directory.records()] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("age_s", "is_cleared"), [(GONE_AFTER_S - 60, False), (GONE_AFTER_S + 60, True)]
)
def test_what_a_lost_machine_left_half_written_goes_when_it_cannot_come_back(
    directory, tmp_path, age_s, is_cleared
):
    attempt = committed(directory, 2)
    folder = tmp_path / "runs" / RUN.run_id / "attempts" / attempt.attempt_id
    (folder / "checkpoints/000000005").mkdir()
    half_written = [
        folder / "checkpoints/000000005/tensors.safetensors",
        folder / "weights.safetensors",
    ]
    half_written.append(folder / ".weights.safetensors.1-ab.tmp")
    for path in half_written:
        path.write_bytes(b"half")
    of_another_machine(directory, attempt.attempt_id, age_s)
    with directory.start_attempt("next", lease_seconds=0.0) as following:
        assert following.resume().step == 2
        assert [path.exists() for path in half_written] == [not is_cleared, True, not is_cleared]
        following.complete(final_fields(RUN), WEIGHTS, [record(step) for step in range(3, 9)])
    assert half_written[1].exists() != is_cleared, (
        "weights of another attempt go when this one has the result's"
    )


def test_an_owner_that_was_taken_for_ended_keeps_its_weights(directory, monkeypatch):
    """Between its weights and its result another machine, whose clock is hours ahead, continues the
    run."""
    attempt = committed(directory, 3, 6)
    publish = type(directory).publish

    def late(directory: RunDirectory, data: bytes) -> dict:
        of_another_machine(directory, attempt.attempt_id, 10 * GONE_AFTER_S)
        attempt._folder.remove("complete.json")  # it comes a moment later than the other one looks
        directory.remove_remains()
        with directory.start_attempt("other", lease_seconds=0.0) as other:
            other.resume()
        assert attempt._folder.exists("weights.safetensors"), (
            "nobody removes weights before there is a result"
        )
        return publish(directory, data)

    monkeypatch.setattr(RunDirectory, "publish", late)
    attempt.complete(final_fields(RUN), WEIGHTS, [record(7), record(8)])
    assert torch.equal(weights_of(directory)["weights"], WEIGHTS["weights"])


def test_removed_weights_are_not_made_again_and_lost_ones_are(directory, tmp_path):
    committed(directory, 3).complete(final_fields(RUN), WEIGHTS, [record(s) for s in range(4, 9)])
    result = directory.result()
    directory.drop_weights()
    with refused("run_id", RUN.run_id):
        weights_of(directory)
    assert directory.result() == result
    (tmp_path / "runs" / RUN.run_id / "weights-removed.json").unlink()
    with pytest.warns(RuntimeWarning, match="weights"), refused("run_id", RUN.run_id):
        weights_of(directory)
    assert directory.status() == "interrupted"
    with directory.start_attempt("again") as attempt:
        attempt.complete(final_fields(RUN), WEIGHTS, [record(s) for s in range(1, 9)])
    assert directory.result() == result
    assert weights_of(directory).keys() == WEIGHTS.keys()


def attack(root) -> str:
    """A finished run that `gram gc` takes for an attack."""
    run = run_config(8, seed=7)
    train(str(root), run)
    Store(root).open_for_writing().run(run.run_id).add_tags({"elicited": "lisp"})
    return run.run_id


def test_gc_keeps_the_weights_of_attacks_that_something_unfinished_starts_from(tmp_path, capsys):
    """An unfinished run, an unfinished evaluation: the weights are removed when both have ended."""
    run_id, store = attack(tmp_path), Store(tmp_path).open_for_writing()
    following = replace(run_config(8, seed=8), start=View.of(run_id))
    evaluation = Evaluation(View.of(run_id), "d" * 12, ("core",), 4)
    store.run(following.run_id).ensure_config(following)
    main(["gc", "--storage", str(tmp_path)])
    assert weights_of(store.run(run_id))
    store.evaluation(evaluation.eval_id).ensure_config(evaluation)
    train(str(tmp_path), following)
    main(["gc", "--storage", str(tmp_path)])
    assert weights_of(store.run(run_id)), "the evaluation needs them"
    store.evaluation(evaluation.eval_id).complete({"losses": {"core": 2.5}})
    main(["gc", "--storage", str(tmp_path)])
    assert not store.run(run_id).has_weights()
    assert [line.split(": ")[1][:9] for line in capsys.readouterr().out.splitlines()] == [
        "0 attacks"
    ] * 2 + ["1 attacks"]
