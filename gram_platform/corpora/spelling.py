"""Finds what a given tokenizer makes of text: a trial on a page, and what it cannot spell.

A character is lost if no token covers it, or only the unknown token. White space, accents and
control characters do not count: tokenizers leave them out on purpose.
"""

import json
import string
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer

from gram_platform.config.identity import invalid
from gram_platform.corpora import page_process

# More tokens for each byte of text are a fault of the tokenizer: bytes make one each, and a
# character that is decomposed up to four.
MOST_TOKENS_PER_BYTE = 8
# Runs of one letter, on which a pattern that tries every way to divide them does not end.
RUN = 40
# Seconds until the trial's process is ended; it may wait for a processor.
TRIAL_S = 300
# Characters of a text that are tried.
PAGE_CHARS = 4096
# Parts of a normalizer and of a pre-tokenizer that remove nothing that counts.
HARMLESS = {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents", "Prepend"}
HARMLESS |= {"BertNormalizer", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits"}
HARMLESS |= {"BertPreTokenizer", "UnicodeScripts", "FixedLength"}
# Bytes of UTF-8.
BYTES = [*range(0xC0), *range(0xC2, 0xF5)]


def require_page(tokenizer: Tokenizer, source: str, texts: Iterable[str] = ()) -> None:
    """Encodes a page of letters of all scripts and the first page of `texts`, in a process of its
    own with limits of time and memory.

    ValueError, which names the tokenizer's `source`, if that fails or gives too many tokens.
    """
    given = {
        "tokenizer": tokenizer.to_str(),
        "pages": [_page(), *(text[:PAGE_CHARS] for text in texts)],
        "limit": MOST_TOKENS_PER_BYTE,
    }
    path = json.dumps([entry for entry in sys.path if entry])
    command = [sys.executable, "-I", str(Path(page_process.__file__)), path]
    limits = f"{page_process.MAX_SECONDS} seconds and {page_process.MAX_BYTES >> 30} GB"
    fault = f"it does not encode a page of text within {limits}"
    try:
        ended = subprocess.run(
            command, input=json.dumps(given).encode(), capture_output=True, timeout=TRIAL_S
        )
        fault = fault if ended.returncode else ended.stdout.decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        pass
    if fault:
        raise invalid("tokenizer", source, f"a tokenizer that can encode a page of text ({fault})")


def _page() -> str:
    """Returns lines of all printable characters of the first scripts, some of the others, and runs
    of one letter."""
    codes = [*range(32, 0x2600), *range(0x2600, 0x20000, 97)]
    known = "".join(chr(code) for code in codes if chr(code).isprintable())
    lines = [known[start : start + 80] for start in range(0, len(known), 80)]
    return "\n".join([*lines, *(f"{sign * RUN}!" for sign in string.ascii_letters + " 01.-")])


@dataclass(frozen=True)
class Spelling:
    """What a tokenizer may lose: text for which it has its `unknown` token, an id or -1 for none,
    and bytes that a byte-level one is `missing`."""

    unknown: int
    missing: tuple[int, ...]

    def lost(self, text: str, encoding: Encoding) -> tuple[int, int, int, int]:
        """Counts the unknown tokens, the tokens, the lost characters and all that count."""
        ids = np.array(encoding.ids, np.int64)
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)[ids != self.unknown]
        edges = [np.bincount(side, minlength=len(text) + 1) for side in spans.T]
        uncovered = np.flatnonzero(np.cumsum(edges[0] - edges[1])[: len(text)] == 0)
        raw = np.frombuffer(text.encode(), np.uint8)
        starts = np.cumsum((raw & 0xC0) != 0x80) - 1
        unspelled = np.unique(starts[np.isin(raw, self.missing)])
        lost = max(_num_counted(text[i] for i in where) for where in (uncovered, unspelled))
        return int((ids == self.unknown).sum()), len(ids), lost, _num_counted(text)


def _num_counted(characters: Iterable[str]) -> int:
    found = "".join(characters)
    if found.isascii():
        return sum(map(found.count, set(found) - set(string.whitespace)))
    kinds = map(unicodedata.category, found)
    return sum(kind[0] not in "MZ" and kind not in ("Cc", "Cf") for kind in kinds)


def spelling_of(tokenizer_json: str) -> Spelling | None:
    """Reads what a tokenizer may lose; None if each character surely has tokens of its own, as by
    its bytes."""
    plain = json.loads(tokenizer_json)
    model, steps = plain["model"], (plain["normalizer"], plain["pre_tokenizer"])
    vocab = model["vocab"]
    if not isinstance(vocab, Mapping):
        # Pieces with their scores.
        vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
    unknown = model.get("unk_id", vocab.get(model.get("unk_token")))
    is_byte_level = any(part["type"] == "ByteLevel" for step in steps for part in _parts(step))
    missing = tuple(b for b in BYTES if _sign(b) not in vocab) if is_byte_level else ()
    is_whole = model["type"] == "BPE" and is_byte_level and not missing
    is_whole &= not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
    falls_back = model.get("byte_fallback") and all(f"<0x{b:02X}>" in vocab for b in BYTES)
    removes = any(not _is_harmless(part) for step in steps for part in _parts(step))
    if (is_whole or falls_back) and not removes:
        return None
    return Spelling(-1 if unknown is None else unknown, missing)


def _parts(step: Mapping | None) -> Iterator[Mapping]:
    """Yields a normalizer or pre-tokenizer, or the parts of a sequence of some."""
    if step and step["type"] == "Sequence":
        for part in step.get("normalizers") or step.get("pretokenizers") or ():
            yield from _parts(part)
    elif step:
        yield step


def _is_harmless(part: Mapping) -> bool:
    if part["type"] in ("Split", "Punctuation"):
        return part["behavior"] != "Removed"
    if part["type"] == "Replace":
        return part["pattern"].get("String", "letters").isspace()
    return part["type"] in HARMLESS


def _sign(byte: int) -> str:
    """Returns the character that stands for a byte in a byte-level vocabulary: itself if it is
    visible, else the next one from 256."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return chr(byte if byte in visible else 256 + sum(b not in visible for b in range(byte)))
