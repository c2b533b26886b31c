"""Loads, trains and tests tokenizers, and encodes and decodes text."""

import contextlib
import functools
import json
import string
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from gram_platform.config.crash_safe import A_FILE, A_FOLDER
from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import InvalidField, hash_file, invalid, local_path
from gram_platform.config.view import Texts
from gram_platform.config.written import MAX_RECORD_BYTES, require_fetched, target_kind
from gram_platform.corpora.hub_access import is_passing
from gram_platform.corpora.recipe import TokenizerRecipe

T, R = TypeVar("T"), TypeVar("R")
END_OF_TEXT = "<|endoftext|>"
KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")
# Shown instead of an end-of-text token.
END_SIGN = "\u00b6"
DEFAULT_SAMPLE_BYTES = 16_000_000
# The longest word in bytes. Training time grows with the square of a word's length.
LONGEST_WORD = 4096
REPORT_S = 5.0
# The longest wait for an interrupted training.
JOIN_S = 0.5
# The id of the token that ends a text, for tokenizers of the hub.
HUB_ENDS = {"EleutherAI/gpt-neo-125m": 50_256, "SimpleStories/SimpleStories-1.25M": 1}


def tokenizer_recipe(
    given: str | None,
    vocab_size: int,
    sample_bytes: int = DEFAULT_SAMPLE_BYTES,
    end_of_text: str = "",
) -> tuple[TokenizerRecipe, Path | None]:
    """Returns the recipe of a user's tokenizer, and the path of its local file (or None).

    `given` is the path of a `tokenizer.json` or its folder, `owner/name@revision` on the Hub, or
    None to train a BPE. `end_of_text` is the end-of-text token, or "" for the default of
    `end_of_text_id`. Raises ValueError for an unknown or unsuitable tokenizer.
    """
    if given is None:
        if end_of_text:
            raise invalid("end_of_text", end_of_text, "none, unless a tokenizer is given")
        return TokenizerRecipe("bpe", "", sample_bytes), None
    path = local_path("tokenizer", given)
    path = path / "tokenizer.json" if target_kind("tokenizer", path) == A_FOLDER else path
    if target_kind("tokenizer", path) == A_FILE:
        tokenizer = load_tokenizer(path)
        require_vocab(tokenizer, vocab_size, str(path))
        end = tokenizer.id_to_token(end_of_text_id(tokenizer, end_of_text))
        # Old recipes, which lack the field, used the first known name, special or not.
        first = next((n for n in KNOWN_ENDS if tokenizer.token_to_id(n) is not None), "")
        is_first = end == first and end in _special(tokenizer)
        # The default can be another token, the template's.
        is_plain = is_first and tokenizer.id_to_token(end_of_text_id(tokenizer)) == end
        return TokenizerRecipe("file", hash_file(path), end_of_text="" if is_plain else end), path
    if is_on_hub(given):
        return TokenizerRecipe("hub", given, end_of_text=end_of_text), None
    raise invalid(
        "tokenizer",
        given,
        "a tokenizer.json, a folder that holds one, or owner/name@revision on the hub",
    )


def is_on_hub(given: str) -> bool:
    return given.count("@") == 1 and given.count("/") == 1 and not given.endswith(("/", "@"))


@contextlib.contextmanager
def name_faults(source: str, expected: str) -> Iterator[None]:
    """Context manager that turns tokenizer errors and panics into a ValueError about `source`."""
    try:
        yield
    except BaseException as error:
        is_fault = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if isinstance(error, InvalidField) or not is_fault:
            raise
        raise invalid("tokenizer", source, f"{expected} ({error})") from None


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads a `tokenizer.json`. Raises ValueError if it cannot be read."""
    with name_faults(str(path), "a tokenizer.json that can be read"):
        require_fetched("tokenizer", path, MAX_RECORD_BYTES)
        return configure(Tokenizer.from_file(str(path)))


def encode(tokenizer: Tokenizer, text: str, source: object) -> list[int]:
    """Encodes a text to token ids. Raises a ValueError that names `source` if this fails."""
    with name_faults(str(source), "a tokenizer that can encode the text"):
        return tokenizer.encode(text, add_special_tokens=False).ids


def configure(tokenizer: Tokenizer) -> Tokenizer:
    """Turns off padding, truncation and dropout. Encodes special tokens as plain text."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    tokenizer.encode_special_tokens = True
    return tokenizer


