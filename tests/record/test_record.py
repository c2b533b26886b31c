"""Every id is as recorded; a change that means to differ renews them with `python -m tests.record
--write`."""

import builtins
import math

import pytest

from tests.record.ids import differences, found_ids, presets, recorded_ids

# These take seconds together.
SAMPLE = {
    "titration paper",
    *(f"{name} {preset}" for name, preset in presets() if preset == "smoke"),
}


@pytest.fixture(autouse=True)
def sum_of_later_pythons(monkeypatch):
    """Lets the builtin `sum` compensate for the rounding of floats, as since Python 3.12, whatever
    runs these tests."""
    plain = sum

    def compensated(values, /, start=0):
        values = [start, *values]
        types = set(map(type, values))
        return (
            math.fsum(values)
            if float in types and types <= {int, bool, float}
            else plain(values[1:], start)
        )

    monkeypatch.setattr(builtins, "sum", compensated)


def test_a_sample_is_as_recorded():
    now = found_ids(SAMPLE.__contains__)
    assert not differences(recorded_ids(SAMPLE.__contains__), now)
    assert now.keys() == SAMPLE


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_is_as_recorded():
    assert not differences(recorded_ids(), found_ids())


def test_every_preset_is_recorded():
    assert set(recorded_ids()) == {f"{name} {preset}" for name, preset in presets()}
