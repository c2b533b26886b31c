"""The first inputs of every fuzzed parser; `make fuzz` tries many more, within the same limits."""

import pytest

from tests.fuzz import PARSERS, fuzz

SLOW = {"checkpoint": 15, "import": 15, "tokenizer": 60}  # inputs


@pytest.mark.parametrize("name", PARSERS)
def test_the_first_inputs_are_taken_or_refused(name, tmp_path):
    number = SLOW.get(name, 100)
    done, finds = fuzz(PARSERS[name], tmp_path, range(number))
    assert not finds
    assert done == number
