"""Reads one record from each source of a corpus, for `gram prepare --check`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import invalid
from gram_platform.corpora import stories
from gram_platform.corpora.catalog import HubCorpus, StoriesCorpus, TextCorpus
from gram_platform.corpora.hub import first_record
from gram_platform.corpora.installed import INSTALLED, first_units
from gram_platform.corpora.recipe import HubRow
from gram_platform.corpora.recipe_file import read_description, text_units
from gram_platform.corpora.records import Unit, read_unit
from gram_platform.corpora.resolution import core_labels, existing_path, stories_of
from gram_platform.corpora.sources import find_units

SHOWN_CHARS = 80
NO_RECORD = "no record"


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one source. `found` is the first record or an error message."""

    source: str
    label: str
    ok: bool
    # "verified" or "not verified" for a dataset of the hub, "" for other text.
    mark: str
    found: str


def check(corpus: str | Path) -> list[CheckResult]:
    """Reads one record from each source of a corpus, such as a dataset or file.

    `CheckResult.ok` is False for an unreadable source, and for all sources if all are empty.
    """
    described = read_description(corpus)
    if isinstance(described, HubCorpus):
        results = [_check_row(row) for row in described.rows]
    elif isinstance(described, StoriesCorpus):
        source = stories_of(described, core_labels(None, stories.TOPICS))
        read = partial(next, stories.story_documents(source))
        results = [_check("generated stories", "", read)]
    else:
        units = _units(corpus, described)
        results = [_check(str(unit.paths[0]), unit.label, partial(_first, unit)) for unit in units]
    if all(result.found == NO_RECORD for result in results):
        return [replace(result, ok=False) for result in results]
    return results


def require_readable(corpus: str | Path) -> None:
    """Raises ValueError unless `corpus` is a known name, recipe, URL or path with data files."""
    described = read_description(corpus)
    if not isinstance(described, HubCorpus | StoriesCorpus):
        _units(corpus, described)


def _units(corpus: str | Path, described: TextCorpus | None) -> Sequence[Unit]:
    if described is not None:
        return text_units(corpus)
    return first_units() if str(corpus) == INSTALLED else find_units(existing_path(corpus))


def _check_row(row: HubRow) -> CheckResult:
    name = row.files[0] if row.files else f"{row.dataset} {row.config or row.data_dir}".strip()
    mark = "verified" if row.verified else "not verified"
    return _check(name, row.label or row.label_field, partial(first_record, row), mark)


def _first(unit: Unit) -> tuple[str, str]:
    record = next(read_unit(unit), None)
    if record is None and unit.label:
        raise invalid("label", unit.label, "text in at least one of its files")
    return record or ("", NO_RECORD)


def _check(
    source: str, label: str, read: Callable[[], tuple[str, str]], mark: str = ""
) -> CheckResult:
    try:
        label, text = read()
    except (ValueError, OSError, Unavailable) as error:
        return CheckResult(source, label, False, mark, str(error))
    line = " ".join(text.split())
    shown = line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 3] + "..."
    return CheckResult(source, label, True, mark, shown)
