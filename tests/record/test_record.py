"""The code is as the record says; a change that means to differ renews it with `python -m tests.record --write`."""

import builtins
import math
import sys

import pytest

from tests.record.__main__ import main
from tests.record.files import differences, found, recorded, text_of
from tests.record.subjects import OURS, SUBJECTS, flags_in, presets

SAMPLES = {  # headings that take seconds together
    "ids": {"titration paper", *(f"{name} {preset}" for name, preset in presets() if preset == "smoke")},
    "flags": {"gram", "gram status", "gram serve", *(f"experiments/{n}.py" for n in ("scaling", "lr_bs_grid", "all"))},
    "dry_runs": {"scaling smoke", "lr_bs_grid smoke"},
}


@pytest.fixture(autouse=True)
def sum_of_later_pythons(monkeypatch):
    """Lets the builtin `sum` compensate for the rounding of floats, as since Python 3.12, whatever runs these tests."""
    plain = sum

    def compensated(values, /, start=0):
        values = [start, *values]
        types = set(map(type, values))
        return math.fsum(values) if float in types and types <= {int, bool, float} else plain(values[1:], start)

    monkeypatch.setattr(builtins, "sum", compensated)


def assert_equal(before, now) -> None:
    lines = differences(before, now)
    assert not lines, "the record differs (python -m tests.record --write renews it):\n" + "\n".join(lines)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_sample_is_as_recorded(subject):
    wanted = SAMPLES[subject].__contains__ if subject in SAMPLES else lambda heading: True
    assert_equal(recorded(subject, wanted), now := found(subject, wanted))
    assert now.keys() == SAMPLES.get(subject, now.keys())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_all_is_as_recorded(subject):
    assert_equal(recorded(subject), found(subject))


def test_every_preset_is_recorded():
    headings = {f"{name} {preset}" for name, preset in presets()}
    assert set(recorded("ids")) == set(recorded("dry_runs")) == headings
    assert {heading.split()[0] for heading in headings} == set(OURS)


def test_a_difference_says_where_it_is():
    before = {"scaling smoke": ["tiny run: 2", "small run: 2"], "gone": ["x"], "equal": ["y"]}
    now = {"scaling smoke": ["tiny run: 2", "small run: 3"], "equal": ["y"], "new": []}
    assert differences(before, now) == ["# scaling smoke", "-small run: 2", "+small run: 3", "# gone", "-x", "# new"]
    assert not differences(now, now)
    assert text_of({"a": ["1", "2"], "b": []}.items()) == "# a\n1\n2\n\n# b\n"


def test_flags_are_read_from_a_help():
    text = """usage: x
╭─ options ─────────────────────────╮
│ -h, --help   show this            │
│ --seeds INT  number (0: some)     │
│              of seeds (default: 0) │
│ --sizes NAME ...                  │
│              all of them          │
╰───────────────────────────────────╯
"""
    assert flags_in(text) == ["--seeds INT (default: 0)", "--sizes NAME ..."]


@pytest.mark.parametrize("words", [["idss"], ["campaign"], ["ids", "--against", "HEAD"]])
def test_wrong_words_are_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["record", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "campaign" in capsys.readouterr().err
