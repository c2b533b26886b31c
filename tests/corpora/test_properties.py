"""Random corpora by seed: every token packed once and in order, no text in both splits, tokenizers
lossless."""

import json
import random
from collections import defaultdict
from itertools import chain

import numpy as np
import pytest

from gram_platform.corpora import Packing, parts, prepare, resolve, sources
from gram_platform.corpora.packed import SPLITS
from gram_platform.corpora.records import documents
from gram_platform.corpora.splits import candidates, fold, splitter_of
from gram_platform.corpora.tokenizer import (
    END_OF_TEXT,
    decode,
    end_of_text_id,
    load_tokenizer,
    token_texts,
    train_tokenizer,
)

SEEDS = range(8)
LETTERS = "abcde  \n\tÄß\u0130\u00a0\u2028病\U0001f600\u0301\x00\x1b\u202e\ufeff\ufffd"
SPECIAL = (END_OF_TEXT, "</s>", "<|endoftext", "\u00b6", "\r\n")


def random_text(draw: random.Random, longest: int) -> str:
    """Text of few letters, some of them odd, with names of special tokens."""
    parts = [
        draw.choice(SPECIAL) if draw.random() < 0.05 else draw.choice(LETTERS)
        for _ in range(draw.randint(1, longest))
    ]
    return "x" + "".join(parts)


def random_records(draw: random.Random, labels: list[str]) -> list[dict[str, str]]:
    """Documents of every label, some of them repeated, under another label too, in other case and
    white space."""
    longest = draw.choice((8, 200))
    texts = [random_text(draw, longest) for _ in range(draw.randint(60, 120))]
    texts += [
        draw.choice((str.upper, str.title, lambda text: f" {text}\n"))(draw.choice(texts))
        for _ in range(40)
    ]
    # These keep every domain from being too small.
    texts += [f"{label} {number} " * 20 for label in labels for number in range(30)]
    return [{"text": text, "label": draw.choice(labels)} for text in texts]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_token_of_every_document_is_packed_once_in_order_in_its_domain(
    seed, tmp_path, monkeypatch
):
    draw = random.Random(seed)
    labels = ["core", "a label", "病"][: draw.randint(2, 3)]
    records = random_records(draw, labels)
    monkeypatch.setattr(parts, "BATCH_CHARS", draw.choice((1, 50, 10**6)))
    monkeypatch.setattr(parts, "BLOCK_BYTES", draw.choice((8, 800, 10**6)))  # whole tokens and keys
    monkeypatch.setattr(sources, "PIECE_BYTES", draw.choice((500, 2000, 10**6)))
    monkeypatch.setattr(sources, "BLOCK_BYTES", draw.choice((10, 300, 10**6)))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shape = {
        "seq_len": draw.randint(1, 40),
        "vocab_size": draw.choice((257, 300)),
    }
    recipe = resolve(
        tmp_path / "a.jsonl",
        Packing(core_label="core", **shape, validation_sequences=draw.choice((1, 20))),
    )
    packed = prepare(recipe, tmp_path / "data")
    tokenizer = load_tokenizer(packed.tokenizer_path)
    end, splitter = (
        end_of_text_id(tokenizer),
        splitter_of(recipe, [candidates(recipe, documents(recipe, recipe.units))]),
    )
    expected = {(split, domain): [] for split in SPLITS for domain in packed.domains}
    splits_of = defaultdict(set)
    for record in records:
        key = np.uint64([splitter.key(record["text"])])
        split = SPLITS[int(splitter.are_validation([record["label"]], key)[0])]
        splits_of[fold(record["text"])].add(split)
        expected[split, record["label"]].append([*tokenizer.encode(record["text"]).ids, end])
    assert all(len(splits) == 1 for splits in splits_of.values()), "a text in both splits"
    for (split, domain), of_documents in expected.items():
        tokens, rows = list(chain(*of_documents)), packed.sequences(split, domain)
        found, counts = _stream(rows), packed.manifest["domains"][domain][split]
        assert (counts["num_documents"], counts["num_tokens"]) == (len(of_documents), len(tokens))
        assert found == tokens[: len(found)]
        # Only a rest that fills no row is left out.
        assert len(tokens) - len(found) < recipe.seq_len


def _stream(rows: np.ndarray) -> list[int]:
    """The tokens of rows [N, seq_len + 1], each once."""
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    return [*rows[:1, 0].tolist(), *rows[:, 1:].reshape(-1).tolist()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tokenizer_gives_every_text_back(seed):
    draw = random.Random(seed)
    texts = [random_text(draw, 300) for _ in range(60)]
    tokenizer = train_tokenizer(texts[:30], draw.choice((257, 300, 600)))
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert end_of_text_id(tokenizer) not in ids
        assert "".join(token_texts(tokenizer, ids[:80])) == decode(tokenizer, ids[:80])
