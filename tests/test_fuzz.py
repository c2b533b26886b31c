"""The first inputs of every fuzzed parser; `make fuzz` tries many more, within the same limits."""

import random
import time

import pytest

from gram_platform.corpora.tokenizer import load_tokenizer
from tests.fuzz import PARSERS, Parser, fuzz, mutated

SLOW = {"checkpoint": 15, "import": 15, "tokenizer": 60}  # inputs


@pytest.mark.parametrize("name", PARSERS)
def test_the_first_inputs_are_taken_or_refused(name, tmp_path):
    number = SLOW.get(name, 100)
    done, finds = fuzz(PARSERS[name], tmp_path, range(number))
    assert not finds
    assert done == number


@pytest.mark.parametrize("name", PARSERS)
def test_some_inputs_are_taken_and_most_differ(name, tmp_path):
    """Valid inputs are read, or refusals would say nothing."""
    parser = PARSERS[name]
    for number, data in enumerate(parser.valid):
        (tmp_path / str(number)).mkdir()
        parser.read(data, tmp_path / str(number))
    inputs = [mutated(random.Random(number), parser.valid) for number in range(100)]
    assert len(set(inputs)) > 60


def spin(data, folder):
    while True:
        time.process_time()


def fill(data, folder):
    bytearray(64 << 30)


def refuse_as_nobody_may(data, folder):
    raise KeyError(data)


@pytest.mark.parametrize(
    ("read", "named"), [(spin, "OverLimit"), (fill, "MemoryError"), (refuse_as_nobody_may, "KeyError")]
)
def test_a_parser_beyond_its_limits_is_found(read, named, tmp_path):
    done, finds = fuzz(Parser("bad", (b"x",), read), tmp_path, range(3, 4))
    assert done == len(finds) == 1
    assert finds[0].startswith(f"bad --first 3 --number 1: {named}")


def test_a_tokenizer_on_which_the_library_panics_is_named(tmp_path):
    merges = '[["a", "b"], ["<|endoftext|>", "c"]]'
    vocab = '{"a": 0, "b": 1, "ab": 2, "c": 3, "<": 4}'
    for prefix in ("null", '"abcdefgh"'):
        model = f'{{"type": "BPE", "continuing_subword_prefix": {prefix}, "vocab": {vocab}, "merges": {merges}}}'
        (tmp_path / "tokenizer.json").write_text(f'{{"version": "1.0", "model": {model}}}')
        with pytest.raises(ValueError, match=r"^tokenizer='.*tokenizer\.json': "):
            load_tokenizer(tmp_path / "tokenizer.json")
