"""Converts plain values from JSON, TOML or `--set` to a given type, and validates them.

Values are merged before they are validated. A dataclass rejects unknown fields, and a TypedDict
keeps them.

We use no library, because cattrs converts "3" to 3, msgspec and pydantic drop unknown fields, and
msgspec gives the location of an error only as text.
"""

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from gram_platform.config.identity import InvalidField, Steps, one_of, parse_with

# Our largest file has 2 MB.
MOST_JSON_BYTES = 32 * 2**20
SCALARS = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}
STEP = re.compile(r"\[([^\]]*)\]|\.?([\w-]+)")


def name_of(steps: Steps) -> str:
    """Joins keys and indices into a name, such as `sizes[0.6M].peak_lr` or `rows[1].label`."""
    is_name = re.compile(r"[A-Za-z_]\w*").fullmatch
    names = [f".{step}" if is_name(str(step)) else f"[{step}]" for step in steps]
    return "".join(names).removeprefix(".")


def steps_of(name: str) -> list[str]:
    """Splits a field's name into keys and indices. Indices remain strings."""
    return [bracketed or plain for bracketed, plain in STEP.findall(name)]


def overlaid(base: Any, changes: Any) -> Any:
    """Returns the fields of `base` (a dataclass or table), recursively updated with `changes`."""
    if dataclasses.is_dataclass(base):
        fields = [field.name for field in dataclasses.fields(base) if field.init]
        base = {name: getattr(base, name) for name in fields}
    if not isinstance(changes, Mapping) or not isinstance(base, Mapping):
        return changes
    return {**base, **{key: overlaid(base.get(key), value) for key, value in changes.items()}}


def parse_json(text: str | bytes, kind: Any = object) -> Any:
    """Parses JSON and converts it to the type `kind` (see `from_plain`).

    Raises InvalidField for a value of another type, and ValueError for text that is not JSON, is
    too long or is nested too deeply.
    """
    if len(text) > MOST_JSON_BYTES:
        raise ValueError(f"it has more than {MOST_JSON_BYTES >> 20} MiB")
    return from_plain(kind, parse_with(json.loads, text))


def from_plain(kind: Any, plain: Any, steps: Steps = ()) -> Any:
    """Converts plain values to the type `kind`, and validates them.

    Where the type requires it, tables become dataclasses or tuples of pairs, arrays become tuples,
    integers become floats, and `false` becomes None. Dataclass instances are kept. A TypedDict may
    have further fields. Raises InvalidField for an unknown, missing or wrong field. For errors,
    `steps` is the value's path in its document.
    """
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if NoneType in options and (plain is None or plain is False):
        return None
    options = tuple(option for option in options if option is not NoneType)
    kind = type(plain) if type(plain) in options else options[0]
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind in (Any, object):
        return plain
    if origin is Literal:
        if plain not in arguments:
            raise _make_error(steps, plain, one_of(plain, arguments))
        return plain
    if is_typeddict(kind):
        return _read_table(kind, plain, steps)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return plain if isinstance(plain, kind) else _build(kind, plain, steps)
    if origin is tuple and arguments:
        return _read_tuple(arguments, plain, steps)
    if origin is list and arguments:
        items = enumerate(_require(plain, list, steps, "an array"))
        return [from_plain(arguments[0], item, (*steps, i)) for i, item in items]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        table = _require(plain, Mapping, steps, "a table")
        return {
            key: from_plain(arguments[1], value, (*steps, key)) if arguments else value
            for key, value in table.items()
        }
    if kind not in SCALARS:
        return _require(plain, origin, steps, "no value: it cannot be set in a file")
    if kind in (int, float) and type(plain) is int:
        if abs(plain) > sys.float_info.max:
            raise _make_error(steps, plain, f"{SCALARS[kind]} of at most 308 digits")
        return kind(plain)
    return _require(plain, kind, steps, SCALARS[kind])


def _read_table(kind: Any, plain: Any, steps: Steps) -> dict[str, Any]:
    hints, needed = _read_hints(kind)
    _require(plain, Mapping, steps, "a table with fields of: " + ", ".join(hints))
    for name, value in plain.items():
        if name not in hints and not is_typeddict(kind):
            raise _make_error((*steps, name), value, one_of(name, hints, "the fields "))
    if missing := [name for name in needed if name not in plain]:
        # The whole document would be a long line.
        value = dict(plain) if steps else list(plain)
        raise _make_error(steps, value, "a table that also has " + ", ".join(missing))
    return {
        name: from_plain(hints.get(name, object), value, (*steps, name))
        for name, value in plain.items()
    }


def _build(kind: Any, plain: Any, steps: Steps) -> Any:
    fields = _read_table(kind, plain, steps)
    try:
        return kind(**fields)
    except InvalidField as error:
        steps = (*steps, *(name for name in steps_of(error.field) if name in _read_hints(kind)[0]))
        raise InvalidField(error.field, error.value, error.expected, steps=steps) from error


@functools.cache
def _read_hints(kind: Any) -> tuple[dict[str, Any], list[str]]:
    hints, nothing = get_type_hints(kind), dataclasses.MISSING
    if is_typeddict(kind):
        return hints, [name for name in hints if name in kind.__required_keys__]
    fields = [f for f in dataclasses.fields(kind) if f.init]
    needed = [f.name for f in fields if f.default is f.default_factory is nothing]
    return {f.name: hints[f.name] for f in fields}, needed


def _read_tuple(arguments: tuple, plain: Any, steps: Steps) -> tuple:
    first = arguments[0]
    if isinstance(plain, Mapping) and get_origin(first) is tuple and get_args(first)[0] is str:
        kind = get_args(first)[1]
        return tuple((key, from_plain(kind, plain[key], (*steps, key))) for key in plain)
    _require(plain, list | tuple, steps, "an array")
    kinds = [first] * len(plain) if arguments[-1] is ... else arguments
    if len(kinds) != len(plain):
        raise _make_error(steps, plain, f"an array of {len(kinds)} values")
    return tuple(from_plain(kinds[i], item, (*steps, i)) for i, item in enumerate(plain))


def _require(plain: Any, kind: Any, steps: Steps, expected: str) -> Any:
    if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
        raise _make_error(steps, plain, expected)
    return plain


def _make_error(steps: Steps, value: Any, expected: str) -> InvalidField:
    return InvalidField(name_of(steps) or "the file", value, expected, steps=steps)
