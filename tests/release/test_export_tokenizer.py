"""An export's tokenizer gives a text the ids that training gave it, and so does the server,
whatever its file adds."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer

from gram_platform.corpora.tokenizer import load_tokenizer, train_tokenizer
from gram_platform.release import verification
from gram_platform.release.files import TOKENIZER, write_tokenizer
from gram_platform.release.serving.requests import CompletionRequest
from gram_platform.release.serving.text import Vocabulary
from tests.refused import refused

TEXTS = (
    "The library reads a file.",
    "  two  spaces\n\nand é CAPS",
    "one </s> or [SEP] two",
    "",
    " ",
    "don 't stop , now .",
)
SPECIAL = ("<unk>", "<s>", "</s>")


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    tokens = [(token, tokenizer.token_to_id(token)) for token in SPECIAL if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=tokens)
    return tokenizer


def words(template: str = "$A", normalizer: normalizers.Normalizer | None = None) -> Tokenizer:
    known = (
        *SPECIAL,
        "the",
        "library",
        "reads",
        "file",
        "two",
        "and",
        "<",
        "/",
        "s",
        ">",
        "don",
        "'",
        "t",
        ".",
    )
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return with_template(tokenizer, template)


def pieces(add_prefix_space: bool, template: str = "$A") -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return with_template(tokenizer, template)


def cut_and_padded() -> Tokenizer:
    tokenizer = pieces(False)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=12, pad_id=2, pad_token="</s>")
    return tokenizer


def as_roberta() -> Tokenizer:
    tokenizer = pieces(True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer


def as_llama() -> Tokenizer:
    tokenizer = words("<s> $A")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


GIVEN = {
    "trained here": lambda: train_tokenizer(TEXTS * 4, 300),
    "without a template": words,
    "end after a text": lambda: words("$A </s>"),
    "start before a text": lambda: words("<s> $A"),
    "both": lambda: words("<s> $A </s>"),
    "lower case": lambda: words("$A </s>", normalizers.Lowercase()),
    "a blank before a text": lambda: pieces(True, "<s> $A"),
    "bytes": lambda: pieces(False, "$A </s>"),
    "cut and padded": cut_and_padded,
    "as RoBERTa's": as_roberta,
    "as Llama 2's": as_llama,
}


@pytest.fixture(params=GIVEN)
def exported(request, tmp_path) -> tuple[Tokenizer, Path]:
    """(the tokenizer of training, the folder of an export with it)"""
    path, folder = tmp_path / "corpus.json", tmp_path / "out"
    GIVEN[request.param]().save(str(path))
    folder.mkdir()
    write_tokenizer(SimpleNamespace(tokenizer_path=path), folder, seq_len=64)
    return load_tokenizer(path), folder


@pytest.mark.parametrize("kind", ["starcoder2", "llama"])
def test_a_text_has_the_ids_of_training(kind, exported):
    trained, folder = exported
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 300}))
    found = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = trained.encode(text, add_special_tokens=False).ids
        assert found(text)["input_ids"] == ids
        assert found.decode(ids) == trained.decode(ids, skip_special_tokens=False)


def test_the_server_reads_a_prompt_as_training_did(exported):
    trained, folder = exported
    original = Vocabulary.of((folder.parent / "corpus.json").read_text(), 64)
    for text in TEXTS:
        request = CompletionRequest(text, None, 1, 1.0, 1.0, 0, (), False)
        assert original.prompt_ids(request) == (
            tuple(trained.encode(text, add_special_tokens=False).ids) or (original.end_of_text,)
        )


@pytest.mark.parametrize("exported", ["end after a text", "as RoBERTa's"], indirect=True)
def test_the_check_compares_texts(exported):
    trained, folder = exported
    corpus = SimpleNamespace(tokenizer_path=folder.parent / "corpus.json")
    tokens_BT = torch.tensor([trained.encode(TEXTS[0], add_special_tokens=False).ids])
    verification.require_same_ids(corpus, folder, tokens_BT)
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}'
    )
    (folder / TOKENIZER).write_bytes((folder.parent / "corpus.json").read_bytes())
    with refused("export"):
        verification.require_same_ids(corpus, folder, tokens_BT)
