"""What a tokenizer is trained on: whole documents by their hash, or passages where documents are
long."""

import random
from dataclasses import replace

import numpy as np
import pytest

from gram_platform.corpora import Packing, pack, prepare, resolve
from gram_platform.corpora.recipe import TokenizerRecipe
from gram_platform.corpora.splits import candidates, fold, splitter_of
from gram_platform.corpora.tokenizer import load_tokenizer
from tests.refused import refused
from tests.tiny import documents_in

SAMPLE_BYTES = 40_000


@pytest.fixture
def sampled(monkeypatch):
    """The texts that tokenizers were trained on, filled by `prepare`."""
    found, train = [], pack.train_tokenizer

    def spy(texts, vocab_size):
        found.extend(texts)
        return train(found, vocab_size)

    monkeypatch.setattr(pack, "train_tokenizer", spy)
    return found


def long_records(seed: int, num_chars: int, num: int) -> list[dict[str, str]]:
    """`num` documents of each of two labels, every one of about `num_chars` and of words of its
    own."""
    draw = random.Random(seed)
    words = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9)))
        for _ in range(500)
    ]
    texts = [
        " ".join(draw.choices(words, k=num_chars // 6)) + f" {index}" for index in range(2 * num)
    ]
    return [
        {"text": text, "label": ("core", "virology")[index % 2]} for index, text in enumerate(texts)
    ]


def test_long_documents_are_sampled_in_passages(tmp_path, settings, jsonl, sampled):
    """A sample of about one document is made of all training documents, in proportion.

    Each is in it once at least.
    """
    records = long_records(0, SAMPLE_BYTES, 20)
    recipe = resolve(
        jsonl(tmp_path / "a.jsonl", records),
        Packing(**{**settings, "vocab_size": 1024, "sample_bytes": SAMPLE_BYTES}),
    )
    assert recipe.tokenizer.kind == "bpe-passages"
    packed = prepare(recipe, tmp_path / "data")
    assert load_tokenizer(packed.tokenizer_path).get_vocab_size() == 1024
    num_train = sum(documents_in(packed, "train", domain) for domain in packed.domains)
    assert sum(map(len, sampled)) == pytest.approx(SAMPLE_BYTES * num_train / len(records), rel=0.1)
    assert max(map(len, sampled)) == SAMPLE_BYTES // 64
    held = [sum(passage in record["text"] for passage in sampled) for record in records]
    assert sum(number > 0 for number in held) == num_train
    assert max(held) <= 3


def test_short_documents_are_sampled_whole_and_by_the_old_rule(
    tmp_path, corpus, records, settings, sampled
):
    """The sample, and with it the tokens, of a `data_id` from before there were passages."""
    recipe = resolve(corpus, Packing(**{**settings, "sample_bytes": 25_000}))
    assert (recipe.tokenizer.kind, recipe.data_id) == ("bpe", "cc88c56dd9c2")
    prepare(recipe, tmp_path / "data")
    limit = 25_000 / sum(len(r["text"].encode()) for r in records) * 2**64
    splitter = splitter_of(recipe, [candidates(recipe, [(r["label"], r["text"]) for r in records])])
    keyed = [(r["text"], splitter.key(r["text"])) for r in records]
    keys = np.array([key for _, key in keyed], np.uint64)
    are_validation = splitter.are_validation([r["label"] for r in records], keys)
    train = [pair for pair, held_out in zip(keyed, are_validation, strict=True) if not held_out]
    assert sampled == [text for text, key in train if (key << 32 | key >> 32) % 2**64 < limit]
    assert 0 < len(sampled) < len(train)


def test_passages_are_for_samples_that_are_a_part_of_long_documents(tmp_path, settings, jsonl):
    records = long_records(0, 2_000, 100)
    path, length = (
        jsonl(tmp_path / "a.jsonl", records),
        max(len(record["text"]) for record in records),
    )

    def kind(sample_bytes: int) -> str:
        return resolve(path, Packing(**{**settings, "sample_bytes": sample_bytes})).tokenizer.kind

    assert (kind(64 * length), kind(64 * length - 1)) == ("bpe", "bpe-passages")
    jsonl(path, records[:20])
    num_bytes = sum(len(record["text"]) for record in records[:20])
    # The whole corpus is no sample.
    assert (kind(num_bytes), kind(num_bytes - 1)) == ("bpe", "bpe-passages")


def test_a_core_tokenizer_has_no_word_of_another_domain(tmp_path, records, settings, jsonl):
    """Without the flag a word that fills the removed domain is one piece: the vocabulary names what
    was removed."""
    word = "picornavirus"
    records = [
        r | {"text": f"{r['text']} {word if r['label'] == 'virology' else 'river'}" * 3}
        for r in records
    ]
    path = jsonl(tmp_path / "a.jsonl", records)
    tokenizers, ids = {}, set()
    for core_tokenizer in (False, True):
        recipe = resolve(
            path, Packing(**{**settings, "vocab_size": 600}, core_tokenizer=core_tokenizer)
        )
        tokenizers[core_tokenizer] = load_tokenizer(
            prepare(recipe, tmp_path / "data").tokenizer_path
        )
        ids.add(recipe.data_id)
    assert resolve(path, Packing(**{**settings, "vocab_size": 600})).data_id in ids
    assert len(ids) == 2
    assert len(tokenizers[False].encode(f" {word}").ids) == 1
    assert len(tokenizers[True].encode(f" {word}").ids) > 4
    assert len(tokenizers[True].encode(" river").ids) == 1
    assert not any(
        "virology" in piece or "picorna" in piece for piece in tokenizers[True].get_vocab()
    )


def test_a_core_tokenizer_takes_its_whole_sample_from_core(tmp_path, settings, jsonl, sampled):
    records = long_records(0, 2000, 60)
    num_bytes = sum(len(r["text"].encode()) for r in records if r["label"] == "core")
    half = {**settings, "sample_bytes": num_bytes // 2, "core_tokenizer": True}
    recipe = resolve(jsonl(tmp_path / "a.jsonl", records), Packing(**half))
    prepare(recipe, tmp_path / "data")
    of_core = {r["text"] for r in records if r["label"] == "core"}
    assert all(any(part in text for text in of_core) for part in sampled)
    assert sum(map(len, sampled)) == pytest.approx(num_bytes / 2, rel=0.3)
    whole = resolve(tmp_path / "a.jsonl", Packing(**{**half, "sample_bytes": num_bytes}))
    assert whole.tokenizer.kind == "bpe"  # all of core is no part of a sample


def test_a_tokenizer_from_elsewhere_cannot_be_trained_on_core(tmp_path, corpus, settings):
    prepare(resolve(corpus, Packing(**settings)), tmp_path)
    given = str(next(tmp_path.glob("*/tokenizer.json")))
    with refused("core_tokenizer", True):
        resolve(corpus, Packing(**settings, tokenizer=given, core_tokenizer=True))


def test_no_tokenizer_is_trained_on_nothing(tmp_path, corpus, settings):
    recipe = replace(resolve(corpus, Packing(**settings)), tokenizer=TokenizerRecipe("bpe", "", 1))
    with refused("sample_bytes", 1):
        prepare(recipe, tmp_path / "data")


def test_texts_are_folded_alike_with_and_without_other_letters():
    draw = random.Random(0)
    for letters in (range(128), [*b" \t\n\r\x0b\x0c\x1c\x1f Ab"], [*range(300), 0x2003, 0x1E9E]):
        for _ in range(200):
            text = "".join(chr(draw.choice(letters)) for _ in range(draw.randrange(60)))
            assert fold(text) == " ".join(text.split()).casefold().encode()
