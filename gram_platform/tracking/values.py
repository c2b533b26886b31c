"""Makes strings fit MLflow's limits, and reads back values that users may have edited.

A value that this package cannot have written is treated as missing, and is written again.
"""

import re
import sys
from collections.abc import Mapping

from gram_platform.config.identity import canonical_json, mask_secrets, metric_name
from gram_platform.config.plain import parse_json

# Characters of a tag or parameter that every MLflow and its databases keep whole.
LONGEST_TEXT = 5000
# Characters of a run's name, and of the name of a tag, parameter or metric.
LONGEST_NAME = 250
LONGEST_S = 2.0**52 / 1000
MOST_TAGS = 100
# The names of the study's tags, separated by commas.
TAG_NAMES = "gram.tags"
# The number of parts of a text with all tags, if MLflow cannot store each tag.
NUM_PARTS = "gram.num_parts"
# The part's number follows. MLflow's pages hide tags whose names begin with `mlflow.`.
TAG_PART = "mlflow.gram.part."
RESERVED = ("gram.", "mlflow.")
_ESCAPE = re.compile(r":([0-9a-f]+):")


def text_for_people(text: str, most: int = LONGEST_TEXT) -> str:
    """Masks secrets, escapes NUL and lone surrogates, and cuts the text to `most` characters."""
    text = in_utf8(mask_secrets(text)).replace("\0", "\\x00")
    return text if len(text) <= most else f"{text[: most - 1]}…"


def in_utf8(text: str) -> str:
    """Escapes lone surrogates, which JSON can contain but UTF-8 cannot."""
    return text.encode(errors="backslashreplace").decode()


def milliseconds(seconds: float) -> int:
    """Converts seconds to whole milliseconds. Clips them to what databases can store."""
    return round(max(-LONGEST_S, min(seconds, LONGEST_S)) * 1000)


def is_short_name(name: str) -> bool:
    """Returns True if MLflow accepts the length of a tag's or metric's escaped name."""
    return 0 < len(name) <= LONGEST_NAME


def whole_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Converts a study's tags to MLflow's tags. `study_of` is the inverse.

    Leaves out or shortens tags that MLflow or its database would reject. If there are any, hidden
    tags store all tags as JSON.
    """
    escaped = {metric_name(name): value for name, value in tags.items()}
    readable = {
        name: text_for_people(value)
        for name, value in escaped.items()
        if is_short_name(name) and not name.startswith(RESERVED)
    }
    names = ",".join(sorted(readable))
    if len(names) <= LONGEST_TEXT and readable == escaped:
        return {**readable, TAG_NAMES: names, NUM_PARTS: ""}
    text = canonical_json(dict(tags))
    parts = [text[start : start + LONGEST_TEXT] for start in range(0, len(text), LONGEST_TEXT)]
    hidden = {f"{TAG_PART}{number}": part for number, part in enumerate(parts)}
    return {**readable, **hidden, TAG_NAMES: text_for_people(names), NUM_PARTS: str(len(parts))}


def unescape(key: str) -> str:
    """Inverts `metric_name`. Keeps codes `:<hex>:` that stand for no character."""
    return _ESCAPE.sub(_character, key)


def _character(match: re.Match) -> str:
    code = int(match[1], 16)
    return chr(code) if code < 0xD800 or 0xDFFF < code <= sys.maxunicode else match[0]


def study_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Inverts `whole_tags`. Recovers as much as possible if people have edited the tags."""
    num_parts = number_of(tags, NUM_PARTS) or 0
    if 0 < num_parts <= len(tags):
        try:
            parts = (tags.get(f"{TAG_PART}{number}", "") for number in range(num_parts))
            return parse_json("".join(parts), dict[str, str])
        except ValueError:
            pass
    names = [name for name in tags.get(TAG_NAMES, "").split(",") if name]
    # MLflow may drop an empty tag.
    return {unescape(name): tags.get(name, "") for name in names}


def number_of(values: Mapping[str, str], key: str) -> int | None:
    """Reads `values[key]` as an integer of at most 18 characters. Returns None for other text."""
    text = values.get(key, "")
    is_number = text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19
    return int(text) if is_number else None


def curve_points(text: str) -> list[tuple[int, float]] | None:
    """Parses `<step>:<loss> <step>:<loss> ...`.

    Returns a list of (step, loss). Returns None for other strings.
    """
    try:
        return [
            (int(step), float(loss)) for step, loss in (point.split(":") for point in text.split())
        ]
    except ValueError:
        return None
