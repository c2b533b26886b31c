"""Every JSON file of a storage, damaged in every way: it counts as absent or damaged, and no run
ends or differs."""

import itertools
import json
import math
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gram_platform.cli.storage import status_command
from gram_platform.config import Evaluation, View, hash_run, run_from_plain
from gram_platform.config.identity import InvalidField, canonical_json
from gram_platform.store import EvaluationDirectory, Store
from gram_platform.store.directories import NodeDirectory
from gram_platform.store.files import seal
from tests.refused import refused
from tests.store.training import record, run_config, train
from tests.tiny import weights_of

DONE, HALF = run_config(8), run_config(8, seed=1)
EVALUATION = Evaluation(View.of(DONE.run_id), "d" * 12, ("core",), 4)
WHOLE = ["[1]", "null", "{}", "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, ""]
VALUES = [None, ["x"], {"x": {"y": [1]}}, -1, 10**400, "../../x", True]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run that ended, one that was stopped half-way, and an evaluation."""
    root = tmp_path_factory.mktemp("finished")
    train(str(root), DONE)
    train(str(root), HALF, last=4)
    store = Store(root).open_for_writing()
    for run_id in (DONE.run_id, HALF.run_id):
        store.run(run_id).add_tags({"name": "x"})
    place = store.evaluation(EVALUATION.eval_id)
    place.ensure_config(EVALUATION)
    place.complete({"losses": {"core": 2.5}}, {"elapsed_s": 1.0}, {"means": torch.ones(2)})
    store.run(HALF.run_id).record_failure(
        store.run(HALF.run_id).attempts.list()[-1], "killed", {"step": 4}
    )
    return root


def damaged_texts(path: Path) -> Iterator[tuple[str, str]]:
    """(what was done, the file's new text): also with the right seal, where the file has one."""
    yield from ((text[:12], text) for text in WHOLE)
    fields = json.loads(path.read_text())
    for number, key in enumerate(fields):
        for what, changed in (
            ("without", {k: v for k, v in fields.items() if k != key}),
            ("other", fields | {key: VALUES[number % len(VALUES)]}),
            ("another", fields | {key: VALUES[(number + 3) % len(VALUES)]}),
        ):
            is_sealed = "sha256" in fields and key != "sha256"
            changed = {k: v for k, v in changed.items() if k != "sha256"} if is_sealed else changed
            yield f"{what} {key}", seal(changed).decode() if is_sealed else json.dumps(changed)


def is_forged(relative: Path, what: str) -> bool:
    """Whether it is a result with other numbers and a right seal, which only a writer of the
    storage can make."""
    return relative.name == "result.json" and what.split()[0] in ("without", "other", "another")


def read_everything(store: Store) -> None:
    """All that status, pages and the mirror read; only a config, which nothing replaces, and
    weights may be refused."""
    for run in map(store.run, store.list_runs()):
        (
            run.status(),
            run.progress(),
            run.tags(),
            run.result(),
            run.records(),
            run.last_step(),
            run.read_committed_step(),
        )
        assert run.timing().keys() <= {
            "elapsed_s",
            "tokens_per_second",
            "attempt",
            "started",
            "ended",
            "host",
        }
        assert run.failure() is None or run.failure()["message"]
    for place in map(store.evaluation, store.list_evaluations()):
        place.status(), place.timing(), place.tags()


@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_no_damaged_json_ends_or_changes_anything(finished, tmp_path, capsys, one_in):
    """Of each file every eighth damage, and in the slow test every one."""
    expected = {run.run_id: train(str(tmp_path / "expected"), run) for run in (DONE, HALF)}
    relatives = sorted(path.relative_to(finished) for path in finished.rglob("*.json"))
    assert {path.name for path in relatives} == {
        *(
            "config.json",
            "tags.json",
            "result.json",
            "timing.json",
            "lease.json",
            "complete.json",
            "manifest.json",
        ),
        *("layout.json", "state.json", "failure.json", "store.json"),
    }
    wrong, number = [], 0
    for place, relative in enumerate(relatives):
        for what, text in itertools.islice(
            damaged_texts(finished / relative), place % one_in, None, one_in
        ):
            number += 1
            root = tmp_path / str(number)
            shutil.copytree(finished, root)
            (root / relative).write_text(text)
            try:
                with warnings.catch_warnings(action="ignore"):
                    read_everything(Store(root))
                    status_command(str(root))
                    found = {run.run_id: train(str(root), run) for run in (DONE, HALF)}
                    weights_of(Store(root).run(DONE.run_id))
                    Store(root).evaluation(EVALUATION.eval_id).status()
                if found != expected and not is_forged(relative, what):
                    wrong.append(f"{relative} {what}: another result")
            except ValueError as error:  # what a user reads, and can mend
                if not str(error).startswith(("config=", "storage=", "run_id=")):
                    wrong.append(f"{relative} {what}: {error!r}")
            except Exception as error:
                wrong.append(f"{relative} {what}: {error!r}")
            shutil.rmtree(root)
    capsys.readouterr()
    assert number > 150 // one_in
    assert not wrong, "\n".join(wrong)


def test_a_stray_folder_among_the_attempts_is_none(tmp_path):
    train(str(tmp_path), HALF, last=4)
    (tmp_path / "runs" / HALF.run_id / "attempts" / "lost").mkdir()
    assert Store(tmp_path).run(HALF.run_id).status() == "interrupted"
    assert train(str(tmp_path), HALF)["run_id"] == HALF.run_id
    assert [r["step"] for r in Store(tmp_path).run(HALF.run_id).records()] == [
        record(s)["step"] for s in range(1, 9)
    ]


@pytest.mark.parametrize(
    "changes", [{"batch_size": "x"}, {"batch_size": 3}, {"model": None}, {"note": 1}]
)
def test_a_config_of_another_id_is_refused_with_its_file_and_both_ids(finished, tmp_path, changes):
    shutil.copytree(finished, tmp_path / "storage")
    place = Store(tmp_path / "storage").run(DONE.run_id)
    path, plain = Path(place.folder.file("config.json")), place.config()
    path.write_text(json.dumps(plain | changes))
    for read in (place.config, lambda: place.config_as(run_from_plain), place.model_config):
        with pytest.raises(InvalidField) as caught:
            read()
        error = caught.value
        assert (error.place, error.field) == (str(path), "run_id")
        assert error.value == hash_run(plain | changes)
        assert DONE.run_id in error.expected
    path.write_text(json.dumps(plain, indent=1))
    assert place.config() == plain, "the same content in other words"


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_config_with_a_number_that_is_none_is_refused_with_its_file(finished, tmp_path, number):
    shutil.copytree(finished, tmp_path / "storage")
    place = Store(tmp_path / "storage").run(DONE.run_id)
    path, plain = Path(place.folder.file("config.json")), place.config()
    path.write_text(json.dumps(plain | {"batch_size": number}))
    for read in (place.config, lambda: place.config_as(run_from_plain), place.model_config):
        with pytest.raises(InvalidField) as caught:
            read()
        assert caught.value.place == str(path)
        assert str(caught.value.value) == str(number)


def test_an_evaluations_config_has_its_id_too(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "storage")
    place = Store(tmp_path / "storage").evaluation(EVALUATION.eval_id)
    other = replace(EVALUATION, num_sequences=5)
    Path(place.folder.file("config.json")).write_text(canonical_json(other))
    with refused("eval_id", other.eval_id):
        place.config()


def test_tags_and_times_have_a_seal(finished, tmp_path):
    """Files that were stored before tags and times got a seal are read as they are."""
    shutil.copytree(finished, tmp_path / "storage")
    store = Store(tmp_path / "storage")
    for place, name, read in (
        (store.run(DONE.run_id), "tags.json", NodeDirectory.tags),
        (store.evaluation(EVALUATION.eval_id), "timing.json", EvaluationDirectory.timing),
    ):
        path, before = Path(place.folder.file(name)), read(place)
        raw = path.read_bytes()
        for bit in range(8 * len(raw)):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with pytest.warns(RuntimeWarning, match=name):
                assert read(place) == {}
        path.write_text(json.dumps(before))
        assert read(place) == before
