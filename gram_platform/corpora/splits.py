"""Decides which documents are validation, by a keyed hash of the text: equal texts are in one split.

Case and white space do not count. Domains may hold out different shares, since a small domain needs a larger one; a
text of several domains is validation in all of them if one holds it out.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from gram_platform.corpora.recipe import CorpusRecipe

KEY_RANGE = 2**64
COUNTS = ("documents", "repeated_documents", "texts_in_several_domains", "texts_in_both_splits")
TAG_BITS = 16  # bits of a logged key that hold domain and split; the other 48 identify the text
ASCII_FOLD = bytes(ord(" " if chr(byte).isspace() else chr(byte).lower()) for byte in range(128)) + bytes(128)
COUNT_AT_ONCE = 1 << 18  # logged keys counted together, plus the rest of the last text's keys


def text_key(text: str, split_seed: int) -> int:
    """Hashes a text to 64 bits; texts that differ only in case and white space have equal keys."""
    digest = hashlib.blake2b(folded(text), digest_size=8, key=split_seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little")


def folded(text: str) -> bytes:
    """Folds case and white space: `" ".join(text.split()).casefold()`, in UTF-8."""
    if not text.isascii():
        return " ".join(text.split()).casefold().encode()
    raw = text.encode().translate(ASCII_FOLD).strip(b" ")  # the same for ASCII, several times faster
    while b"  " in raw:
        raw = raw.replace(b"  ", b" ")
    return raw


class Splitter:
    """Decides the split of a document by its domain and key."""

    def __init__(
        self,
        recipe: CorpusRecipe,
        documents: Callable[[], Iterable[tuple[str, str]]],
        held_out: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Reads `documents()`, (domain, text) pairs, only if domains hold out different shares.

        Texts of `held_out` are validation in every domain.
        """
        self._seed = recipe.split_seed
        self._threshold = {d: int(recipe.validation_share(d) * KEY_RANGE) for d in recipe.domains}
        self._validation_keys = frozenset(self.key(text) for _, text in held_out)
        if len(set(self._threshold.values())) > 1:
            self._validation_keys |= self._held_out_elsewhere(documents())

    def key(self, text: str) -> int:
        return text_key(text, self._seed)

    def split(self, domain: str, key: int) -> str:
        return "validation" if key < self._threshold[domain] or key in self._validation_keys else "train"

    def _held_out_elsewhere(self, documents: Iterable[tuple[str, str]]) -> frozenset[int]:
        """Finds keys that one domain holds out and a domain with a smaller share has too (9 bytes a candidate)."""
        held, kept, highest = array("Q"), array("Q"), max(self._threshold.values())
        for domain, text in documents:
            key = self.key(text)
            if key < highest:
                (held if key < self._threshold[domain] else kept).append(key)
        return frozenset(np.intersect1d(np.asarray(held), np.asarray(kept)).tolist())


class DuplicateLog:
    """Counts equal texts: logs keys to disk, 8 bytes a document, and sorts them once at the end."""

    def __init__(self, path: Path, domains: tuple[str, ...]) -> None:
        self._path, self._tags = path, {domain: 2 * index for index, domain in enumerate(domains)}
        self._pending: array = array("Q")
        path.write_bytes(b"")

    def add(self, domain: str, split: str, key: int) -> None:
        tag = self._tags[domain] + (split == "validation")
        self._pending.append(key >> TAG_BITS << TAG_BITS | tag)
        if len(self._pending) >= 1 << 16:
            self._flush()

    def _flush(self) -> None:
        with self._path.open("ab") as handle:
            self._pending.tofile(handle)
        self._pending = array("Q")

    def count(self) -> dict[str, int]:
        """Returns `COUNTS`; a document counts as repeated after the first one of its text."""
        self._flush()
        if self._path.stat().st_size == 0:
            return dict.fromkeys(COUNTS, 0)
        tagged = np.memmap(self._path, dtype=np.uint64, mode="r+")
        tagged.sort()
        counts = dict.fromkeys(COUNTS, 0)
        first = 0
        while first < len(tagged):
            last_text = tagged[min(first + COUNT_AT_ONCE, len(tagged)) - 1] | np.uint64((1 << TAG_BITS) - 1)
            stop = int(np.searchsorted(tagged, last_text, side="right"))
            for name, number in _counted(tagged[first:stop]).items():
                counts[name] += number
            first = stop
        del tagged
        self._path.unlink()
        return counts


def _counted(tagged: np.ndarray) -> dict[str, int]:
    """Counts sorted tagged keys, which include all keys of each of their texts."""
    keys, tags = tagged >> np.uint64(TAG_BITS), (tagged & np.uint64((1 << TAG_BITS) - 1)).astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    domains, is_validation = tags >> 1, tags & 1
    spread = [np.maximum.reduceat(x, starts) > np.minimum.reduceat(x, starts) for x in (domains, is_validation)]
    found = (len(keys), len(keys) - len(starts), int(spread[0].sum()), int(spread[1].sum()))
    return dict(zip(COUNTS, found, strict=True))
