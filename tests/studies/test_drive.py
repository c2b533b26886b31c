"""The path of a submission: flags end in its plan, and `drive` calls what it names in its order."""

import ast
import inspect
import sys

from gram_platform.studies import drive, flags
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.searches import flags as search_flags
from tests.conftest import ROOT
from tests.submitted import plan_of

# They declare flags, parse them or read them.
READERS = ("studies/flags.py", "studies/make_plan.py", "studies/searches/")


def kinds_of_flags() -> set[str]:
    """The names of all boxes of flags."""
    return {
        name
        for module in (flags, search_flags)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and name.endswith("Flags")
    }


def test_below_the_plan_nobody_has_flags():
    kinds, package = kinds_of_flags(), ROOT / "gram_platform"
    assert {"Flags", "StudyFlags", "DeviceFlags", "GridFlags"} <= kinds
    found = []
    for path in (p for room in ("studies", "engine") for p in (package / room).rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith(READERS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                words = {w.id for w in ast.walk(part) if isinstance(w, ast.Name)} if part else set()
                found += [(name, word) for word in words & kinds]
    assert not found


def called_in(function) -> list[str]:
    """What a function calls by name or as a method, in the order in which the calls begin."""
    calls = [n for n in ast.walk(ast.parse(inspect.getsource(function))) if isinstance(n, ast.Call)]
    # What is called within the arguments of a call comes before it.
    calls.sort(key=lambda call: (call.end_lineno, call.end_col_offset))
    names = [
        call.func.id if isinstance(call.func, ast.Name) else f".{call.func.attr}" for call in calls
    ]
    return list(dict.fromkeys(names))


def test_a_submission_calls_what_drive_names_in_its_order(storage):
    expected, seen = called_in(drive.drive), []

    def note(frame, event, _):
        if event == "call" and frame.f_back.f_code is drive.drive.__code__:
            *owner, name = frame.f_code.co_qualname.split(".")
            name = type(frame.f_locals.get("self")).__name__ if name == "__init__" else name
            seen.append(f".{name}" if owner and name not in expected else name)

    words = ["--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--methods", "baseline"]
    plan = plan_of(STUDY, [*words, "--in-process"])
    sys.setprofile(note)
    try:
        assert drive.drive(plan) == 0
    finally:
        sys.setprofile(None)
    first = {name: seen.index(name) for name in expected if name in seen}
    assert {"choose_device", "pack_corpora", ".events", ".see", ".write_tables"} <= set(first)
    assert list(first) == sorted(first, key=first.__getitem__)
