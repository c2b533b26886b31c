"""Reads users' text, JSON and TOML files. Errors include the file, line and field."""

import contextlib
import errno
import functools
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gram_platform.config.crash_safe import A_FILE, A_FOLDER, KIND_OF_MODE
from gram_platform.config.identity import DEEPEST, InvalidField, Steps, invalid, parse_with
from gram_platform.config.plain import (
    MOST_JSON_BYTES,
    STEP,
    from_plain,
    name_of,
    overlaid,
    parse_json,
    steps_of,
)

# Bytes of a record, table or tokenizer, so that a small packed file cannot fill the memory.
MAX_RECORD_BYTES = 1 << 28
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
HEADER = re.compile(r"\s*\[(\[?)([^\[\]]+)\]")
KEY = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[\w. -])+?)\s*=")
PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([\w-]+)")


def target_kind(field: str, path: Path | str) -> str:
    """Returns A_FILE, A_FOLDER, or "" if the path does not exist. Follows links.

    `field` is the path's name in errors. Raises ValueError for a pipe, socket or device, a broken
    link, and a path that cannot be accessed.
    """
    try:
        kind = KIND_OF_MODE[stat.S_IFMT(os.stat(path).st_mode)]
    except ValueError:
        # The path has a NUL character.
        return ""
    except OSError as error:
        expected = "a file or folder that can be reached"
        if os.path.islink(path):
            expected = f"a link to something, not to {os.readlink(path)}"
        elif error.errno in NOT_THERE:
            return ""
        raise invalid(field, str(path), f"{expected} ({error.strerror})") from None
    if kind not in (A_FILE, A_FOLDER):
        raise invalid(field, str(path), f"{A_FILE} or folder, found {kind}")
    return kind


