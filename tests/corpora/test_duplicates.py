"""Equal texts are counted a part at a time, whatever the parts are."""

import random
import tracemalloc
from collections import defaultdict

import numpy as np
import pytest

from gram_platform.corpora import splits
from gram_platform.corpora.splits import COUNTS, count_duplicates, tag_keys

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
DOMAINS = ("core", "lisp", "virology")


@pytest.mark.parametrize("at_once", [1, 7, 1 << 18])
def test_counts(tmp_path, monkeypatch, at_once):
    """Few texts, many of them equal, against sets.

    Texts end within parts, at their borders, and fill several.
    """
    monkeypatch.setattr(splits, "COUNT_AT_ONCE", at_once)
    draw = random.Random(0)
    records = [
        (draw.choice(DOMAINS), draw.choice(("train", "validation")), draw.randrange(60))
        for _ in range(200)
    ]
    records += [("core", "train", 77)] * 50 + [("lisp", "train", 200), ("core", "train", 200)]
    found = defaultdict(set)
    for domain, split, text in records:
        found[text].add((domain, split))
    domains, splits_of, texts = zip(*records, strict=True)
    keys = np.array(texts, np.uint64) * GOLDEN
    are_validation = np.array([split == "validation" for split in splits_of])
    tag_keys(keys, [DOMAINS.index(domain) for domain in domains], are_validation).tofile(
        tmp_path / "keys"
    )
    several = sum(len({domain for domain, _ in places}) > 1 for places in found.values())
    both = sum(len({split for _, split in places}) > 1 for places in found.values())
    expected = (len(records), len(records) - len(found), several, both)
    assert count_duplicates(tmp_path / "keys") == dict(zip(COUNTS, expected, strict=True))
    assert not (tmp_path / "keys").exists()


def test_nothing_is_counted_where_nothing_was_logged(tmp_path):
    (tmp_path / "keys").touch()
    assert count_duplicates(tmp_path / "keys") == dict.fromkeys(COUNTS, 0)


def test_memory_does_not_grow_with_the_documents(tmp_path):
    peaks = []
    for num_documents in (300_000, 900_000):
        keys = np.arange(num_documents, dtype=np.uint64) * GOLDEN
        none = np.zeros(num_documents, bool)
        tag_keys(keys, none, none).tofile(tmp_path / "keys")
        tracemalloc.start()
        assert count_duplicates(tmp_path / "keys")["documents"] == num_documents
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
