"""One reader of plain values for JSON, TOML and --set, and errors that carry their data."""

import copy
import json
import pickle
import tomllib
from collections.abc import Iterator
from typing import Literal, NotRequired, TypedDict

import cloudpickle
import pytest

from gram_platform.config import RunConfig
from gram_platform.config.identity import InvalidField, canonical_json, invalid, require_choice
from gram_platform.config.plain import from_plain, name_of, overlaid, parse_json, steps_of
from gram_platform.config.training import OptimizerConfig
from gram_platform.config.written import (
    assignments,
    read_assignment,
    read_json,
    read_toml,
    together,
)
from tests import tiny
from tests.refused import refused

START = OptimizerConfig(3e-3, 0.2, 0.2)


def test_bad_input_says_field_value_and_expected():
    with pytest.raises(InvalidField) as caught:
        require_choice("kind", "b", ("a", "c"))
    error = caught.value
    assert (error.field, error.value) == ("kind", "b")
    assert error.at("my.toml, line 3").place == "my.toml, line 3"


@pytest.mark.parametrize(
    "value", [[[]] * 10_000, 16**10_000, "x" * 10_000], ids=["lists", "integer", "text"]
)
def test_bad_input_has_a_short_text(value):
    """A file of some megabytes may hold it; Python refuses to spell the integer."""
    assert 0 < len(str(invalid("x" * 10_000, value, "a number"))) < 3000


@pytest.mark.parametrize("library", [pickle, cloudpickle])
@pytest.mark.parametrize("value", [(1, {"a": [None, 2.5]}), "é\n", None])
def test_bad_input_survives_pickling(value, library):
    error = InvalidField("rows[1].label", value, "a text", "my.toml, line 3", ("rows", 1, "label"))
    again = pickle.loads(library.dumps(error))
    assert type(again) is InvalidField
    assert (vars(again), str(again)) == (vars(error), str(error))


CHANGES = {
    "peak_lr = 1": None,
    "peak_lr = '1'": ("peak_lr", "1"),
    "peak_lr = -1.0": ("optimizer.peak_lr", -1.0),
    "decay_vectors = 0": ("decay_vectors", 0),
    "clip_scope = ['a']": ("clip_scope", ["a"]),
}


def readings(text: str, tmp_path) -> Iterator[OptimizerConfig | InvalidField]:
    """Reads the same changes of START from JSON, a TOML file and --set."""
    plain, path = tomllib.loads(text), tmp_path / "my.toml"
    path.write_text(text)
    for read in (
        lambda: from_plain(OptimizerConfig, overlaid(START, json.loads(json.dumps(plain)))),
        lambda: read_toml("preset", path).build(OptimizerConfig, START),
        lambda: together(list(map(read_assignment, assignments(plain)))).build(
            OptimizerConfig, START
        ),
    ):
        try:
            yield read()
        except InvalidField as error:
            yield error


@pytest.mark.parametrize("text", CHANGES)
def test_json_toml_and_set_are_read_alike(text, tmp_path):
    found = list(readings(text, tmp_path))
    if CHANGES[text] is None:
        assert found == [OptimizerConfig(1.0, 0.2, 0.2)] * 3
        assert {type(one.peak_lr) for one in found} == {float}
        return
    assert [(one.field, one.value) for one in found] == [CHANGES[text]] * 3
    name = text.partition(" ")[0]
    (assignment,) = assignments(tomllib.loads(text))
    # A text that the error's field and value repeat is left out.
    place = "--set" if found[0].field == name else f"--set {assignment}"
    assert [one.place for one in found] == ["", f"{tmp_path}/my.toml, line 1", place]
    assert [one.steps for one in found] == [(name,)] * 3


def test_a_table_changes_what_it_names_and_a_built_value_stays():
    run = tiny.run_config()
    changes = {"optimizer": {"peak_lr": 1}, "start": False}
    plain = overlaid(run, changes)
    assert plain["model"] is run.model
    changed = from_plain(RunConfig, plain)
    assert changed == tiny.run_config(optimizer=OptimizerConfig(1.0, 0.2, 0.2))
    assert changed.model is run.model
    assert changes == {"optimizer": {"peak_lr": 1}, "start": False}
    assert overlaid({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {
        "a": {"b": 3, "c": 2},
        "d": 4,
    }


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (("sizes", "0.6M", "peak_lr"), "sizes[0.6M].peak_lr"),
        (("a", "b"), "a.b"),
        (("a b",), "[a b]"),
    ],
)
def test_a_name_spells_steps(steps, name):
    assert name_of(steps) == name
    assert steps_of(name) == list(steps)
    assert name_of(("rows", 1, "label")) == "rows[1].label"


STRANGE = (None, True, 3, -2.5, 10**400, "text", [], [[1]], {}, {"x": 1})


def changed_values(plain, place=()) -> Iterator[tuple]:
    """Yields the steps to every value within a JSON value."""
    for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        yield (*place, key)
        if isinstance(value, dict | list):
            yield from changed_values(value, (*place, key))


def test_json_with_any_wrong_value_is_refused_by_name_or_read():
    """A stored config may be damaged or foreign: whatever stands in a field, it is read or it is
    bad input."""
    run = tiny.run_config()
    plain = json.loads(canonical_json(run))
    num_refused = 0
    for steps in changed_values(plain):
        for value in (*STRANGE, ...):
            copied = copy.deepcopy(plain)
            within = copied
            for step in steps[:-1]:
                within = within[step]
            if value is ...:
                del within[steps[-1]]
            else:
                within[steps[-1]] = value
            try:
                canonical_json(from_plain(RunConfig, copied))
            except InvalidField:
                num_refused += 1
    assert num_refused > 300


def test_what_json_lacks_or_has_too_much_is_named():
    plain = json.loads(canonical_json(tiny.run_config()))
    del plain["optimizer"]["peak_lr"]
    with refused("optimizer", plain["optimizer"]):
        from_plain(RunConfig, plain)
    with refused("the file", ["seed"]):
        from_plain(RunConfig, {"seed": 3})
    with refused("the file", [3]):
        from_plain(RunConfig, [3])
    with refused("tempo", 3):
        from_plain(RunConfig, {"tempo": 3})


class Note(TypedDict):
    title: str
    lengths: list[float]
    rating: NotRequired[int]
    colour: NotRequired[Literal["red", "blue"]]


def test_a_table_of_some_fields_keeps_the_others():
    text = '{"title": "a", "lengths": [1, 2.5], "more": {"x": [1]}}'
    assert parse_json(text, Note) == {"title": "a", "lengths": [1.0, 2.5], "more": {"x": [1]}}
    assert parse_json('{"a": [3]}', dict[str, list[int]]) == {"a": [3]}
    for wrong, field, value in (
        ('{"title": "a"}', "the file", ["title"]),
        ('{"title": 3, "lengths": []}', "title", 3),
        ('{"title": "a", "lengths": [1, "2"]}', "lengths[1]", "2"),
        ('{"title": "a", "lengths": [], "rating": true}', "rating", True),
        ('{"title": "a", "lengths": [], "colour": "green"}', "colour", "green"),
    ):
        with refused(field, value):
            parse_json(wrong, Note)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900])
def test_an_error_of_a_json_file_names_the_file(tmp_path, text):
    path = tmp_path / "note.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=str(path)):
        read_json(path)
    path.write_text('{"title": 3, "lengths": []}')
    with pytest.raises(InvalidField) as caught:
        read_json(path, Note)
    assert (caught.value.place, caught.value.field, caught.value.value) == (str(path), "title", 3)
