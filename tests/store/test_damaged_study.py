"""A finished study with damaged files: submitted again, it gives the same table, or says what is
lost."""

import itertools
import json
import random
import re
import shutil
import warnings
from pathlib import Path

import pytest

from gram_platform.cli import main
from gram_platform.config.endings import exit_with
from gram_platform.corpora.tokenizer import END_OF_TEXT
from gram_platform.release.importing import import_checkpoint
from gram_platform.store import Store
from gram_platform.studies.library.scaling import STUDY
from tests.release.planted import checkpoint, write_words
from tests.submitted import execute

FLAGS = (
    "--preset",
    "smoke",
    "--sizes",
    "tiny",
    "--seeds",
    "1",
    "--methods",
    "gram",
    "--in-process",
)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The smallest real study: a baseline, a GRAM run, its attacks and evaluations."""
    root = tmp_path_factory.mktemp("study")
    assert execute(STUDY, [*FLAGS, "--storage", str(root)]) == 0
    for beside in root.glob("mlflow.db*"):  # the readers read the storage
        beside.unlink()
    shutil.rmtree(root / "mlartifacts", ignore_errors=True)
    return root


def kind_of(relative: Path) -> str:
    return re.sub(r"(?<=/)[0-9a-f]{12}|(?<=attempts/)[^/]+", "ID", str(relative))


def cut(root: Path, relative: Path, how: str) -> None:
    path = root / relative
    data = path.read_bytes()
    path.unlink()
    if how != "removed":
        path.write_bytes(
            {"cut": data[: len(data) // 2], "garbled": b"?" + data[1:], "other": b"{}"}[how]
        )


# --------------------------------------------------------------------------------- submitted again


# A mirror of twelve nodes takes longer than the rest.
AWAY = ("--tracking-uri", "sqlite:////proc/away/mlflow.db")


def submitted(root: Path, capsys, *more: str) -> tuple[int, str]:
    """Submits the study again in this process; returns (exit code, what it says)."""
    with pytest.raises(SystemExit) as end, warnings.catch_warnings(action="ignore"):
        exit_with(lambda: execute(STUDY, [*FLAGS, "--storage", str(root), *more]))
    return end.value.code, "".join(capsys.readouterr())


def files_of(study: Path) -> list[Path]:
    """Every file by which a study goes on, relative to the storage: no locks and no pages."""
    found = [path.relative_to(study) for path in sorted(study.rglob("*")) if path.is_file()]
    return [path for path in found if not path.name.startswith(".") and path.parts[0] != "site"]


@pytest.fixture
def copied(study, tmp_path, monkeypatch) -> Path:
    return Path(shutil.copytree(study, tmp_path / "copied", ignore=shutil.ignore_patterns("site")))


@pytest.mark.parametrize(
    "how", ["cut", *(pytest.param(how, marks=pytest.mark.slow) for how in ("removed", "other"))]
)
def test_what_a_driver_knows_comes_back(study, copied, capsys, how):
    """Configs, tags and times of all nodes: a driver makes or leaves out each, and executes nothing
    again."""
    for relative in files_of(study):
        if relative.name in (
            "config.json",
            "tags.json",
            "timing.json",
            "study.json",
            "devices.json",
            "table.csv",
        ):
            cut(copied, relative, how)
    code, text = submitted(copied, capsys, *AWAY)
    assert code == 0
    assert "0 now" in text
    for relative in files_of(study):
        if relative.name in ("config.json", "table.csv"):
            assert (copied / relative).read_bytes() == (study / relative).read_bytes()


def test_a_lost_history_of_the_baseline_is_named_with_a_remedy(study, copied, capsys):
    """The baseline's curve is in no other file: no table is made without it in silence."""
    tags = {path.parent: json.loads(path.read_text()) for path in copied.glob("runs/*/tags.json")}
    (baseline,) = (folder for folder, names in tags.items() if names["method"] == "baseline")
    for segment in baseline.glob("attempts/*/segments/*"):
        segment.unlink()
    code, text = submitted(copied, capsys)
    assert code == 1
    assert re.search(f"remove {baseline} .*submit", text)
    shutil.rmtree(baseline)
    assert submitted(copied, capsys)[0] == 0
    table = "studies/scaling/table.csv"
    assert (copied / table).read_bytes() == (study / table).read_bytes()


