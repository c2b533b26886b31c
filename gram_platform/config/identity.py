"""Validates fields, and derives all ids of the platform as hashes of canonical JSON."""

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import operator
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

# The lowest `difflib` ratio at which a word may be a misspelt choice.
SIMILAR = 0.75
# File systems allow 255, and names get suffixes.
MAX_NAME_BYTES = 200
# The longest name of a domain in a metric, since MLflow allows 250 characters.
MAX_METRIC_NAME = 250 - len("final/validation/loss/")
# Set by Ray in the entrypoint of a submitted job.
RAY_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
DEEPEST = 100
# Characters that MLflow rejects, and parts of non-canonical paths such as `a//b`, `/a` and `../a`.
NOT_IN_METRICS = re.compile(r"[^\w\-. /]|^/|/$|(?<=/)/|(?:^|(?<=/))\.", re.ASCII)
# Characters with a meaning in paths and parameters, control characters and lone surrogates.
NOT_IN_NAMES = re.compile(r"[./,+=\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Unicode's Default_Ignorable_Code_Point, and two signs whose glyph is blank. Format characters (Cf)
# are found by their category.
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
NOT_ASCII_OR_CONTROL = re.compile("[^\t\n -~]")
# User and password of an address, keys in its query, and the webhook in a command line. Digits
# before a slash are a port, except in a database's address. MLflow's charts have a public key.
# Each part ends where the next may begin, so that the time is linear in a text's length.
SECRET = re.compile(
    r"(?P<database>\b(?:postgres\w*|mysql|mariadb|mssql|oracle|mongodb|redis\w*)(?:\+\w+)?://)"
    r"(?:[^\s/?#]*|[^\s/:@]*:(?:(?!://)[^\s@])*)(?=@)"
    r"|(?<=://)(?:[^\s/?#]*|[^\s/:@]*:(?!\d*/)(?:(?!://)[^\s@])*)(?=@)"
    r"|(?<=%3A%2F%2F)(?:(?!%3A%2F%2F)[^\s/?#&])*(?=%40)"
    r"|(?P<key>(?:[?&;#]|%(?:3[FB]|2[63]))(?!viewStateShareKey=)(?:(?!%(?:3[FB]|2[63]))[^\s?&;#=])*"
    r"(?:sig|token|key|secret|signature|p(?:ass)?w(?:or)?d)(?:=|%3D))[^&#\s'\"]*"
    r"|(?P<flag>--notify[ =])(?:'[^']*'|[^\s']*[:/][^\s']*)",
    re.IGNORECASE,
)
# The most characters of a field or value in an error. A value may be a whole document.
LONGEST_SHOWN = 1000
# Keys, and indices of arrays, from the top of a document to a value.
Steps = tuple[str | int, ...]


class InvalidField(ValueError):
    """The error for a field whose value is not as `expected`.

    A message is, for example, `storage='/x': expected a folder, found a file`. `place` is where
    the field was written, such as `my.toml, line 3`. `steps` is the path (keys and indices) to the
    field in the document that `from_plain` read.
    """

    def __init__(
        self, field: str, value: object, expected: str, place: str = "", steps: Steps = ()
    ) -> None:
        # An error is pickled by these arguments between processes of Ray.
        super().__init__(field, value, expected, place, steps)
        self.field, self.value, self.expected = field, value, expected
        self.place, self.steps = place, steps

    def for_command(self, flags: Collection[str]) -> str:
        """Returns the error's message for a command line.

        If the field is in `flags` and `place` is "", the message names the flag, not the field.
        """
        if self.place or self.field not in flags:
            return str(self)
        flag, value = f"--{self.field.replace('_', '-')}", self.value
        is_empty = value is None or value is False or value in ("", ())
        if is_empty and not self.expected.startswith("no value"):
            return mask_secrets(f"{flag}: not given; expected {self.expected}")
        texts = map(str, value) if isinstance(value, tuple | list) else [str(value)]
        return mask_secrets(f"{flag} {shlex.join(texts)[:LONGEST_SHOWN]}: expected {self.expected}")

    def at(self, place: str) -> "InvalidField":
        return InvalidField(self.field, self.value, self.expected, place, self.steps)

    def __str__(self) -> str:
        try:
            value = mask_secrets(repr(self.value))
        except ValueError:
            # Python refuses to print it.
            value = "an integer of thousands of digits"
        value = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}..."
        text = mask_secrets(f"{self.field[:LONGEST_SHOWN]}={value}: expected {self.expected}")
        return f"{self.place}: {text}" if self.place else text


def invalid(field: str, value: object, expected: str) -> InvalidField:
    """Returns the error for a field that a user set to a wrong value. Masks secrets."""
    return InvalidField(field, mask_secrets(value) if isinstance(value, str) else value, expected)


def require_int(field: str, value: Any, low: int, high: float = math.inf) -> None:
    if type(value) is not int or not low <= value <= high:
        bound = "" if high == math.inf else f" and <= {high}"
        raise invalid(field, value, f"an integer >= {low}{bound}")


