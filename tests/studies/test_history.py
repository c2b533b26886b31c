"""A study's earlier pages: which submissions make history, and that a kill at any point loses none
and doubles none."""

import itertools
import os
import shutil
import signal

import pytest

from gram_platform.cli import main
from gram_platform.pages.results.record import StudyRecord, load_record
from gram_platform.store import Store
from gram_platform.store.remote_folder import RemoteFolder
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.record import MOST_KEPT, begin_record
from tests.store.training import in_process
from tests.submitted import execute

PAGE = ("claims.csv", "report.html", "table.csv")
COUNTER = itertools.count()


def record(*methods: str, seeds: int = 1, preset: str = "demo") -> StudyRecord:
    """The record of a study of these methods, at one size."""
    tags = [
        {"method": method, "size": "tiny", "seed": str(seed)}
        for method in methods
        for seed in range(seeds)
    ]
    return StudyRecord(
        name="scaling",
        title="Scaling",
        question="Does it hold?",
        facts=(),
        params={"preset": preset, "data_id": "d" * 12},
        sizes=("tiny",),
        parameters={"tiny": 1},
        profile="core",
        entries=tuple(
            {"id": f"{number:012}", "kind": "run", "tags": one} for number, one in enumerate(tags)
        ),
    )


WIDE, NARROW = record("baseline", "gram"), record("baseline")


def submit(store: Store, study: StudyRecord, text: str) -> None:
    """A whole submission: its record, and at its end its page, which says `text`."""
    begin_record(store, study)
    for name in PAGE:
        store.study_dir(study.name).write(name, f"{name}: {text}".encode())


def pages(store: Store) -> list[str]:
    """The report of each date and of the study itself, the oldest first; each in a folder that has
    all of its files."""
    found = []
    for folder in (*store.history_dirs("scaling").values(), store.study_dir("scaling")):
        if folder.exists("report.html"):
            texts = {folder.read(name).decode().partition(": ")[2] for name in PAGE}
            assert len(texts) == 1, texts
            found += texts
    return found


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path) -> Store:
    root = str(tmp_path) if request.param == "local" else f"memory://history-{next(COUNTER)}"
    return Store(root).open_for_writing()


def test_another_choice_of_runs_makes_history_and_the_same_makes_none(store):
    submit(store, WIDE, "wide")
    submit(store, WIDE, "wide, again")
    assert pages(store) == ["wide, again"]
    begin_record(store, NARROW)
    assert pages(store) == ["wide, again"]
    assert store.study_dir("scaling").list() == ["history", "study.json"]
    submit(store, NARROW, "narrow")
    submit(store, record("baseline", seeds=2), "two seeds")
    submit(store, record("baseline", seeds=2, preset="study"), "another preset")
    assert pages(store) == ["wide, again", "narrow", "two seeds", "another preset"]
    assert load_record(store, "scaling").preset == "study"
    dates = list(store.history_dirs("scaling"))
    assert all(len(date) == len("2026-11-25T213751") for date in dates)
    assert len(store.history_dirs("scaling")[dates[0]].list()) == len(PAGE) + 1


@pytest.mark.slow
def test_the_site_leads_to_an_earlier_page_though_nothing_was_trained(storage):
    for methods in (["baseline", "filtering"], ["baseline"]):
        flags = [
            "--preset",
            "smoke",
            "--seeds",
            "1",
            "--sizes",
            "tiny",
            "--in-process",
            "--methods",
            *methods,
        ]
        assert execute(STUDY, flags) == 0
    (date,) = Store(storage).history_dirs("scaling")
    assert f"scaling/history/{date}/report.html" in (storage / "site/index.html").read_text()


def test_a_submission_without_a_page_makes_no_history(store):
    begin_record(store, WIDE)
    begin_record(store, NARROW)
    assert store.history_dirs("scaling") == {}


def test_what_a_user_has_put_beside_the_dates_stays_and_is_no_page(store):
    history = store.study_dir("scaling").child("history")
    history.write("notes.txt", b"mine")
    history.child("zz").write("report.html", b"mine")
    history.child("2026").write("notes.txt", b"mine")
    submit(store, WIDE, "wide")
    submit(store, NARROW, "narrow")
    assert pages(store) == ["wide", "narrow"]
    assert set(history.list()) > {"2026", "notes.txt", "zz"}


def test_ten_earlier_pages_are_kept(store):
    for number in range(MOST_KEPT + 2):
        submit(store, record("baseline", seeds=number + 1), f"{number:02}")
    assert pages(store) == [f"{number:02}" for number in range(1, MOST_KEPT + 2)]


def test_the_commands_bear_a_history(tmp_path, capsys):
    store = Store(tmp_path).open_for_writing()
    submit(store, WIDE, "wide")
    submit(store, NARROW, "narrow")
    half = next(iter(store.history_dirs("scaling").values())).path + "/.report.html.1.tmp"
    open(half, "w").close()
    os.utime(half, (0, 0))
    for command in ("gc", "check", "status", "report"):
        main([command, "--storage", str(tmp_path)])
    assert not os.path.exists(half)
    assert "0 problems" in capsys.readouterr().out
    assert pages(store) == ["wide", "narrow"]


def submit_until_killed(root: str, study: StudyRecord, operation: int) -> None:
    """Begins a submission, and dies by SIGKILL just before the given operation on files."""
    calls = itertools.count(1)

    def counting(function):
        def wrapped(*args, **kwargs):
            if next(calls) == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    for name in ("replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counting(getattr(os, name)))
    begin_record(Store(root).open_for_writing(), study)


def test_a_kill_before_any_operation_on_files_loses_nothing_and_doubles_nothing(tmp_path):
    """Of a submission of another choice; the next one is of that choice again, or of the one
    before."""
    for operation in itertools.count(1):
        store = Store(tmp_path / str(operation)).open_for_writing()
        submit(store, WIDE, "wide")
        process = in_process(submit_until_killed, store.root, NARROW, operation)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        places = (store.study_dir("scaling"), *store.history_dirs("scaling").values())
        assert any(set(place.list()) >= {*PAGE, "study.json"} for place in places)
        # Once the narrow record is written, the wide page is history for whoever comes next.
        begun = load_record(store, "scaling").entries == NARROW.entries
        copy = Store(shutil.copytree(store.root, tmp_path / f"{operation}-copy")).open_for_writing()
        submit(store, NARROW, "next")
        assert pages(store) == ["wide", "next"]
        submit(copy, WIDE, "next")
        assert pages(copy) == (["wide", "next"] if begun else ["next"])
    assert operation > 12, "a move has more operations than that"


class Killed(BaseException):
    """The end of the process."""


def test_a_kill_before_any_operation_on_an_object_store_loses_nothing(monkeypatch):
    for operation in itertools.count(1):
        store = Store(f"memory://killed-{next(COUNTER)}").open_for_writing()
        submit(store, WIDE, "wide")
        calls = itertools.count(1)

        def counted(method, calls=calls, operation=operation):
            def call(self, *args, **kwargs):
                if next(calls) == operation:
                    raise Killed
                return method(self, *args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for name in ("write", "remove"):
                patched.setattr(RemoteFolder, name, counted(getattr(RemoteFolder, name)))
            try:
                begin_record(store, NARROW)
                break
            except Killed:
                pass
        submit(store, NARROW, "narrow")
        assert pages(store) == ["wide", "narrow"]
    assert operation > 6
