"""Decides which documents are validation, by a keyed hash, so that equal texts are in one split.

Case and white space do not count. A small domain holds out a larger share than others. A text of
several domains is validation in all of them if one holds it out.
"""

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gram_platform.corpora.packed import SPLITS
from gram_platform.corpora.recipe import CorpusRecipe

KEY_RANGE = 2**64
COUNTS = ("documents", "repeated_documents", "texts_in_several_domains", "texts_in_both_splits")
# The bits of a logged key for domain and split; the other 48 identify the text.
TAG_MASK = np.uint64(0xFFFF)
ASCII_FOLD = bytes(
    ord(" " if chr(byte).isspace() else chr(byte).lower()) for byte in range(128)
) + bytes(128)
# Logged keys that are counted at once, besides other keys of the last text.
COUNT_AT_ONCE = 1 << 18


def text_key(text: str, split_seed: int) -> int:
    """Hashes a text, without its case and white space, to 64 bits."""
    digest = hashlib.blake2b(
        folded(text), digest_size=8, key=split_seed.to_bytes(8, "little")
    ).digest()
    return int.from_bytes(digest, "little")


def folded(text: str) -> bytes:
    """Folds case and white space: `" ".join(text.split()).casefold()`, in UTF-8."""
    if not text.isascii():
        return " ".join(text.split()).casefold().encode()
    # The same for ASCII, several times faster.
    raw = text.encode().translate(ASCII_FOLD).strip(b" ")
    while b"  " in raw:
        raw = raw.replace(b"  ", b" ")
    return raw


def thresholds(recipe: CorpusRecipe) -> dict[str, int]:
    """Returns the key below which a document is validation, by domain."""
    return {domain: int(recipe.validation_share(domain) * KEY_RANGE) for domain in recipe.pools}


def shares_differ(recipe: CorpusRecipe) -> bool:
    """Tells whether every document's key is needed before any split is known."""
    return len(set(thresholds(recipe).values())) > 1


class Candidates(NamedTuple):
    """The keys (uint64) in a part that may decide the split of texts in other domains."""

    # Of held-out text.
    held_out: np.ndarray
    # Below their own domain's threshold.
    below: np.ndarray
    # Below another domain's threshold only.
    above: np.ndarray


def candidates(
    recipe: CorpusRecipe, documents: Iterable[tuple[str, str]], held_out: bool = False
) -> Candidates:
    """Finds the candidates among (domain, text) pairs."""
    limits = thresholds(recipe)
    highest, found = max(limits.values()), Candidates(array("Q"), array("Q"), array("Q"))
    for domain, text in documents:
        key = text_key(text, recipe.split_seed)
        if held_out:
            found.held_out.append(key)
        elif key < highest:
            (found.below if key < limits[domain] else found.above).append(key)
    return Candidates(*(np.array(keys, np.uint64) for keys in found))


@dataclass(frozen=True)
class Splitter:
    """Decides the split of a document by its domain and key."""

    seed: int
    thresholds: Mapping[str, int]
    # Sorted keys of texts that are validation in every domain.
    validation_keys: np.ndarray

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.validation_keys.tobytes()).hexdigest()

    def key(self, text: str) -> int:
        return text_key(text, self.seed)

    def split(self, domain: str, key: int) -> str:
        return SPLITS[int(self.are_validation([domain], np.array([key], np.uint64))[0])]

    def are_validation(self, domains: Sequence[str], keys: np.ndarray) -> np.ndarray:
        """Tells which documents are validation: bool, in the shape of `keys` (uint64)."""
        limits = np.array([self.thresholds[domain] for domain in domains], np.uint64)
        if not len(self.validation_keys):
            return keys < limits
        places = np.searchsorted(self.validation_keys, keys).clip(max=len(self.validation_keys) - 1)
        return (keys < limits) | (self.validation_keys[places] == keys)


def splitter_of(recipe: CorpusRecipe, found: Sequence[Candidates] = ()) -> Splitter:
    """Makes a corpus's splitter from the candidates of all parts.

    It needs none if all domains hold out one share and none has a held-out test split.
    """
    of_all = joined(found)
    everywhere = np.union1d(of_all.held_out, np.intersect1d(of_all.below, of_all.above))
    return Splitter(recipe.split_seed, thresholds(recipe), everywhere)


def joined(found: Sequence[Candidates]) -> Candidates:
    empty = np.empty(0, np.uint64)
    return Candidates(
        *(np.concatenate([empty, *(part[kind] for part in found)]) for kind in range(3))
    )


def tagged(
    keys: np.ndarray, domain_indices: Sequence[int], are_validation: np.ndarray
) -> np.ndarray:
    """Replaces the lowest bits of keys (uint64) by domain and split."""
    tags = 2 * np.asarray(domain_indices, np.uint64) + are_validation.astype(np.uint64)
    return keys & ~TAG_MASK | tags


def count_duplicates(path: Path) -> dict[str, int]:
    """Counts `COUNTS` in a file of tagged keys, which it sorts and removes.

    A document is repeated if an earlier one has its text.
    """
    counts = dict.fromkeys(COUNTS, 0)
    if path.stat().st_size:
        keys = np.memmap(path, dtype=np.uint64, mode="r+")
        keys.sort()
        first = 0
        while first < len(keys):
            last_text = keys[min(first + COUNT_AT_ONCE, len(keys)) - 1] | TAG_MASK
            stop = int(np.searchsorted(keys, last_text, side="right"))
            for name, number in _counted(keys[first:stop]).items():
                counts[name] += number
            first = stop
        del keys
    path.unlink()
    return counts


def _counted(tagged: np.ndarray) -> dict[str, int]:
    """Counts sorted tagged keys, which include all keys of each of their texts."""
    keys, tags = tagged & ~TAG_MASK, (tagged & TAG_MASK).astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    spread = [
        int((np.maximum.reduceat(x, starts) > np.minimum.reduceat(x, starts)).sum())
        for x in (tags >> 1, tags & 1)
    ]
    return dict(zip(COUNTS, (len(keys), len(keys) - len(starts), *spread), strict=True))
