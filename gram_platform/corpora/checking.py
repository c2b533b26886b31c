"""`gram prepare --check`: opens one record of every source of a corpus and says what it found."""

from dataclasses import dataclass
from pathlib import Path

from gram_platform.config.identity import invalid
from gram_platform.corpora import catalog
from gram_platform.corpora.hub import first_record
from gram_platform.corpora.installed import INSTALLED, first_units
from gram_platform.corpora.recipe import CorpusRecipe, HubRow, HubSource, StoriesSource
from gram_platform.corpora.records import Unit, read_unit
from gram_platform.corpora.resolution import existing, stories_of
from gram_platform.corpora.sources import find_units
from gram_platform.corpora.stories import story_documents

SHOWN_CHARS = 80


@dataclass(frozen=True)
class CheckResult:
    """One source: `found` shows its first record, or why there is none."""

    source: str
    label: str
    ok: bool
    verified: bool  # whether the catalog says so; local and generated sources need no mark
    found: str


def check(corpus: CorpusRecipe | str | Path) -> list[CheckResult]:
    """Opens one record of every source of a recipe, or of what a user names as a corpus.

    A source that cannot be read is a result with `ok` False, not an exception; ValueError for an unknown corpus.
    """
    return [_check(source) for source in _sources(corpus)]


def _sources(corpus: CorpusRecipe | str | Path) -> list[HubRow | Unit | StoriesSource]:
    if isinstance(corpus, CorpusRecipe):
        if isinstance(corpus.source, HubSource):
            return list(corpus.source.rows)
        return [corpus.source] if isinstance(corpus.source, StoriesSource) else list(corpus.units)
    name = str(corpus)
    if name in catalog.HUB:
        return list(catalog.HUB[name].rows)
    if name in catalog.STORIES:
        return [stories_of(catalog.STORIES[name], None)]
    return first_units() if name == INSTALLED else list(find_units(existing(corpus)))


def _check(source: HubRow | Unit | StoriesSource) -> CheckResult:
    name, label, verified = _name(source)
    try:
        label, text = _first(source)
    except (ValueError, OSError) as error:
        return CheckResult(name, label, False, verified, str(error))
    return CheckResult(name, label, True, verified, _shown(text))


def _name(source: HubRow | Unit | StoriesSource) -> tuple[str, str, bool]:
    """(source, label, verified) for a result."""
    if isinstance(source, HubRow):
        name = source.files[0] if source.files else f"{source.dataset} {source.config or source.data_dir}".strip()
        return name, source.label or source.label_field, source.verified
    if isinstance(source, Unit):
        return str(source.paths[0]), source.label, True
    return "generated stories", "", True


def _first(source: HubRow | Unit | StoriesSource) -> tuple[str, str]:
    """The label and the text of the first record."""
    if isinstance(source, HubRow):
        record = first_record(source)
        return record.label, record.text
    found = next(read_unit(source) if isinstance(source, Unit) else story_documents(source), None)
    if found is None:
        raise invalid("source", str(source.paths[0]), "a source with at least one record")
    return found


def _shown(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= SHOWN_CHARS else one_line[: SHOWN_CHARS - 3] + "..."
