"""Tokenizers that somebody else made: what they cannot spell, what ends a text, what breaks."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from gram_platform.config.identity import InvalidField
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.tokenizer import (
    Speller,
    encode,
    end_of_text_id,
    load_tokenizer,
    require_page,
)
from tests.refused import refused

END = "<|endoftext|>"
KATAKANA = "アイウエオカキクケコサシスセソ"


@pytest.fixture
def mixed(tmp_path, records, jsonl):
    """Documents of which a given share of one domain, or of each document, is in another script."""

    def write(share_of_text: float) -> Path:
        changed = []
        for number, record in enumerate(records):
            text = record["text"].replace("Über", "Uber").replace("日本", "japan")
            if record["label"] == "virology":
                size = round(share_of_text * len(text.replace(" ", "").replace("\n", "")))
                new = "".join(KATAKANA[(number + i) % len(KATAKANA)] for i in range(size))
                letters = [i for i, sign in enumerate(text) if not sign.isspace()][-size:]
                signs = list(text)
                for i, sign in zip(letters if size else (), new, strict=True):
                    signs[i] = sign
                text = "".join(signs)
            changed.append({**record, "text": text})
        return jsonl(tmp_path / "mixed.jsonl", changed)

    return write


ASCII = "".join(map(chr, range(32, 127))) + "\n"
WORDS = [f"{a}{b}" for a in ASCII for b in "aeiou"]


def trained(model, trainer, pre_tokenizer, texts=(ASCII, *WORDS)) -> Tokenizer:
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizer
    made.train_from_iterator(texts, trainer)
    return made


def by_letter(**options) -> Tokenizer:
    """A BPE of ASCII letters, with an unknown token or without."""
    special = [END, *filter(None, [options.get("unk_token")])]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    return trained(models.BPE(**options), trainer, pre_tokenizers.Whitespace())


def by_word() -> Tokenizer:
    """Every ASCII letter is a word piece."""
    letters = {letter: 3 + n for n, letter in enumerate(ASCII)}
    inside = {f"##{letter}": 103 + n for n, letter in enumerate(ASCII)}
    vocab = {END: 0, "[UNK]": 1, **letters, **inside}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([END, "[UNK]"])
    return made


def by_byte_of_ascii() -> Tokenizer:
    """Byte-level, without the bytes of other scripts."""
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], show_progress=False)
    return trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False))


def stripping() -> Tokenizer:
    """Byte-level with all bytes, whose normalizer removes what is not ASCII."""
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made = trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.normalizer = normalizers.Replace(Regex("[^\x00-\x7f]"), "")
    return made


def replacing() -> Tokenizer:
    """Writes a question mark for everything that is not ASCII."""
    made = stripping()
    made.normalizer = normalizers.Replace(Regex("[^\x00-\x7f]"), "?")
    return made


LOSING = {
    "unknown letters": lambda: by_letter(unk_token="[UNK]"),
    "unknown letters as one token": lambda: by_letter(unk_token="[UNK]", fuse_unk=True),
    "letters without a token": by_letter,
    "unknown words": by_word,
    "bytes without a token": by_byte_of_ascii,
    "a normalizer that removes letters": stripping,
    "a normalizer that replaces letters": replacing,
}


def given(make, folder: Path) -> str:
    make().save(str(folder / "given.json"))
    return str(folder / "given.json")


@pytest.mark.parametrize("kind", LOSING)
def test_a_domain_that_is_mostly_unknown_is_refused(kind, tmp_path, mixed, settings):
    path = given(LOSING[kind], tmp_path)
    recipe = resolve(mixed(0.7), Packing(**settings, tokenizer=path))
    with pytest.raises(InvalidField) as caught:
        prepare(recipe, tmp_path / "data")
    assert (caught.value.field, caught.value.value) == ("tokenizer", path)
    assert "virology" in caught.value.expected
    assert not (tmp_path / "data" / recipe.data_id).exists()


@pytest.mark.parametrize("kind", LOSING)
def test_what_is_lost_of_a_domain_is_counted_and_said(kind, tmp_path, mixed, settings):
    """A document ends in katakana, without a blank: at most the word before it is unknown too."""
    path = given(LOSING[kind], tmp_path)
    packed = prepare(resolve(mixed(0.2), Packing(**settings, tokenizer=path)), tmp_path / "data")
    (found,) = packed.manifest["unspelled"].values()
    share = found["lost_characters"] / found["characters"]
    assert share == pytest.approx(0.2, abs=0.02)
    (line,) = packed.warnings
    assert "virology" in line
    assert "core" not in line


@pytest.mark.parametrize("kind", sorted(LOSING.keys() - {"unknown words"}))
def test_a_little_is_stored_and_not_said_and_nothing_is_not_stored(kind, tmp_path, mixed, settings):
    path = given(LOSING[kind], tmp_path)
    packed = prepare(
        resolve(mixed(0.006), Packing(**settings, tokenizer=path)), tmp_path / "little"
    )
    assert list(packed.manifest["unspelled"]) == ["virology"]
    assert packed.warnings == ()
    packed = prepare(resolve(mixed(0.0), Packing(**settings, tokenizer=path)), tmp_path / "nothing")
    assert "unspelled" not in packed.manifest


def test_capitals_accents_and_blanks_are_not_lost():
    made = by_word()
    made.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    text = "\ufeffCRÈME  e\u0301 \u200b\tbrûlée\x07"
    assert Speller(made, end=0).lost(text, made.encode(text).ids)[:2] == (0, 0)


def test_a_letter_that_is_spelled_otherwise_is_not_lost():
    made = replacing()
    others = [normalizers.Replace(a, b) for a, b in ("“'", "”'", "…~")]
    made.normalizer = normalizers.Sequence([*others, made.normalizer])
    text = "“Why?” … 日本"
    assert Speller(made, end=0).lost(text, made.encode(text).ids)[:2] == (0, 2)


def complete(**options) -> Tokenizer:
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({END: 0} | {s: n + 1 for n, s in enumerate(signs)}, [], **options))
    made.add_special_tokens([END])
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return made


def falling_back() -> Tokenizer:
    vocab = {END: 0, "<unk>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    made = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.add_special_tokens([END])
    return made


@pytest.mark.parametrize("make", [complete, falling_back])
def test_bytes_lose_nothing(make, tmp_path, mixed, settings):
    path = given(make, tmp_path)
    packed = prepare(resolve(mixed(0.9), Packing(**settings, tokenizer=path)), tmp_path / "data")
    assert "unspelled" not in packed.manifest
    assert packed.warnings == ()


def test_a_word_that_ends_a_text_is_counted(tmp_path, settings, records, jsonl):
    """Text spells the special token of a vocabulary of words; two other words are unknown."""
    words = {word for record in records for word in record["text"].split()}
    vocab = {END: 0, "[UNK]": 1} | {word: n + 2 for n, word in enumerate(sorted(words))}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([END])
    made.save(str(tmp_path / "given.json"))
    for record in records[:6]:
        record["text"] += f" {END} and on"
    corpus, path = jsonl(tmp_path / "a.jsonl", records), str(tmp_path / "given.json")
    settings = {**settings, "vocab_size": 1000}
    packed = prepare(resolve(corpus, Packing(**settings, tokenizer=path)), tmp_path / "data")
    found = {d: counts["unknown_tokens"] for d, counts in packed.manifest["unspelled"].items()}
    assert found == {"core": 3 * 3, "virology": 3 * 3}
    # It is left out, so that it ends no document early.
    core = [record["text"] for record in records if record["label"] == "core"]
    num_tokens = sum(len(text.replace(END, "").split()) + 1 for text in core)
    assert sum(s["num_tokens"] for s in packed.manifest["domains"]["core"].values()) == num_tokens


# ------------------------------------------------------------------------------ the end of a text


def with_ends(special: list[str], ordinary: list[str]) -> Tokenizer:
    made = complete()
    plain = json.loads(made.to_str())
    first = len(plain["model"]["vocab"])
    plain["model"]["vocab"] |= {name: first + n for n, name in enumerate(ordinary)}
    del plain["model"]["vocab"][END]
    plain["model"]["vocab"]["zero"] = 0
    plain["added_tokens"] = []
    made = Tokenizer.from_str(json.dumps(plain))
    made.add_special_tokens(special)
    return made


@pytest.mark.parametrize(
    ("special", "ordinary", "end"),
    [
        (["<eos>"], ["</s>"], "<eos>"),
        (["[SEP]", "<pad>"], ["</s>", "<|endoftext|>", "[EOS]"], "[SEP]"),
        (["[SEP]", "</s>"], [], "</s>"),
    ],
)
def test_an_ordinary_piece_is_never_the_end(special, ordinary, end):
    made = with_ends(special, ordinary)
    assert made.id_to_token(end_of_text_id(made)) == end


def test_only_ordinary_pieces_are_no_end_unless_a_recipe_names_one(tmp_path, corpus, settings):
    settings = {**settings, "vocab_size": 1000}
    made = with_ends(["<pad>"], ["</s>", "<stop>"])
    made.add_tokens([AddedToken("[EOS]", special=False)])
    made.save(str(tmp_path / "given.json"))
    with refused("tokenizer"):
        end_of_text_id(made)
    with refused("tokenizer"):
        resolve(corpus, Packing(**settings, tokenizer=str(tmp_path / "given.json")))
    ids = set()
    for name in ("<stop>", "</s>", "<pad>"):
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(
            f'records = ["corpus"]\ntokenizer = "given.json"\nend_of_text = "{name}"\n'
        )
        packed = prepare(resolve(recipe, Packing(**settings)), tmp_path / "data")
        ids.add(packed.data_id)
        # Whoever reads the packed tokenizer finds the same end.
        stored = load_tokenizer(packed.tokenizer_path)
        end = end_of_text_id(stored)
        assert stored.id_to_token(end) == name == made.id_to_token(end)
        assert np.count_nonzero(np.asarray(packed.validation("core")) == end)
        assert end not in encode(stored, f"one {name} two", "")
    assert len(ids) == 3
    recipe.write_text('records = ["corpus"]\ntokenizer = "given.json"\nend_of_text = "<nothing>"\n')
    with refused("end_of_text", "<nothing>"):
        resolve(recipe, Packing(**settings))
    recipe.write_text('records = ["corpus"]\nend_of_text = "</s>"\n')
    with refused("end_of_text", "</s>"):
        resolve(recipe, Packing(**settings))


def test_a_template_names_the_end(tmp_path):
    made = with_ends(["<eos>", "<turn>", "<cls>"], [])
    token = made.token_to_id("<turn>")
    for template, end in (("$A <turn>", "<turn>"), ("<turn> $A", "<eos>"), ("$A", "<eos>")):
        made.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<turn>", token)] * ("turn" in template)
        )
        assert made.id_to_token(end_of_text_id(made)) == end


def test_a_named_end_is_not_the_templates(tmp_path, corpus, settings):
    made = with_ends(["<eos>", "<turn>"], [])
    made.post_processor = processors.TemplateProcessing(
        single="$A <turn>", special_tokens=[("<turn>", made.token_to_id("<turn>"))]
    )
    made.save(str(tmp_path / "given.json"))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('records = ["corpus"]\ntokenizer = "given.json"\nend_of_text = "<eos>"\n')
    packed = prepare(resolve(recipe, Packing(**{**settings, "vocab_size": 999})), tmp_path / "data")
    stored = load_tokenizer(packed.tokenizer_path)
    assert stored.id_to_token(end_of_text_id(stored)) == "<eos>"


def test_recipes_of_known_ends_keep_their_ids_and_others_get_new_ones(tmp_path, corpus, settings):
    """What was packed with another end has another id."""
    for special, ordinary, name in (
        (["</s>"], [], ""),
        (["</s>", "<eos>"], [], ""),
        (["<eos>"], ["</s>"], "<eos>"),
    ):
        with_ends(special, ordinary).save(str(tmp_path / "given.json"))
        shape = {**settings, "vocab_size": 999, "tokenizer": str(tmp_path / "given.json")}
        recipe = resolve(corpus, Packing(**shape))
        assert recipe.tokenizer.end_of_text == name
        assert ("end_of_text" in recipe.plain()["tokenizer"]) == bool(name)


# ------------------------------------------------------------------------------- what breaks them


def bomb(letter: str, size: int, steps: int) -> Tokenizer:
    made = complete()
    made.normalizer = normalizers.Sequence([normalizers.Replace(letter, letter * size)] * steps)
    return made


def panicking(pattern: str) -> Tokenizer:
    made = complete()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), made.pre_tokenizer]
    )
    return made


def adding() -> Tokenizer:
    """Its decoder makes 27,000 letters of one."""
    made = complete()
    more = [decoders.Replace("a", "a" * 30)] * 3
    made.decoder = decoders.Sequence([decoders.ByteLevel(), *more])
    return made


def of_long_words() -> Tokenizer:
    """Needs the third power of a word's length."""
    plain = json.loads(by_word().to_str())
    plain["model"]["max_input_chars_per_word"] = 1 << 30
    return Tokenizer.from_str(json.dumps(plain))


