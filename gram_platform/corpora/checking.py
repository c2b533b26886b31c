"""Opens one record of every source of a corpus and reports it, for `gram prepare --check`."""

from dataclasses import dataclass, replace
from pathlib import Path

from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import invalid
from gram_platform.corpora import stories
from gram_platform.corpora.catalog import HubCorpus, StoriesCorpus, TextCorpus
from gram_platform.corpora.hub import first_record
from gram_platform.corpora.installed import INSTALLED, first_units
from gram_platform.corpora.recipe import CorpusRecipe, HubRow, HubSource, StoriesSource
from gram_platform.corpora.recipe_file import described_corpus, text_units
from gram_platform.corpora.records import Unit, read_unit
from gram_platform.corpora.resolution import core_labels, existing_path, stories_of
from gram_platform.corpora.sources import find_units

SHOWN_CHARS = 80
NO_RECORD = "no record"


@dataclass(frozen=True)
class CheckResult:
    """One source; `found` shows the first record, or says why there is none."""

    source: str
    label: str
    ok: bool
    mark: str  # "verified" or "not verified" in the catalog of the hub; "" for local and generated text
    found: str


def check(corpus: CorpusRecipe | str | Path) -> list[CheckResult]:
    """Opens one record of every source of a recipe, or of a corpus that a user names.

    A source that cannot be read gives a result with `ok` False; an unknown corpus raises ValueError. A file of records
    may be empty, unless all are.
    """
    results = [_check(source) for source in _sources(corpus)]
    if all(result.found == NO_RECORD for result in results):
        return [replace(result, ok=False) for result in results]
    return results


def _sources(corpus: CorpusRecipe | str | Path) -> list[HubRow | Unit | StoriesSource]:
    if isinstance(corpus, CorpusRecipe):
        if isinstance(corpus.source, HubSource):
            return list(corpus.source.rows)
        return [corpus.source] if isinstance(corpus.source, StoriesSource) else list(corpus.units)
    described = described_corpus(corpus)
    if isinstance(described, HubCorpus):
        return list(described.rows)
    if isinstance(described, StoriesCorpus):
        return [stories_of(described, core_labels(None, stories.TOPICS))]
    if isinstance(described, TextCorpus):
        return list(text_units(corpus))
    return first_units() if str(corpus) == INSTALLED else list(find_units(existing_path(corpus)))


def _check(source: HubRow | Unit | StoriesSource) -> CheckResult:
    name, label, mark = _name(source)
    try:
        label, text = _first(source)
    except (ValueError, OSError, Unavailable) as error:
        return CheckResult(name, label, False, mark, str(error))
    return CheckResult(name, label, True, mark, _shown(text))


def _name(source: HubRow | Unit | StoriesSource) -> tuple[str, str, str]:
    """Returns a result's source, label and mark."""
    if isinstance(source, HubRow):
        name = source.files[0] if source.files else f"{source.dataset} {source.config or source.data_dir}".strip()
        return name, source.label or source.label_field, "verified" if source.verified else "not verified"
    if isinstance(source, Unit):
        return str(source.paths[0]), source.label, ""
    return "generated stories", "", ""


def _first(source: HubRow | Unit | StoriesSource) -> tuple[str, str]:
    if isinstance(source, HubRow):
        return first_record(source)
    found = next(read_unit(source) if isinstance(source, Unit) else stories.story_documents(source), None)
    if found is None and isinstance(source, Unit) and source.label:
        raise invalid("label", source.label, "text in at least one of its files")
    return found or ("", NO_RECORD)


def _shown(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= SHOWN_CHARS else one_line[: SHOWN_CHARS - 3] + "..."
