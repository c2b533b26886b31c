"""Reads values that people write in TOML into frozen dataclasses; an error names file, line and field."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from gram_platform.config.identity import DEEPEST, invalid, parsed_by
from gram_platform.config.user_files import read_text

Steps = tuple[str | int, ...]  # from the top of a document to a field: keys, and indices of arrays
SCALARS = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}
HEADER = re.compile(r"\s*\[(\[?)([^\[\]]+)\]")
KEY = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[\w. -])+?)\s*=")
PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")
STEP = re.compile(r"\[([^\]]*)\]|\.?([\w-]+)")  # of a field's name in --set
NAMED = re.compile(r"(\w+)(?:\[([^\]]*)\])?=")  # the field at the head of an error


class WrongField(ValueError):
    """A field that cannot be used; `steps` lead to it."""

    def __init__(self, steps: Steps, message: str) -> None:
        super().__init__(message)
        self.steps = steps


@dataclass(frozen=True)
class Written:
    """Fields that a person wrote. `place` names their origin in errors; `text` is the document, for line numbers.

    `parts` are the origins of fields that were written in several places, see `together`.
    """

    place: str
    plain: Mapping[str, Any]
    text: str = ""
    parts: tuple["Written", ...] = ()

    def build(self, kind: Any, start: Any = None, plain: Any = None, steps: Steps = ()) -> Any:
        """Makes a dataclass of this kind from `plain` (by default the whole document), or changes `start` by it.

        A table changes the fields that it names, `false` stands for None, a table may stand for pairs. ValueError with
        place, line and field for an unknown field, a wrong type, a missing field, and what the dataclass refuses.
        """
        try:
            return _merged(kind, start, self.plain if plain is None else plain, steps)
        except WrongField as error:
            raise self.error(error) from error

    def error(self, error: ValueError) -> ValueError:
        """Says where the field that an error names was written: place and, in a document, line."""
        found = [(part, part._steps(error)) for part in (*reversed(self.parts), self)]
        part, steps = max(found, key=lambda pair: len(pair[1]))  # the last part that wrote the field
        lines = _lines(part.text)
        ends = range(len(steps), 0, -1)  # a field inside a value is on the line of the value
        numbers = [number for end in ends for at, number in lines.items() if at[:end] == steps[:end]]
        return ValueError(f"{part.place}{f', line {numbers[0]}' if numbers else ''}: {error}")

    def _steps(self, error: ValueError) -> Steps:
        """Returns the steps to the written field that an error is about, or to a table around it; () without one."""
        written, named = set(_written(self.plain)), NAMED.search(str(error))
        if isinstance(error, WrongField):
            steps = error.steps
        else:
            names = (named[2], named[1]) if named else ()
            steps = next((at for name in names for at in _written(self.plain) if at[-1] == name), ())
        while steps and steps not in written:
            steps = steps[:-1]
        return steps


def together(parts: Sequence[Written]) -> Written:
    """Returns all fields of several documents as one; later ones win."""
    plain: dict[str, Any] = {}
    for part in parts:
        plain = _joined(plain, part.plain)
    return Written(parts[0].place if parts else "", plain, parts=tuple(parts))


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = {key for key in first if isinstance(first[key], Mapping) and isinstance(second.get(key), Mapping)}
    return {**first, **second, **{key: _joined(first[key], second[key]) for key in both}}


def _written(plain: Any, steps: Steps = ()) -> Iterator[Steps]:
    """Yields the steps to every table, field and item."""
    is_table = isinstance(plain, Mapping)
    for key, value in plain.items() if is_table else enumerate(plain) if isinstance(plain, list) else ():
        yield (*steps, key)
        yield from _written(value, (*steps, key))


def read_toml(field: str, path: Path) -> Written:
    """Reads a TOML file; ValueError naming the field for an unreadable file, file and line for a syntax error."""
    text = read_text(field, path)
    try:
        return Written(str(path), parsed_by(tomllib.loads, text), text)
    except ValueError as error:  # also a number of thousands of digits
        raise ValueError(f"{path}: not TOML: {error}") from error


def read_assignment(text: str) -> Written:
    """Reads `routing.p_aux_spread=0.1` or `sizes[0.6M].peak_lr=2e-3`: a field and its value in TOML, or a plain word.

    ValueError for another form.
    """
    name, separator, value = text.partition("=")
    name = name.strip()
    steps = [bracketed or plain for bracketed, plain in STEP.findall(name)]
    if not separator or not steps or STEP.sub("", name):
        raise invalid("set", text, "field=value, such as routing.p_aux_spread=0.1 or sizes[0.6M].peak_lr=2e-3")
    if len(steps) > DEEPEST:
        raise invalid("set", f"{text:.60}...", f"a field in at most {DEEPEST} tables")
    try:
        found = _value(value)
    except ValueError as error:  # a number of thousands of digits, or arrays within arrays
        raise invalid("set", f"{text:.60}...", f"field=value, with a value that can be read ({error})") from None
    for step in reversed(steps):
        found = {step: found}
    return Written(f"--set {text}", found)


def _value(text: str) -> Any:
    """Reads a value in TOML; else a number such as .5, else the text itself."""
    with suppress(tomllib.TOMLDecodeError):
        return parsed_by(tomllib.loads, f"value = {text}")["value"]
    with suppress(ValueError):
        return float(text)
    return text.strip()


def assignments(plain: Mapping[str, Any], steps: Steps = ()) -> list[str]:
    """Returns a document of tables and values as the texts that `read_assignment` reads, one for each value."""
    texts = []
    for key, value in plain.items():
        below = (*steps, key)
        texts += assignments(value, below) if isinstance(value, Mapping) else [f"{name_of(below)}={_toml(value)}"]
    return texts


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")  # a basic string, as JSON's but for DEL
    return str(value).lower() if isinstance(value, bool) else repr(value)


def name_of(steps: Steps) -> str:
    """Spells the steps to a field: `sizes[0.6M].peak_lr`, `rows[1].label`."""
    names = [f".{step}" if re.fullmatch(r"[A-Za-z_]\w*", str(step)) else f"[{step}]" for step in steps]
    return "".join(names).removeprefix(".")


# ------------------------------------------------------------------------------------------------------- values


def _merged(hint: Any, start: Any, value: Any, steps: Steps) -> Any:
    """Returns a written value as the type of its field; a table changes `start`, where there is one."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is False and NoneType in options:
        return None
    hint = next(option for option in options if option is not NoneType)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, start, value, steps)
    if origin is tuple:
        return _tuple(arguments, value, steps)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        items = _require(value, Mapping, steps, "a table").items()
        return {key: _merged(arguments[1], None, one, (*steps, key)) for key, one in items}
    if hint not in SCALARS:
        raise _wrong(steps, value, "no value: it cannot be set in a file")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _require(value, hint, steps, SCALARS[hint])


