"""Reads the values of flags that have a form of their own."""

import os
from dataclasses import dataclass
from pathlib import Path

from gram_platform.config.identity import absolute_place, invalid
from gram_platform.corpora import catalog_names
from gram_platform.planner import AUTO, Budget
from gram_platform.studies.definition import Preset


@dataclass(frozen=True)
class Choice:
    """Which runs of a preset are wanted, and on which text; the flags of the same names say what
    each field means."""

    sizes: tuple[str, ...]
    seeds: int
    first_seed: int
    retain: tuple[str, ...]
    corpus: str
    core_label: str
    core_tokenizer: bool
    # Where fetched text is kept.
    storage: str
    instructions: str = ""


@dataclass(frozen=True)
class Limits:
    """What a submission may cost: over all submissions, and predicted without the user's word."""

    budget: Budget
    # In dollars.
    confirm_above: float
    yes: bool


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the items of a list that blanks or commas separate."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def tracking_place(uri: str, storage: str) -> str:
    """Returns MLflow's URI, by default SQLite in the storage; ValueError for another form.

    A path is made absolute.
    """
    from gram_platform.tracking import default_tracking_uri
    from gram_platform.tracking.connection import require_tracking_uri
    from gram_platform.tracking.database import with_absolute_path

    if not uri:
        return default_tracking_uri(storage)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return with_absolute_path("tracking_uri", uri)
    require_tracking_uri(uri)
    return uri


def corpus_place(corpus: str, preset: Preset) -> str:
    """Makes a path absolute, and keeps a catalog name; a path has a separator or exists."""
    if not corpus and preset.corpus in catalog_names():
        return preset.corpus
    corpus = corpus or preset.corpus
    is_place = os.sep in corpus or corpus.startswith((".", "~")) or Path(corpus).exists()
    return absolute_place("corpus", corpus) if is_place else corpus


def read_ranks(texts: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Returns the fewest and the most ranks of each size of --num-workers, under "" those of all
    others.

    ValueError for another form.
    """
    found: dict[str, tuple[int, int]] = {}
    for text in split_list(texts):
        size, _, value = text.rpartition("=")
        if size in found:
            raise invalid("num_workers", " ".join(texts), f"one number for {size or 'all sizes'}")
        fewest, is_range, most = value.partition("..")
        numbers = [
            int(n) if n.isascii() and n.isdigit() else 0
            for n in ((fewest, most) if is_range else (fewest,))
        ]
        if value == "auto":
            numbers = [AUTO]
        elif min(numbers) < 1 + bool(is_range) or numbers != sorted(numbers):
            expected = (
                "a number of ranks from 1 up, a range as 4..8 from 2 up, or auto, for one size as"
                " size=number"
            )
            raise invalid("num_workers", text, expected)
        found[size] = numbers[0], numbers[-1]
    return found