@pytest.mark.parametrize("number", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_after_random_losses_the_table_is_the_same_or_what_is_lost_is_said(
    study, tmp_path, monkeypatch, capsys, number
):
    table, rng, wrong = "studies/scaling/table.csv", random.Random(number), []
    for trial in range(number):
        root = tmp_path / str(trial)
        shutil.copytree(study, root, ignore=shutil.ignore_patterns("site"))
        chosen = rng.sample(files_of(study), rng.choice([1, 2, 5, 20]))
        hows = [rng.choice(["removed", "cut", "garbled"]) for _ in chosen]
        for relative, how in zip(chosen, hows, strict=True):
            cut(root, relative, how)
        for _ in range(3):  # the first one may find damage that only the next one mends
            code, text = submitted(root, capsys, *AWAY)
            if code == 0:
                break
            assert re.search("^(lost|failed|error): ", text, re.M), text
        is_same = (root / table).exists() and (root / table).read_bytes() == (
            study / table
        ).read_bytes()
        is_said = code == 1 and re.search("^lost: .* submit again$", text, re.M)
        is_refused = code == 2 and Path("store.json") in chosen
        if not ((code == 0 and is_same) or is_said or is_refused):
            damages = [f"{kind_of(path)} {how}" for path, how in zip(chosen, hows, strict=True)]
            wrong.append(f"{trial}: code {code}, {damages}: {text[-500:]}")
        shutil.rmtree(root)
    assert not wrong, "\n".join(wrong)


# What lies there for the work alone: no page, table or next run reads a number from them.
NO_NUMBER = ("lease.json", "devices.json")
PLACES = {"runs": "run", "evaluations": "evaluation", "imports": "import", "studies": "study"}


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
def test_one_flipped_bit_of_any_file_is_named_by_gram_check(study, copied, tmp_path, capsys, seed):
    """Each check meets at most one such file of every run, evaluation, import, corpus and page."""
    write_words(checkpoint(tmp_path / "foreign"), "a", END_OF_TEXT)
    import_checkpoint(tmp_path / "foreign", Store(copied).open_for_writing())
    files: dict[str, list[Path]] = {}
    for path in files_of(copied):
        if path.name not in NO_NUMBER and len(path.parts) > 1:
            place, name = path.parts[:2]
            files.setdefault(f"{PLACES.get(place, place)} {name}", []).append(path)
    assert {place.split()[0] for place in files} == {"data", *PLACES.values()}
    rng, missed = random.Random(seed), []
    for chosen in itertools.zip_longest(*files.values()):
        flips = {path: (copied / path).read_bytes() for path in chosen if path}
        for path, raw in flips.items():
            flipped, bit = bytearray(raw), rng.randrange(8 * len(raw))
            flipped[bit // 8] ^= 1 << bit % 8
            (copied / path).write_bytes(flipped)
        with pytest.raises(SystemExit) as end:
            main(["check", "--storage", str(copied)])
        lines = capsys.readouterr().out.splitlines()
        assert end.value.code == 1
        for place, path in zip(files, chosen, strict=True):
            if path and not any(line.startswith(f"{place}: ") for line in lines):
                missed.append(str(path))
        for path, raw in flips.items():
            (copied / path).write_bytes(raw)
    assert not missed
    main(["check", "--storage", str(copied)])
    assert capsys.readouterr().out.splitlines()[0].endswith(" 0 problems")


@pytest.mark.parametrize("bit", [0, 77, 255])
def test_a_flipped_bit_of_store_json_is_named_by_gram_check(copied, capsys, bit):
    path = copied / "store.json"
    flipped = bytearray(path.read_bytes())
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    with pytest.raises(SystemExit) as end:
        main(["check", "--storage", str(copied)])
    assert end.value.code == 2
    assert str(copied) in capsys.readouterr().err