BROKEN = {
    "text of the decoder": adding,
    "long words": of_long_words,
    "a pattern that looks ahead": lambda: panicking(r"(?=[\s\S]*\x00)a"),
    "a word that no page has": lambda: bomb("zebra", 30, 4),
    "many tokens": lambda: bomb("a", 30, 4),
    "more than the memory": lambda: bomb("q", 30, 8),
    "of another script": lambda: bomb("ж", 30, 5),
    "some tokens more": lambda: bomb("e", 40, 1),
    "a pattern of letters": lambda: panicking("(a+)+$"),
    "a pattern of words": lambda: panicking(r"(\w+\s?)+$"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_tokenizer_that_fails_on_a_page_is_refused_before_packing(
    kind, tmp_path, corpus, settings
):
    path = given(BROKEN[kind], tmp_path)
    recipe = resolve(corpus, Packing(**settings, tokenizer=path))
    with refused("tokenizer", path):
        prepare(recipe, tmp_path / "data", lambda *a: pytest.fail("it read something"))


def closed() -> Tokenizer:
    """Letters of ASCII alone, without the unknown token that it names."""
    plain = json.loads(by_letter(unk_token="[UNK]").to_str())
    del plain["model"]["vocab"]["[UNK]"]
    plain["added_tokens"] = [t for t in plain["added_tokens"] if t["content"] == END]
    return Tokenizer.from_str(json.dumps(plain))


def test_a_closed_vocabulary_packs_text_that_it_spells(tmp_path, mixed, settings):
    path = given(closed, tmp_path)
    prepare(resolve(mixed(0.0), Packing(**settings, tokenizer=path)), tmp_path / "data")
    with refused("tokenizer", path):
        prepare(resolve(mixed(0.1), Packing(**settings, tokenizer=path)), tmp_path / "data")


def test_the_page_of_a_corpus_is_tried_too():
    """A character that the first page lacks."""
    made = complete()
    made.normalizer = normalizers.Replace(Regex(r"\x{1F9FF}"), "a" * 1000)
    require_page(made, "given.json")
    with refused("tokenizer", "given.json"):
        require_page(made, "given.json", ["words \U0001f9ff"])


@pytest.mark.parametrize("make", [complete, falling_back, by_word])
def test_whole_tokenizers_pass(make):
    require_page(make(), "given.json", ["words " * 10_000, "", "a" * 100_000])


def test_a_failure_names_the_file_wherever_text_is_encoded(tmp_path, settings, records, jsonl):
    made = panicking("(日+)+$")
    with refused("tokenizer", "given.json"):
        encode(made, "日" * 40 + "!", "given.json")
    made.save(str(tmp_path / "given.json"))
    # Beyond the page that is tried.
    records[70]["text"] += " word" * 2000 + "日" * 40 + "!"
    corpus = jsonl(tmp_path / "a.jsonl", records)
    recipe = resolve(corpus, Packing(**settings, tokenizer=str(tmp_path / "given.json")))
    with refused("tokenizer", str(tmp_path / "given.json")):
        prepare(recipe, tmp_path / "data")


def test_a_large_file_is_not_read(tmp_path):
    with open(tmp_path / "given.json", "wb") as file:
        file.truncate(1 << 40)
    with refused("tokenizer", str(tmp_path / "given.json")):
        load_tokenizer(tmp_path / "given.json")


def test_merges_are_not_left_out_by_chance(tmp_path, corpus, settings):
    made = by_letter(dropout=0.5)
    made.save(str(tmp_path / "given.json"))
    recipe = resolve(corpus, Packing(**settings, tokenizer=str(tmp_path / "given.json")))
    packed = [prepare(recipe, tmp_path / name) for name in ("one", "other")]
    assert packed[0].fingerprint == packed[1].fingerprint


# -------------------------------------------------------------------------------- where it is


def test_a_recipe_s_tokenizer_is_beside_the_recipe(tmp_path, corpus, settings, monkeypatch):
    settings = {**settings, "vocab_size": 999}
    complete().save(str(tmp_path / "given.json"))
    (tmp_path / "elsewhere").mkdir()
    with_ends(["<eos>"], []).save(str(tmp_path / "elsewhere" / "given.json"))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('records = ["corpus"]\ntokenizer = "given.json"\n')
    here = resolve(recipe, Packing(**settings))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resolve(recipe, Packing(**settings)) == here
    assert here.tokenizer_path == tmp_path / "given.json"
    # A flag is relative to the current folder.
    assert resolve(recipe, Packing(**settings, tokenizer="given.json")) != here
    (tmp_path / "given.json").rename(tmp_path / "sub.json")
    with refused("tokenizer", str(tmp_path / "given.json")):
        resolve(recipe, Packing(**settings))
    for written, kind in ((f"{tmp_path}/sub.json", "file"), ("owner/name@main", "hub")):
        recipe.write_text(f'records = ["corpus"]\ntokenizer = "{written}"\n')
        assert resolve(recipe, Packing(**settings)).tokenizer.kind == kind


def test_the_name_of_an_end_is_a_part_of_the_hub_s_recipe(tmp_path, corpus, settings):
    recipe = tmp_path / "recipe.toml"
    text = 'records = ["corpus"]\ntokenizer = "owner/name@main"\n'
    recipe.write_text(text)
    plain = resolve(recipe, Packing(**settings))
    recipe.write_text(f'{text}end_of_text = "<stop>"\n')
    named = resolve(recipe, Packing(**settings))
    assert named.tokenizer == dataclasses.replace(plain.tokenizer, end_of_text="<stop>")
    assert named.data_id != plain.data_id
