"""Assigns documents to splits by a keyed hash, so that equal texts are in the same split.

Texts that differ only in case or white space are considered equal. A text in the validation split
of one domain is in the validation split of every domain that has the text.
"""

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gram_platform.corpora.recipe import CorpusRecipe

KEY_RANGE = 2**64
COUNTS = ("documents", "repeated_documents", "texts_in_several_domains", "texts_in_both_splits")
# The bits of a logged key for domain and split. The other 48 bits identify the text.
TAG_MASK = np.uint64(0xFFFF)
ASCII_FOLD = bytes(
    ord(" " if chr(byte).isspace() else chr(byte).lower()) for byte in range(128)
) + bytes(128)
# The number of logged keys that are counted at once, plus further keys of the last text.
COUNT_AT_ONCE = 1 << 18


def text_key(text: str, split_seed: int) -> int:
    """Hashes a text to 64 bits, ignoring case and the amount of white space."""
    digest = hashlib.blake2b(
        fold(text), digest_size=8, key=split_seed.to_bytes(8, "little")
    ).digest()
    return int.from_bytes(digest, "little")


def fold(text: str) -> bytes:
    """Folds case and white space. Returns `" ".join(text.split()).casefold().encode()`."""
    if not text.isascii():
        return " ".join(text.split()).casefold().encode()
    # For ASCII this has the same result and is several times faster.
    raw = text.encode().translate(ASCII_FOLD).strip(b" ")
    while b"  " in raw:
        raw = raw.replace(b"  ", b" ")
    return raw


def thresholds(recipe: CorpusRecipe) -> dict[str, int]:
    """Returns each domain's threshold.

    A document is in the validation split if its key is below its domain's threshold.
    """
    return {domain: int(recipe.validation_share(domain) * KEY_RANGE) for domain in recipe.pools}


class Candidates(NamedTuple):
    """The keys (uint64) of texts that could get different splits in different domains."""

    # Keys of held-out text.
    held_out: np.ndarray
    # Keys below their own domain's threshold.
    below: np.ndarray
    # Keys that are only below another domain's threshold.
    above: np.ndarray


def candidates(
    recipe: CorpusRecipe, documents: Iterable[tuple[str, str]], held_out: bool = False
) -> Candidates:
    """Returns the `Candidates` among `documents`, which are (domain, text) pairs."""
    limits = thresholds(recipe)
    highest, keys = max(limits.values()), Candidates(array("Q"), array("Q"), array("Q"))
    for domain, text in documents:
        key = text_key(text, recipe.split_seed)
        if held_out:
            keys.held_out.append(key)
        elif key < highest:
            (keys.below if key < limits[domain] else keys.above).append(key)
    return Candidates(*(np.array(kind, np.uint64) for kind in keys))


@dataclass(frozen=True)
class Splitter:
    """Determines a document's split from its domain and key."""

    seed: int
    thresholds: Mapping[str, int]
    # Sorted keys of texts that are validation in every domain.
    validation_keys: np.ndarray

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.validation_keys.tobytes()).hexdigest()

    def key(self, text: str) -> int:
        return text_key(text, self.seed)

    def are_validation(self, domains: Sequence[str], keys: np.ndarray) -> np.ndarray:
        """Returns True for each key (uint64) whose document is in the validation split."""
        limits = np.array([self.thresholds[domain] for domain in domains], np.uint64)
        if not len(self.validation_keys):
            return keys < limits
        nearest = np.searchsorted(self.validation_keys, keys)
        nearest = nearest.clip(max=len(self.validation_keys) - 1)
        return (keys < limits) | (self.validation_keys[nearest] == keys)


def splitter_of(recipe: CorpusRecipe, parts: Sequence[Candidates] = ()) -> Splitter:
    """Creates a corpus's splitter from the candidates of all parts.

    `parts` can be () if all domains have the same validation share and no text is held out.
    """
    keys = join_candidates(parts)
    everywhere = np.union1d(keys.held_out, np.intersect1d(keys.below, keys.above))
    return Splitter(recipe.split_seed, thresholds(recipe), everywhere)


def join_candidates(parts: Sequence[Candidates]) -> Candidates:
    empty = np.empty(0, np.uint64)
    return Candidates(
        *(np.concatenate([empty, *(part[kind] for part in parts)]) for kind in range(3))
    )


def tag_keys(
    keys: np.ndarray, domain_indices: Sequence[int], are_validation: np.ndarray
) -> np.ndarray:
    """Stores each document's domain and split in the lowest bits of its key (uint64)."""
    tags = 2 * np.asarray(domain_indices, np.uint64) + are_validation.astype(np.uint64)
    return keys & ~TAG_MASK | tags


def count_duplicates(path: Path) -> dict[str, int]:
    """Counts documents and duplicates in a file of tagged keys. Deletes the file.

    The result has the names in `COUNTS`. A document counts as repeated if an earlier document has
    the same text.
    """
    counts = dict.fromkeys(COUNTS, 0)
    if path.stat().st_size:
        keys = np.memmap(path, dtype=np.uint64, mode="r+")
        keys.sort()
        first = 0
        while first < len(keys):
            last_text = keys[min(first + COUNT_AT_ONCE, len(keys)) - 1] | TAG_MASK
            stop = int(np.searchsorted(keys, last_text, side="right"))
            for name, number in _count(keys[first:stop]).items():
                counts[name] += number
            first = stop
        del keys
    path.unlink()
    return counts


def _count(tagged: np.ndarray) -> dict[str, int]:
    keys, tags = tagged & ~TAG_MASK, (tagged & TAG_MASK).astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    spread = [
        int((np.maximum.reduceat(x, starts) > np.minimum.reduceat(x, starts)).sum())
        for x in (tags >> 1, tags & 1)
    ]
    return dict(zip(COUNTS, (len(keys), len(keys) - len(starts), *spread), strict=True))