def hub_tokenizer(source: str) -> Tokenizer:
    """Fetches the tokenizer `owner/name@revision` from the Hub.

    Raises Unavailable if the Hub does not answer, and ValueError if the tokenizer does not exist.
    """
    name, revision = source.split("@")
    try:
        return configure(Tokenizer.from_pretrained(name, revision=revision))
    except Exception as error:
        if is_passing(error):
            raise Unavailable(
                f"the tokenizer {source} cannot be read from the hub: {error}"
            ) from error
        raise invalid(
            "tokenizer", source, f"a tokenizer that the hub can provide ({error})"
        ) from None


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE with at most `vocab_size` tokens. Token 0 is `<|endoftext|>`.

    Words longer than `LONGEST_WORD` bytes, such as genomes, are cut during training.
    """
    tokenizer, words = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{LONGEST_WORD}}}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, cut])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = words
    return configure(tokenizer)


def interruptible(
    work: Callable[[Iterator[T]], R], items: Iterable[T], report: Callable[[float], object]
) -> R:
    """Returns `work(items)`. Runs it in a thread, because the tokenizer library ignores signals.

    Meanwhile, calls `report` with the elapsed seconds. After an interrupt, `work` gets no more
    items, and has `JOIN_S` seconds to finish.
    """
    done, stopped, started = Future(), threading.Event(), time.monotonic()

    def feed() -> Iterator[T]:
        for item in items:
            if stopped.is_set():
                raise InterruptedError
            yield item

    def run() -> None:
        try:
            done.set_result(work(feed()))
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.join(REPORT_S) or thread.is_alive():
            report(time.monotonic() - started)
    finally:
        stopped.set()
        thread.join(JOIN_S)
    return done.result()


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Returns the text of each token.

    If several tokens encode one character, it is in the text of the last of them.
    """
    whole, pieces, start = decode(tokenizer, tokens), [], 0
    for num_tokens in range(1, len(tokens) + 1):
        # The decoder writes this sign for an incomplete character.
        text = decode(tokenizer, tokens[:num_tokens]).rstrip("\ufffd")
        is_last = num_tokens == len(tokens)
        end = len(whole) if is_last else max(start, min(len(text), len(whole)))
        pieces.append(whole[start:end])
        start = end
    return pieces


def decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Decodes tokens to text, and replaces `KNOWN_ENDS` in it by `END_SIGN`."""
    text = tokenizer.decode(list(tokens), skip_special_tokens=False)
    for name in KNOWN_ENDS:
        text = text.replace(name, END_SIGN)
    return text


def _special(tokenizer: Tokenizer) -> set[str]:
    return {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}


def _of_template(tokenizer: Tokenizer) -> str:
    """Returns the token that the post-processor appends to a text.

    If it adds no token or others, returns "".
    """
    processor = tokenizer.post_processor
    match json.loads(processor.__getstate__()) if processor else {}:
        case {"single": [{"Sequence": _}, {"SpecialToken": {"id": name}}]}:
            return name
    return ""


def end_of_text_id(tokenizer: Tokenizer, named: str = "") -> int:
    """Returns the id of the token that separates documents.

    By default, this is the special token that the post-processor appends, or else the first of
    `KNOWN_ENDS`. Ordinary tokens are not used, because they could occur in text. `named` overrides
    the default. Raises ValueError if the tokenizer has no such token.
    """
    if named:
        token = tokenizer.token_to_id(named)
        if token is None:
            raise invalid("end_of_text", named, "a token of the tokenizer")
        return token
    special = _special(tokenizer)
    for name in (_of_template(tokenizer), *KNOWN_ENDS):
        if name in special:
            return tokenizer.token_to_id(name)
    raise invalid(
        "tokenizer",
        "no end of text",
        f"one of the special tokens {', '.join(KNOWN_ENDS)}, or a recipe with end_of_text",
    )


def with_end(tokenizer: Tokenizer, name: str) -> Tokenizer:
    """Makes `name` the tokenizer's end-of-text token (see `end_of_text_id`)."""
    tokenizer.add_special_tokens([name])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", name], special_tokens=[(name, end_of_text_id(tokenizer, name))]
    )
    return tokenizer


