"""The documents of a recipe, whatever its source: one stream of (domain, text) in a fixed order."""

from collections.abc import Iterator

from gram_platform.config.identity import invalid
from gram_platform.corpora.recipe import CorpusRecipe, StoriesSource
from gram_platform.corpora.records import Digest, Unit, read_unit
from gram_platform.corpora.stories import story_documents


def documents(recipe: CorpusRecipe, units: tuple[Unit, ...]) -> Iterator[tuple[str, str]]:
    """Yields (domain, text); `units` are the local files to read, unused for generated stories.

    Raises ValueError for a bad record, for a label that no domain has, and for a unit that changed since its scan.
    """
    domain_of = recipe.domain_of
    for label, text in story_documents(recipe.source) if isinstance(recipe.source, StoriesSource) else _read(units):
        if label not in domain_of:
            raise invalid("label", label, "one of " + ", ".join(sorted(domain_of)))
        yield domain_of[label], text


def _read(units: tuple[Unit, ...]) -> Iterator[tuple[str, str]]:
    for unit in units:
        digest = Digest()
        for label, text in read_unit(unit):
            digest.add(label, text)
            yield label, text
        if unit.digest and digest.hexdigest() != unit.digest:
            name = unit.label or unit.paths[0]
            raise ValueError(f"{name}: changed since the corpus was read for its recipe; resolve the corpus again")
