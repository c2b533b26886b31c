"""Decides which documents are validation, by a keyed hash: equal texts are in one split.

Case and white space do not count. Domains may hold out different shares, since a small domain needs
a larger one; a text of several domains is validation in all of them if one holds it out.
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
# Bits of a logged key that hold domain and split; the other 48 identify the text.
TAG_BITS = 16
ASCII_FOLD = bytes(
    ord(" " if chr(byte).isspace() else chr(byte).lower()) for byte in range(128)
) + bytes(128)
# Logged keys counted together, plus the rest of the last text's keys.
COUNT_AT_ONCE = 1 << 18


def text_key(text: str, split_seed: int) -> int:
    """Hashes a text to 64 bits; texts that differ only in case and white space have equal keys."""
    digest = hashlib.blake2b(
        folded(text), digest_size=8, key=split_seed.to_bytes(8, "little")
    ).digest()
    return int.from_bytes(digest, "little")


def folded(text: str) -> bytes:
    """Folds case and white space: `" ".join(text.split()).casefold()`, in UTF-8."""
    if not text.isascii():
        return " ".join(text.split()).casefold().encode()
    # This does the same for ASCII, several times faster.
    raw = text.encode().translate(ASCII_FOLD).strip(b" ")
    while b"  " in raw:
        raw = raw.replace(b"  ", b" ")
    return raw


def thresholds(recipe: CorpusRecipe) -> dict[str, int]:
    """Returns the key below which a document is validation, by domain."""
    return {domain: int(recipe.validation_share(domain) * KEY_RANGE) for domain in recipe.domains}


def shares_differ(recipe: CorpusRecipe) -> bool:
    """Tells whether every document's key is needed before any split is known."""
    return len(set(thresholds(recipe).values())) > 1


class Candidates(NamedTuple):
    """Keys of a part that may decide the split of texts in other domains, uint64 arrays."""

    # Keys of texts that are validation in every domain.
    held_out: np.ndarray
    # Keys below their domain's threshold.
    below: np.ndarray
    # Keys not below it, but below another domain's.
    above: np.ndarray


def candidates(
    recipe: CorpusRecipe, documents: Iterable[tuple[str, str]], held_out: bool = False
) -> Candidates:
    """Finds the candidates among (domain, text) pairs, which are all validation if `held_out`."""
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
    """Decides the split of a document by its domain and key, given the candidates of all parts.

    `thresholds`: by domain, as the function. `validation_keys`: sorted, of texts that are
    validation in every domain.
    """

    seed: int
    thresholds: Mapping[str, int]
    validation_keys: np.ndarray

    @property
    def digest(self) -> str:
        """Identifies the candidates."""
        return hashlib.sha256(self.validation_keys.tobytes()).hexdigest()

    def key(self, text: str) -> int:
        return text_key(text, self.seed)

    def split(self, domain: str, key: int) -> str:
        return SPLITS[int(self.are_validation([domain], np.array([key], np.uint64))[0])]

    def are_validation(self, domains: Sequence[str], keys: np.ndarray) -> np.ndarray:
        """Tells which documents are validation, bool [num_documents].

        `keys`: uint64 of that shape.
        """
        limits = np.array([self.thresholds[domain] for domain in domains], np.uint64)
        if not len(self.validation_keys):
            return keys < limits
        places = np.searchsorted(self.validation_keys, keys).clip(max=len(self.validation_keys) - 1)
        return (keys < limits) | (self.validation_keys[places] == keys)


def splitter_of(recipe: CorpusRecipe, found: Sequence[Candidates] = ()) -> Splitter:
    """Returns the splitter of a corpus.

    Needs no `found` where all domains hold out the same share and none has a held-out test split.
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
    """Replaces the lowest bits of keys (uint64) by domain and split, for `count_duplicates`."""
    tags = 2 * np.asarray(domain_indices, np.uint64) + are_validation.astype(np.uint64)
    return keys >> np.uint64(TAG_BITS) << np.uint64(TAG_BITS) | tags


def count_duplicates(path: Path) -> dict[str, int]:
    """Counts equal texts in a file of tagged keys, 8 bytes a document, which it sorts and removes:
    `COUNTS`.

    A document counts as repeated after the first one of its text.
    """
    counts = dict.fromkeys(COUNTS, 0)
    if path.stat().st_size:
        keys = np.memmap(path, dtype=np.uint64, mode="r+")
        keys.sort()
        first = 0
        while first < len(keys):
            last_text = keys[min(first + COUNT_AT_ONCE, len(keys)) - 1] | np.uint64(
                (1 << TAG_BITS) - 1
            )
            stop = int(np.searchsorted(keys, last_text, side="right"))
            for name, number in _counted(keys[first:stop]).items():
                counts[name] += number
            first = stop
        del keys
    path.unlink()
    return counts


def _counted(tagged: np.ndarray) -> dict[str, int]:
    """Counts sorted tagged keys, which include all keys of each of their texts."""
    keys, tags = (
        tagged >> np.uint64(TAG_BITS),
        (tagged & np.uint64((1 << TAG_BITS) - 1)).astype(np.int64),
    )
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    domains, is_validation = tags >> 1, tags & 1
    spread = [
        np.maximum.reduceat(x, starts) > np.minimum.reduceat(x, starts)
        for x in (domains, is_validation)
    ]
    found = (len(keys), len(keys) - len(starts), int(spread[0].sum()), int(spread[1].sum()))
    return dict(zip(COUNTS, found, strict=True))
