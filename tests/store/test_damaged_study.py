"""A finished study with damaged files: each reader takes one for absent or names it, and goes on.

Submitted again, the study gives the same table, or says what is lost.
"""

import itertools
import json
import random
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gram_platform.cli import main
from gram_platform.config.endings import exit_with
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.store.files import seal
from gram_platform.store.root import FOLDERS
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.run import run_study
from gram_platform.tracking.frame import load_store, load_store_curves
from tests.special_files import SPECIAL

FLAGS = ("--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--methods", "gram", "--in-process")
WHOLE = ["[1]", "7", "null", "{}", "", "[" * 100_000]
VALUES = [None, "x", 7, [1], {"x": {"y": [1]}}, 10**400]
KINDS = {
    *("data/ID/manifest.json", "data/ID/tokenizer.json", "store.json", "studies/scaling/study.json"),
    "studies/scaling/devices.json",
    *(f"{kind}/ID/{name}.json" for kind in ("runs", "evaluations") for name in ("config", "tags", "result")),
    *("evaluations/ID/timing.json", "runs/ID/attempts/ID/complete.json", "runs/ID/attempts/ID/lease.json"),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The smallest real study: a baseline, a GRAM run, its attacks and evaluations."""
    root = tmp_path_factory.mktemp("study")
    assert run_study(STUDY, parse(STUDY, [*FLAGS, "--storage", str(root)])) == 0
    for beside in root.glob("mlflow.db*"):  # the readers read the storage
        beside.unlink()
    shutil.rmtree(root / "mlartifacts", ignore_errors=True)
    return root


def kind_of(relative: Path) -> str:
    return re.sub(r"(?<=/)[0-9a-f]{12}|(?<=attempts/)[^/]+", "ID", str(relative))


def representatives(root: Path) -> Iterator[Path]:
    """One file of each kind: of a run, of an evaluation, of the data and of the study."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.json")):
        found.setdefault(kind_of(path.relative_to(root)), path)
    assert found.keys() == KINDS
    yield from found.values()


def damaged_texts(path: Path) -> Iterator[tuple[str, str]]:
    """(what was done, the new text): the whole file, and each of its fields; with a right seal where it has one."""
    text = path.read_text()
    yield from ((f"whole {whole[:9]}", whole) for whole in WHOLE)
    yield "truncated", text[: len(text) // 2]
    fields = json.loads(text)
    if path.name == "tokenizer.json":
        return
    for number, key in enumerate(fields):
        for what, changed in (
            ("without", {k: v for k, v in fields.items() if k != key}),
            ("other", fields | {key: VALUES[number % len(VALUES)]}),
            ("another", fields | {key: VALUES[(number + 2) % len(VALUES)]}),
        ):
            is_sealed = "sha256" in fields and path.name in ("result.json", "complete.json")
            rest = {k: v for k, v in changed.items() if k != "sha256"}
            yield f"{what} {key}", seal(rest).decode() if is_sealed and key != "sha256" else json.dumps(changed)


def frames(root: Path) -> None:
    store = Store(root)
    load_store(store), load_store_curves(store)


def attempts(root: Path) -> None:
    store = Store(root).open_for_writing(min_free_bytes=0)
    for run in map(store.run, store.list_runs()):
        with run.start_attempt("test") as attempt:
            attempt.resume()
    for data_id in store.list_data():
        open_corpus(store, data_id)


READERS: dict[str, Callable[[Path], object]] = {
    "status": lambda root: main(["status", "--storage", str(root)]),
    "frames": frames,
    "gc": lambda root: main(["gc", "--storage", str(root)]),
    "attempts": attempts,
}


def said_to_users(error: ValueError) -> bool:
    """Whether an error is one that users can mend: it names a field of theirs, or a file of the storage."""
    return re.match(r"[\w.\[\]]+=", str(error)) is not None or "/runs/" in str(error) or "/data/" in str(error)


def crashes(study: Path, tmp_path: Path, readers: dict[str, Callable], is_chosen: Callable[[Path, str], bool]) -> list:
    """Damages one file after another; returns (number of damages, what was neither read nor said to users)."""
    wrong, number = [], 0
    for path in representatives(study):
        relative = path.relative_to(study)
        for what, text in damaged_texts(path):
            if not is_chosen(relative, what):
                continue
            number += 1
            root = tmp_path / str(number)
            shutil.copytree(study, root, ignore=shutil.ignore_patterns("site", "*.bin", "*.html"))
            (root / relative).write_text(text)
            for name, read in readers.items():
                try:
                    with warnings.catch_warnings(action="ignore"):
                        read(root)
                except SystemExit as end:  # a command has said why
                    wrong += [] if end.code == 2 else [f"{name}: {relative} {what}: {end.code}"]
                except Exception as error:
                    if not (isinstance(error, ValueError) and said_to_users(error)):
                        wrong.append(f"{name}: {relative} {what}: {error!r:.300}")
            shutil.rmtree(root)
    return [number, wrong]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("left_out", "one_of", "least"),
    [(("another", "other"), 20, 5), pytest.param((), 1, 250, marks=pytest.mark.slow)],
    ids=["a twentieth of files and fields away", "everything"],
)
def test_no_damaged_json_of_a_study_ends_a_reader(study, tmp_path, capsys, left_out, one_of, least):
    turn = itertools.count()
    is_chosen = lambda path, what: not what.startswith(left_out) and next(turn) % one_of == 0
    number, wrong = crashes(study, tmp_path, READERS, is_chosen)
    capsys.readouterr()
    assert number > least
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------------------------------------- planted by strangers


TEXTS = {"empty": b"", "deep": b"[" * 100_000, "long number": b"9" * 5000, "NUL": b"\0" * 99, "no UTF-8": b"\xff\xfe{}"}
DEEP_FIELD = b'{"deep":' * 900 + b"1" + b"}" * 900  # the parser takes it, functions that call themselves do not


