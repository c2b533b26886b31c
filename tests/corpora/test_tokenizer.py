"""Tokenizers: their training on words of any length, interrupts, and tokenizers without words."""

import hashlib
import random
import threading
import time

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gram_platform.corpora import Packing, resolve, tokenizer
from gram_platform.corpora.tokenizer import (
    END_OF_TEXT,
    LONGEST_WORD,
    interruptible,
    load_tokenizer,
    require_vocab,
    train_tokenizer,
)
from tests.refused import refused


def test_the_tokenizer_of_a_text_stays(records):
    """Its bytes are part of every packed corpus."""
    text = train_tokenizer(
        [record["text"] for record in records] + ["=" * LONGEST_WORD + "\n" * 900], 400
    ).to_str()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "ac06d1f070be71e6"


def test_words_are_cut_only_beyond_a_length_that_no_text_has():
    """At most so many bytes, a word is trained on whole: the result is that of the library without
    a cut."""
    draw, alphabet = random.Random(0), pre_tokenizers.ByteLevel.alphabet()
    texts = [
        "".join(draw.choices("acgt", k=LONGEST_WORD)),
        "\u75c5" * (LONGEST_WORD // 3),
        " " * LONGEST_WORD,
        "some words",
    ]
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400,
            min_frequency=2,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(alphabet),
            show_progress=False,
        ),
    )
    assert train_tokenizer(texts, 400).get_vocab() == plain.get_vocab()
    assert (
        train_tokenizer(texts, 400).pre_tokenizer.__getstate__()
        == plain.pre_tokenizer.__getstate__()
    )


def test_a_genome_is_trained_on_and_encoded_in_seconds():
    genome = "".join(random.Random(1).choices("acgt", k=200_000))
    started = time.process_time()
    trained = train_tokenizer([genome], 300)
    ids = trained.encode(genome).ids
    assert time.process_time() - started < 30
    assert trained.get_vocab_size() == 300
    assert len(ids) < 100_000
    assert trained.decode(ids) == genome


def test_an_interrupt_ends_the_wait_for_a_library(monkeypatch):
    """The work gets no further text, and nobody waits for its end."""
    monkeypatch.setattr(tokenizer, "REPORT_S", 0.01)
    taken, free = [], threading.Event()

    def work(texts):
        for text in texts:
            taken.append(text)
            free.wait(60)

    def interrupt(seconds: float) -> None:
        free.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, iter(range(10**9)), interrupt)
    assert len(taken) < 10**9
    assert interruptible(list, iter("abc"), print) == ["a", "b", "c"]


def test_a_tokenizer_without_words_is_named(tmp_path, corpus, settings):
    for name, vocabulary in (("empty", {}), ("end", {END_OF_TEXT: 0})):
        made = Tokenizer(models.WordLevel(vocabulary, unk_token=END_OF_TEXT))
        made.save(str(tmp_path / f"{name}.json"))
        with refused("tokenizer", str(tmp_path / f"{name}.json")):
            resolve(corpus, Packing(**settings, tokenizer=str(tmp_path / f"{name}.json")))
    with refused("tokenizer", "owner/name"):
        require_vocab(Tokenizer(models.BPE()), 300, "owner/name")


@pytest.mark.parametrize("prefix", ["null", '"abcdefgh"'])
def test_a_tokenizer_on_which_the_library_panics_is_named(tmp_path, prefix):
    merges = '[["a", "b"], ["<|endoftext|>", "c"]]'
    vocab = '{"a": 0, "b": 1, "ab": 2, "c": 3, "<": 4}'
    model = (
        f'{{"type": "BPE", "continuing_subword_prefix": {prefix}, "vocab": {vocab}, "merges":'
        f" {merges}}}"
    )
    (tmp_path / "tokenizer.json").write_text(f'{{"version": "1.0", "model": {model}}}')
    with refused("tokenizer", str(tmp_path / "tokenizer.json")):
        load_tokenizer(tmp_path / "tokenizer.json")