def separator_tokens(path: Path, text: str) -> tuple[tuple[int, ...], int]:
    """Returns the token ids of `text`, and the id of the end-of-text token."""
    tokenizer = load_tokenizer(path)
    return tuple(encode(tokenizer, text, path)), end_of_text_id(tokenizer)


def document_end(recipe: TokenizerRecipe, path: Path | None) -> int:
    """Returns the id of the token that separates documents, without fetching a tokenizer.

    Raises ValueError for a Hub tokenizer whose recipe sets `end_of_text`, or whose name is not in
    `HUB_ENDS`.
    """
    if recipe.is_trained:
        return 0
    if recipe.kind == "file":
        return end_of_text_id(load_tokenizer(path), recipe.end_of_text)
    name = recipe.source.partition("@")[0]
    if name not in HUB_ENDS or recipe.end_of_text:
        raise invalid(
            "tokenizer", recipe.source, "one whose end of text is known: " + ", ".join(HUB_ENDS)
        )
    return HUB_ENDS[name]


def require_vocab(tokenizer: Tokenizer, vocab_size: int, source: str) -> None:
    """Raises ValueError unless all token ids are below `vocab_size`.

    Also raises ValueError if the tokenizer (`source`) has no token besides `KNOWN_ENDS`.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary.keys() - KNOWN_ENDS:
        raise invalid("tokenizer", source, "a tokenizer with words, found none")
    needed = max(vocabulary.values()) + 1
    if needed > vocab_size:
        raise invalid("vocab_size", vocab_size, f"at least the tokenizer's {needed}")


def text_tokens(tokenizer_path: Path, texts: Texts, most: int) -> list[tuple[str, list[int]]]:
    """Returns the domain and token ids of each text. The ids start with an end-of-text token.

    Raises ValueError for a text with more than `most` tokens.
    """
    tokenizer, encoded = load_tokenizer(tokenizer_path), []
    for domain, text in texts:
        tokens = encode(tokenizer, text, tokenizer_path)
        if len(tokens) > most:
            raise invalid("texts", f"{text[:40]}: {len(tokens)} tokens", f"at most {most} tokens")
        encoded.append((domain, [end_of_text_id(tokenizer), *tokens]))
    return encoded


PAGE_CHARS = 4096
# A byte is normally one token, and a decomposed letter up to four.
MOST_TOKENS_PER_BYTE = 8
# Limits in bytes of memory and seconds of CPU. A test normally takes milliseconds.
MAX_PAGE_BYTES, MAX_PAGE_S = 1 << 31, 20
LOST = ("unknown_tokens", "lost_characters", "tokens", "characters")
# A cuneiform sign, which few tokenizers know.
RARE_LETTER = "\U00012000"
BY_BYTE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def require_page(tokenizer: Tokenizer, source: str, texts: Iterable[str] = ()) -> None:
    """Tests a tokenizer on letters of all scripts, repeated letters and the beginnings of `texts`.

    The test runs in another process with limits on memory and time. If the tokenizer crashes,
    exceeds a limit or produces too many tokens, raises a ValueError that names `source`.
    """
    codes = [*range(32, 0x2600), *range(0x2600, 0x20000, 97)]
    signs = "".join(filter(str.isprintable, map(chr, codes)))
    lines = [signs[start : start + 80] for start in range(0, len(signs), 80)]
    lines += [f"{sign * 40}!" for sign in string.printable]
    lines += [text[:PAGE_CHARS] for text in texts]
    limits = MOST_TOKENS_PER_BYTE, (MAX_PAGE_BYTES, MAX_PAGE_S)
    page = json.dumps([list(filter(None, sys.path)), *limits, tokenizer.to_str(), lines])
    command = [sys.executable, "-I", str(Path(__file__).with_name("page_process.py"))]
    ended = subprocess.run(command, input=page.encode(), capture_output=True)
    if ended.returncode:
        # A process that exceeds a limit is ended by a signal, without a message.
        output = ended.stderr.decode(errors="replace").splitlines() if ended.returncode > 0 else []
        fault = output[-1] if output else f"more than {MAX_PAGE_S} s or {MAX_PAGE_BYTES >> 30} GB"
        raise invalid("tokenizer", source, f"one that can encode a page of text ({fault})")


class Speller:
    """Counts the characters of a text that a tokenizer cannot encode.

    Ignores white space, accents and control characters, because tokenizers drop them on purpose.
    Treats the end-of-text token, whose id is `end`, as unknown.
    """

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        unknown = model.get("unk_id", tokenizer.token_to_id(model.get("unk_token") or ""))
        self._tokenizer, self._unknown = tokenizer, [end, -1 if unknown is None else unknown]
        steps = filter(None, (tokenizer.normalizer, tokenizer.pre_tokenizer))
        self._is_byte_level = any(b'"ByteLevel"' in step.__getstate__() for step in steps)
        self._is_lost = functools.cache(self._find_lost)
        # The tokens by which a normalizer replaces any letter that it does not know.
        ids = self._ids_of(RARE_LETTER)
        self._replaced = [] if np.isin(ids, self._unknown).any() else ids

    def lost(self, text: str, ids: list[int]) -> tuple[int, int, int, int]:
        """Returns a text's numbers of unknown tokens, lost characters, tokens and characters."""
        is_unknown, total = np.isin(ids, self._unknown), len("".join(text.split()))
        # Checked first, because the library computes offsets slowly.
        if not is_unknown.any() and self._tokenizer.decode(ids) == text:
            return 0, 0, len(ids), total
        lost = _num_counted(filter(self._is_lost, text))
        # Offsets are not used if a byte has no token, because they are wrong next to it.
        if not lost:
            offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
            spans = np.array(offsets, np.int64).reshape(-1, 2)[~is_unknown]
            starts, ends = (np.bincount(side, minlength=len(text) + 1) for side in spans.T)
            uncovered = np.flatnonzero(np.cumsum(starts - ends)[: len(text)] == 0)
            lost = _num_counted(text[index] for index in uncovered)
        return int(is_unknown.sum()), lost, len(ids), total

    def _find_lost(self, sign: str) -> bool:
        """Returns True if a character becomes a placeholder or one of its bytes has no token."""
        if self._is_byte_level:
            ((signs, _),) = BY_BYTE.pre_tokenize_str(sign)
            if any(self._tokenizer.token_to_id(byte) is None for byte in signs):
                return True
        ids = self._ids_of(sign)
        return bool(ids) and ids == self._replaced and sign not in self._tokenizer.decode(ids)

    def _ids_of(self, sign: str) -> list[int]:
        # Encoding fails if the vocabulary lacks the character.
        with contextlib.suppress(Exception):
            return self._tokenizer.encode(sign, add_special_tokens=False).ids
        return []


def _num_counted(text: Iterable[str]) -> int:
    kinds = map(unicodedata.category, text)
    return sum(kind[0] not in "MZ" and kind not in ("Cc", "Cf") for kind in kinds)