def planted_in(path: Path, what: str, rng: random.Random) -> None:
    """Puts a special file, or one of garbage, in the place of a file."""
    data = path.read_bytes()
    path.unlink()
    if what in SPECIAL:
        SPECIAL[what](path)
    elif what == "deep field":  # of the JSON that was there, with its keys
        path.write_bytes(data.replace(b":", b":" + DEEP_FIELD + b',"":', 1))
    elif what == "flipped":
        place = rng.randrange(len(data) or 1)
        path.write_bytes(data[:place] + bytes(255 - byte for byte in data[place : place + 1]) + data[place + 1 :])
    else:
        path.write_bytes(TEXTS[what])


WHAT = (*SPECIAL, *TEXTS, "deep field", "flipped")


def commands_over(root: Path, node_id: str, out: Path) -> Iterator[list[str]]:
    """Yields each command that reads a storage; the last one executes again what the others have set aside."""
    yield from (["status"], ["status", "--json"], ["status", "--study", "scaling"], ["show", node_id])
    yield from (
        ["compare", node_id, node_id],
        ["gc", "--dry-run"],
        ["check"],
        ["search"],
        ["report", "scaling"],
        ["report"],
    )
    yield from (["sync"], ["sync", "--to", "tensorboard", "--folder", str(out / "events")])
    yield ["export", node_id, "--all-modules", "--out", str(out / "export")]  # which refuses an evaluation
    yield from (["gc"], ["run", "scaling", *FLAGS])


def outcome(command: list[str], capsys) -> str:
    """Runs a command; returns what is wrong with how it ended, "" if it did as `config/endings.py` says."""
    try:
        with warnings.catch_warnings(action="ignore"):
            main(command)
        code: object = 0
    except SystemExit as end:
        code = end.code
    except Exception as error:
        code = repr(error)
    text = "".join(capsys.readouterr())
    is_wrong = code not in (0, 1, 2) or re.search(
        r"[\x00-\x08\x0b-\x1f]|Traceback|(Key|Type|Index|Attribute)Error", text
    )
    return f"{code}: {text[-300:]}" if is_wrong else ""


@pytest.mark.parametrize("number", [1, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_no_planted_file_ends_a_command(study, tmp_path, monkeypatch, capsys, number):
    kinds: dict[str, list[Path]] = {}
    for relative in files_of(study):
        kinds.setdefault(kind_of(relative), []).append(relative)
    cases, rng = [(kind, what) for kind in sorted(kinds) for what in WHAT], random.Random(number)
    wrong = []
    for trial, (kind, what) in enumerate(rng.sample(cases, number)):
        folder = tmp_path / str(trial)
        root, relative = folder / "storage", rng.choice(kinds[kind])
        shutil.copytree(study, root, ignore=shutil.ignore_patterns("site"))
        planted_in(root / relative, what, rng)
        (folder / "mine").write_text("mine")
        node_id = relative.parts[1] if relative.parts[0] in FOLDERS.values() else next((root / "runs").iterdir()).name
        for command in commands_over(root, node_id, folder):
            end = outcome([*command, "--storage", str(root)], capsys)
            wrong += [f"{kind}, {what}: {' '.join(command)}: {end}"] if end else []
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------------------------------- submitted again


AWAY = ("--tracking-uri", "sqlite:////proc/away/mlflow.db")  # a mirror of twelve nodes takes longer than the rest


def submitted(root: Path, capsys, *more: str) -> tuple[int, str]:
    """Submits the study again in this process; returns (exit code, what it says)."""
    with pytest.raises(SystemExit) as end, warnings.catch_warnings(action="ignore"):
        exit_with(lambda: run_study(STUDY, parse(STUDY, [*FLAGS, "--storage", str(root), *more])))
    return end.value.code, "".join(capsys.readouterr())


def files_of(study: Path) -> list[Path]:
    """Every file by which a study goes on, relative to the storage: no locks and no pages."""
    found = [path.relative_to(study) for path in sorted(study.rglob("*")) if path.is_file()]
    return [path for path in found if not path.name.startswith(".") and path.parts[0] != "site"]


def cut(root: Path, relative: Path, how: str) -> None:
    path = root / relative
    data = path.read_bytes()
    path.unlink()
    if how != "removed":
        path.write_bytes({"cut": data[: len(data) // 2], "garbled": b"?" + data[1:], "other": b"{}"}[how])


@pytest.fixture
def copied(study, tmp_path, monkeypatch) -> Path:
    return Path(shutil.copytree(study, tmp_path / "copied", ignore=shutil.ignore_patterns("site")))


@pytest.mark.parametrize("how", ["cut", *(pytest.param(how, marks=pytest.mark.slow) for how in ("removed", "other"))])
def test_what_a_driver_knows_comes_back(study, copied, capsys, how):
    """Configs, tags and times of all nodes: a driver makes or leaves out each, and executes nothing again."""
    for relative in files_of(study):
        if relative.name in ("config.json", "tags.json", "timing.json", "study.json", "devices.json", "table.csv"):
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
        is_same = (root / table).exists() and (root / table).read_bytes() == (study / table).read_bytes()
        is_said = code == 1 and re.search("^lost: .* submit again$", text, re.M)
        is_refused = code == 2 and Path("store.json") in chosen
        if not ((code == 0 and is_same) or is_said or is_refused):
            damages = [f"{kind_of(path)} {how}" for path, how in zip(chosen, hows, strict=True)]
            wrong.append(f"{trial}: code {code}, {damages}: {text[-500:]}")
        shutil.rmtree(root)
    assert not wrong, "\n".join(wrong)
