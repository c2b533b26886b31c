"""Tries a given tokenizer on a page of text, and counts what it cannot spell."""

import json
import string
import subprocess
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from gram_platform.config.identity import invalid
from gram_platform.corpora import page_process

# Bytes make a token each, and a letter that is decomposed up to four.
MOST_TOKENS_PER_BYTE = 8
# Characters of a text that are tried.
PAGE_CHARS = 4096
# What is counted of a domain.
LOST = ("unknown_tokens", "lost_characters", "tokens", "characters")
BY_BYTE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def require_page(tokenizer: Tokenizer, source: str, texts: Iterable[str] = ()) -> None:
    """Encodes letters of all scripts, runs of one letter and the beginnings of `texts` in a process
    with limits.

    ValueError naming the tokenizer's `source` if it fails, or makes too many tokens.
    """
    codes = [*range(32, 0x2600), *range(0x2600, 0x20000, 97)]
    signs = "".join(filter(str.isprintable, map(chr, codes)))
    lines = [signs[start : start + 80] for start in range(0, len(signs), 80)]
    lines += [f"{sign * 40}!" for sign in string.printable]
    given = [tokenizer.to_str(), [*lines, *(text[:PAGE_CHARS] for text in texts)]]
    script, path = Path(page_process.__file__), json.dumps([place for place in sys.path if place])
    command = [sys.executable, "-I", str(script), path, str(MOST_TOKENS_PER_BYTE)]
    ended = subprocess.run(command, input=json.dumps(given).encode(), capture_output=True)
    if ended.returncode:
        limits = f"more than {page_process.MAX_SECONDS} s or {page_process.MAX_BYTES >> 30} GB"
        # A limit ends the process by a signal.
        said = ended.stderr.decode(errors="replace").splitlines()[-1:] or [limits]
        fault = said[0] if ended.returncode > 0 else limits
        raise invalid("tokenizer", source, f"one that can encode a page of text ({fault})")


class Speller:
    """Counts what a tokenizer loses: characters that no known token covers.

    White space, accents and control characters do not count: tokenizers drop them on purpose.
    """

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        """`end`: the token that ends a text, which counts as unknown inside one."""
        model = json.loads(tokenizer.to_str())["model"]
        unknown = model.get("unk_id", tokenizer.token_to_id(model.get("unk_token") or ""))
        self._tokenizer, self._unknown = tokenizer, [end, -1 if unknown is None else unknown]
        steps = filter(None, (tokenizer.normalizer, tokenizer.pre_tokenizer))
        self._is_byte_level = any(b'"ByteLevel"' in step.__getstate__() for step in steps)

    def lost(self, text: str, ids: list[int]) -> tuple[int, int, int, int]:
        """Counts as `LOST`."""
        is_unknown, total = np.isin(ids, self._unknown), len("".join(text.split()))
        # The library computes offsets slowly.
        if not is_unknown.any() and self._tokenizer.decode(ids) == text:
            return 0, 0, len(ids), total
        broken = {sign for sign in set(text) if self._is_byte_level and not self._has_bytes(sign)}
        lost = _num_counted(sign for sign in text if sign in broken)
        # Offsets are wrong beside bytes without a token.
        if not lost:
            offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
            spans = np.array(offsets, np.int64).reshape(-1, 2)[~is_unknown]
            starts, ends = (np.bincount(side, minlength=len(text) + 1) for side in spans.T)
            bare = np.flatnonzero(np.cumsum(starts - ends)[: len(text)] == 0)
            lost = _num_counted(text[place] for place in bare)
        return int(is_unknown.sum()), lost, len(ids), total

    def _has_bytes(self, sign: str) -> bool:
        ((signs, _),) = BY_BYTE.pre_tokenize_str(sign)
        return all(self._tokenizer.token_to_id(byte) is not None for byte in signs)


def _num_counted(text: Iterable[str]) -> int:
    kinds = map(unicodedata.category, text)
    return sum(kind[0] not in "MZ" and kind not in ("Cc", "Cf") for kind in kinds)