def require_fetched(field: str, path: Path, most: float = math.inf) -> None:
    """Raises ValueError if a file is an unfetched Git LFS pointer or is larger than `most`.

    `most` is in bytes. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as handle:
        if handle.read(len(LFS_POINTER)) == LFS_POINTER:
            allowed = "the file itself, found a pointer of Git LFS: fetch it by `git lfs pull`"
            raise invalid(field, str(path), allowed)
    if path.stat().st_size > most:
        raise invalid(field, str(path), f"a file of at most {most:,} bytes")


def read_text(field: str, path: Path, most: int = MOST_JSON_BYTES) -> str:
    r"""Reads UTF-8 text, drops its byte order mark, and converts line ends to \n.

    Raises ValueError if the file is not UTF-8 text or has more than `most` bytes.
    """
    if (kind := target_kind(field, path)) != A_FILE:
        raise invalid(field, str(path), f"a file of text, found {kind or 'nothing'}")
    try:
        require_fetched(field, path, most)
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        allowed = f"a file of UTF-8 text that can be read ({error})"
        raise invalid(field, str(path), allowed) from None


def read_json(path: Path, kind: Any = dict) -> Any:
    """Reads a JSON file as a value of the type `kind` (see `from_plain`).

    Raises ValueError if the file is not JSON. Raises InvalidField for a wrong field. Both include
    the file's path.
    """
    text = read_text("file", path)
    try:
        return parse_json(text, kind)
    except InvalidField as error:
        raise error.at(str(path)) from error
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error


@dataclass(frozen=True)
class Written:
    """Fields that a user wrote in a file or a flag.

    `place` is the file or flag, and `text` the whole document. Errors name the place and the line.
    `parts` are the documents that `together` merged.
    """

    place: str
    plain: Mapping[str, Any]
    text: str = ""
    parts: tuple["Written", ...] = ()

    def build(self, kind: Any, start: Any = None) -> Any:
        """Builds a dataclass. `start` supplies missing fields. Errors name file and line."""
        with self.locate_errors():
            return from_plain(kind, overlaid(start, self.plain))

    @contextlib.contextmanager
    def locate_errors(self) -> Iterator[None]:
        try:
            yield
        except InvalidField as error:
            raise self.error(error) from error

    def error(self, error: InvalidField) -> InvalidField:
        """Returns the error with the place of its field, and the line number if known."""
        # The last part that wrote the field comes first.
        parts = [(part, part._find_steps(error)) for part in (*reversed(self.parts), self)]
        part, steps = max(parts, key=lambda pair: len(pair[1]))
        lines = _number_lines(part.text)
        # A field inside a value gets the value's line.
        ends = range(len(steps), 0, -1)
        numbers = [n for end in ends for at, n in lines.items() if at[:end] == steps[:end]]
        place = f"{part.place}, line {numbers[0]}" if numbers else part.place
        is_named = tuple(steps_of(error.field)) == steps and not isinstance(error.value, Mapping)
        if is_named and not part.text:
            # The error repeats the field and value of an assignment.
            place = place.partition(" ")[0]
        return error.at(place)

    def _find_steps(self, error: InvalidField) -> Steps:
        fields = list(_walk(self.plain))
        name = tuple(steps_of(error.field))
        likely = (field for step in reversed(name[-2:]) for field in fields if field[-1] == step)
        steps = error.steps or (name if name in fields else next(likely, ()))
        while steps and steps not in fields:
            steps = steps[:-1]
        return steps


def together(parts: Sequence[Written]) -> Written:
    """Merges the fields of several documents. Later documents override earlier ones."""
    plain: dict[str, Any] = functools.reduce(overlaid, (part.plain for part in parts), {})
    return Written(parts[0].place if parts else "", plain, parts=tuple(parts))


def _walk(plain: Any, steps: Steps = ()) -> Iterator[Steps]:
    items = plain.items() if isinstance(plain, Mapping) else ()
    for key, value in enumerate(plain) if isinstance(plain, list) else items:
        yield (*steps, key)
        yield from _walk(value, (*steps, key))


def read_toml(field: str, path: Path) -> Written:
    """Reads a TOML file. Raises ValueError if it is unreadable or not TOML."""
    text = read_text(field, path)
    try:
        return Written(str(path), parse_with(tomllib.loads, text), text)
    except ValueError as error:
        # Also for a number of thousands of digits.
        raise ValueError(f"{path}: not TOML: {error}") from error


def read_assignment(text: str) -> Written:
    """Parses an assignment such as `sizes[0.6M].peak_lr=2e-3`.

    The value is TOML or a plain word. Raises ValueError if the text has another form.
    """
    name, separator, value = text.partition("=")
    name = name.strip()
    steps = steps_of(name)
    if not separator or not steps or STEP.sub("", name):
        examples = "routing.p_aux_spread=0.1 or sizes[0.6M].peak_lr=2e-3"
        raise invalid("set", text, f"field=value, such as {examples}")
    if len(steps) > DEEPEST:
        raise invalid("set", f"{text:.60}...", f"a field in at most {DEEPEST} tables")
    try:
        plain = read_value(value)
    except ValueError as error:
        # The value is a number of thousands of digits, or nested arrays.
        allowed = f"field=value, with a value that can be read ({error})"
        raise invalid("set", f"{text:.60}...", allowed) from None
    for step in reversed(steps):
        plain = {step: plain}
    return Written(f"--set {text}", plain)


def read_value(text: str) -> Any:
    """Parses a TOML value or a number such as .5. Returns any other text as a string."""
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return parse_with(tomllib.loads, f"value = {text}")["value"]
    with contextlib.suppress(ValueError):
        return float(text)
    return text.strip()


def assignments(plain: Mapping[str, Any], steps: Steps = ()) -> list[str]:
    """Converts a document to assignments for `read_assignment`, one for each value."""
    texts = []
    for key, value in plain.items():
        if isinstance(value, Mapping):
            texts += assignments(value, (*steps, key))
        else:
            texts.append(f"{name_of((*steps, key))}={_write_toml(value)}")
    return texts


def _write_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_write_toml(k)} = {_write_toml(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_write_toml, value))}]"
    if isinstance(value, str):
        # TOML's basic strings differ from JSON's strings only in DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _number_lines(text: str) -> dict[Steps, int]:
    """Returns the line number of each table and key in TOML, except keys in inline tables."""
    lines: dict[Steps, int] = {}
    table: Steps = ()
    count: dict[Steps, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if header := HEADER.match(line):
            table = _read_name(header[2])
            if header[1]:
                count[table] = count.get(table, -1) + 1
                table = (*table, count[table])
            lines.setdefault(table, number)
        elif key := KEY.match(line):
            lines.setdefault((*table, *_read_name(key[1])), number)
    return lines


def _read_name(name: str) -> Steps:
    return tuple("".join(parts) for parts in PART.findall(name))