def _dataclass(kind: Any, start: Any, value: Any, steps: Steps) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    _require(value, Mapping, steps, "a table with fields of: " + ", ".join(fields))
    hints, new = get_type_hints(kind), {}
    for name, one in value.items():
        if name not in fields:
            raise _wrong((*steps, name), one, "one of the fields " + ", ".join(fields))
        new[name] = _merged(hints[name], getattr(start, name, None), one, (*steps, name))
    nothing = dataclasses.MISSING
    needed = [n for n, field in fields.items() if field.default is field.default_factory is nothing and n not in new]
    if needed and start is None:
        raise _wrong(steps, dict(value), "a table that also has " + ", ".join(needed))
    try:
        return kind(**new) if start is None else dataclasses.replace(start, **new)
    except ValueError as error:
        named = NAMED.search(str(error))
        raise WrongField((*steps, named[1]) if named else steps, str(error)) from error


def _tuple(arguments: tuple, value: Any, steps: Steps) -> tuple:
    """Returns an array as a tuple; of pairs also a table."""
    part = arguments[0]
    if isinstance(value, Mapping) and get_origin(part) is tuple and get_args(part)[0] is str:
        return tuple((key, _merged(get_args(part)[1], None, one, (*steps, key))) for key, one in value.items())
    _require(value, list, steps, "an array")
    parts = [part] * len(value) if arguments[-1] is ... else list(arguments)
    if len(parts) != len(value):
        raise _wrong(steps, value, f"an array of {len(parts)} values")
    return tuple(_merged(p, None, one, (*steps, i)) for i, (p, one) in enumerate(zip(parts, value, strict=True)))


def _require(value: Any, kind: type, steps: Steps, expected: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(steps, value, expected)
    return value


def _wrong(steps: Steps, value: Any, expected: str) -> WrongField:
    return WrongField(steps, str(invalid(name_of(steps) or "the file", value, expected)))


# -------------------------------------------------------------------------------------------------------- lines


def _lines(text: str) -> dict[Steps, int]:
    """Returns the line of every table and key of a document; keys inside a value are on the line of the value."""
    found: dict[Steps, int] = {}
    table: Steps = ()
    count: dict[Steps, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if header := HEADER.match(line):
            table = _steps(header[2])
            if header[1]:
                count[table] = count.get(table, -1) + 1
                table = (*table, count[table])
            found.setdefault(table, number)
        elif key := KEY.match(line):
            found.setdefault((*table, *_steps(key[1])), number)
    return found


def _steps(name: str) -> Steps:
    return tuple("".join(parts) for parts in PART.findall(name))