def require_real(
    field: str, value: Any, low: float, high: float = math.inf, open_low: bool = False
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_real = is_number and abs(value) <= sys.float_info.max
    if not is_real or not low <= value <= high or (open_low and value == low):
        bound = "" if high == math.inf else f" and <= {high}"
        sign = ">" if open_low else ">="
        raise invalid(field, value, f"a finite number {sign} {low}{bound}")


def require_fields(
    owner: str, value: Any, low: float, *names: str, high: float = math.inf, open_low: bool = False
) -> None:
    """Raises ValueError if a dataclass's fields `names` are not all in [low, high].

    `open_low` excludes `low` for floats. Fields of type int must be integers. Errors call a field
    `owner.name`, or `name` if `owner` is empty.
    """
    types = {
        field.name: getattr(field.type, "__origin__", field.type)
        for field in dataclasses.fields(value)
    }
    for name in names:
        field, number = f"{owner}.{name}" if owner else name, getattr(value, name)
        if types[name] is int:
            require_int(field, number, int(low), high)
        else:
            require_real(field, number, float(low), float(high), open_low)


def find_id(field: str, beginning: str, known: Collection[str], expected: str) -> str:
    """Returns `beginning` if it is a known id, otherwise the only known id that begins with it.

    Raises ValueError if `beginning` is empty, or unless exactly one known id matches.
    """
    ids = [beginning] if beginning in known else [i for i in known if i.startswith(beginning)]
    if not beginning or not ids:
        raise invalid(field, beginning, f"{expected}: its id, or the beginning of it")
    if len(ids) > 1:
        allowed = f"the beginning of one, not of {len(ids)}: {', '.join(ids[:6])}"
        raise invalid(field, beginning, allowed)
    return ids[0]


def require_choice(field: str, value: object, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        raise invalid(field, value, one_of(value, choices))


def require_each_once(field: str, values: Collection) -> None:
    if not values or len(set(values)) < len(values):
        raise invalid(field, values, "one or more values, each once")


def one_of(value: object, choices: Iterable[str], of: str = "") -> str:
    """Lists choices for an error, such as "one of the fields a, b" if `of` is "the fields ".

    If the value is a misspelt choice, adds the result of `suggest`.
    """
    choices = tuple(choices)
    return f"one of {of}{', '.join(choices)}{suggest(value, choices)}"


def suggest(value: object, choices: Iterable[str]) -> str:
    """Returns ". Perhaps you meant: " and the choices similar to a value.

    If no choice is similar, returns "".
    """
    spelt = {choice.lower(): choice for choice in choices}
    similar = difflib.get_close_matches(str(value).lower(), spelt, cutoff=SIMILAR)
    return f". Perhaps you meant: {', '.join(spelt[name] for name in similar)}" if similar else ""


def require_name(field: str, value: Any) -> None:
    """Raises ValueError if the value is not a valid name for parameters, metrics and files."""
    is_text = isinstance(value, str) and value and value == value.strip()
    if not is_text or NOT_IN_NAMES.search(value):
        allowed = "a non-empty name without . / , + = \\, control characters or surrounding blanks"
        raise invalid(field, value, allowed)
    if len(value.encode()) > MAX_NAME_BYTES:
        raise invalid(field, value, f"a name of at most {MAX_NAME_BYTES} bytes in UTF-8")


def metric_name(name: str) -> str:
    """Escapes a metric or tag name. A character that MLflow rejects becomes `:<hex code>:`."""
    return NOT_IN_METRICS.sub(lambda match: f":{ord(match[0]):x}:", name)


def require_metric_name(field: str, value: str) -> None:
    """Raises ValueError if a domain's name is too long for an MLflow metric.

    Only new corpora are checked, because stored configs may be older than this rule.
    """
    length = len(metric_name(value))
    if length > MAX_METRIC_NAME:
        allowed = f"a name that MLflow spells in at most {MAX_METRIC_NAME} characters"
        count = f"{length} (a letter that is not ASCII counts as 4 to 7)"
        raise invalid(field, value, f"{allowed}, found {count}")


def require_tellable(field: str, names: Collection[str], others: Iterable[str] = ()) -> None:
    """Raises ValueError if a name has invisible characters or looks like another name.

    Compares `names` with each other and with `others`. Names look alike if case folding and
    Unicode's NFKC make them equal, such as K and the Kelvin sign. Similar letters of two alphabets
    are accepted.
    """
    seen = {_fold_look(name): name for name in others}
    for name in names:
        if any(_is_unseen(letter) or (letter.isspace() and letter != " ") for letter in name):
            allowed = "a name without characters that are invisible or turn text around,"
            raise invalid(field, name, f"{allowed} and whose blanks are spaces")
        if (other := seen.setdefault(_fold_look(name), name)) != name:
            alike = f"{other!a} and {name!a} look alike"
            raise invalid(field, name, f"names that look different, but {alike}: rename one")


def _fold_look(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _is_unseen(letter: str) -> bool:
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") or bool(
        UNSEEN.match(letter)
    )


def printable(text: str) -> str:
    """Escapes control and invisible characters except tabs and line feeds, and masks secrets."""
    return NOT_ASCII_OR_CONTROL.sub(
        lambda match: ascii(match[0])[1:-1] if _is_unseen(match[0]) else match[0],
        mask_secrets(text),
    )


def mask_secrets(text: str) -> str:
    """Replaces passwords and keys in URLs, and `--notify` webhooks, with `***`."""
    return SECRET.sub(lambda match: "".join(filter(None, match.groups())) + "***", text)


def without_secrets(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        return {key: without_secrets(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [without_secrets(value) for value in plain]
    return mask_secrets(plain) if isinstance(plain, str) else plain


def local_path(field: str, place: str | Path) -> Path:
    """Makes a user's path absolute. Raises ValueError for a URL or an unknown home directory."""
    if is_url(str(place)):
        raise invalid(field, str(place), "a path, not a URL")
    try:
        return Path(place).expanduser().absolute()
    except RuntimeError as error:
        raise invalid(field, str(place), f"a path in a known home ({error})") from error


def is_url(place: str) -> bool:
    """Returns True for a URL such as `s3://b`, and False for a path such as `/data/a://b`."""
    return re.match(r"[^/~]+://", place) is not None


def absolute_place(field: str, place: str) -> str:
    """Makes a path absolute, and returns a URL unchanged.

    Raises ValueError for an unknown home directory. Inside a Ray job, also rejects relative paths,
    because each upload of the code has its own working directory.
    """
    if is_url(place):
        return place
    path = local_path(field, place)
    if not place.startswith(("~", os.sep)) and RAY_JOB_VARIABLE in os.environ:
        allowed = "an absolute path or a URL: inside a Ray job the working directory is an upload"
        raise invalid(field, place, allowed)
    return str(path)


def parse_with(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """Returns `parse(text)`. Raises ValueError if the result nests deeper than `DEEPEST` levels.

    Python's recursion limit prevents comparing, printing or writing deeper values.
    """
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST + 1):
        tables = [item for item in level if isinstance(item, Mapping | list)]
        level = [i for t in tables for i in (t.values() if isinstance(t, Mapping) else t)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def add_field(default: Any) -> Any:
    """Declares a dataclass field that was added after ids were in use.

    Canonical JSON omits the field if it has its default value, so existing ids do not change. The
    default must therefore give the behaviour from before the field was added.
    """
    return dataclasses.field(default=default, metadata={"is_newer": True})


def identity_fields(value: Any) -> dict[dataclasses.Field, Any]:
    """Returns {field: value} for the fields in a dataclass's canonical JSON."""
    fields = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {f: v for f, v in fields.items() if not (f.metadata.get("is_newer") and v == f.default)}


def to_plain(value: object) -> object:
    """Converts dataclasses, lists, mappings and scalars to JSON values.

    Raises InvalidField for inf and nan, and TypeError for other types.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_plain(float(v) if f.type is float else v)
            for f, v in identity_fields(value).items()
        }
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise invalid("number", value, "a finite one, since JSON has no other")
        return value
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: to_plain(v) for k, v in value.items()}
    raise TypeError(f"{type(value).__name__} has no canonical JSON form: {value!r}")


def canonical_json(value: object) -> str:
    """Returns JSON with sorted keys, no whitespace and the shortest form of floats.

    Equal values give equal text. An integer in a `float` field is written as a float.
    """
    return json.dumps(
        to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def short_hash(value: object) -> str:
    """Returns the first 12 hexadecimal digits of the canonical JSON's SHA-256."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def sum_in_order(values: Iterable[float]) -> float:
    """Adds numbers one by one, so that all Python versions return identical bits.

    Since Python 3.12, the builtin `sum` compensates for float rounding.
    """
    return functools.reduce(operator.add, values, 0)


def hash_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flatten(plain: object, prefix: str = "") -> dict[str, object]:
    """Flattens nested JSON to {dotted path: scalar}.

    The key of a list item is its `name` or `domain`, otherwise its index.
    """
    if isinstance(plain, Mapping):
        items = list(plain.items())
    elif isinstance(plain, list):
        items = [(_item_key(item, index), item) for index, item in enumerate(plain)]
    else:
        return {prefix: plain}
    flat: dict[str, object] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def differing_fields(flat: Collection[Mapping[str, object]]) -> dict[str, list[object]]:
    """Returns {field: [its value in each config]} for the fields that differ.

    `flat` contains results of `flatten`. A missing field counts as None.
    """
    fields = {name: [config.get(name) for config in flat] for name in sorted(set().union(*flat))}
    return {name: v for name, v in fields.items() if any(value != v[0] for value in v)}


def _item_key(item: object, index: int) -> str:
    if isinstance(item, Mapping):
        return str(item.get("name") or item.get("domain") or index)
    return str(index)
