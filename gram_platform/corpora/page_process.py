"""Tests a tokenizer on pages of text, with limits on memory and time.

`tokenizer.require_page` runs this script. Standard input is a JSON list: [sys.path, maximum tokens
per byte, [bytes of memory, CPU seconds], tokenizer as JSON, pages]. On failure, the script
writes the reason to standard error and exits with code 1.
"""

import json
import resource
import sys
from itertools import cycle, islice

# Characters of a long text, which takes a tokenizer with quadratic time too long.
LONG_CHARS = 1 << 18


def fault_of(tokenizer, page: str, most: int) -> str | None:
    """Describes the first text that crashes `tokenizer` or has more tokens per byte than `most`.

    The texts are each line of the page, a long text of one letter, and the page repeated many
    times. Returns None if there is no such text.
    """
    long = "".join(islice(cycle(page), LONG_CHARS))
    for line in [*page.splitlines(), "a" * LONG_CHARS, long]:
        try:
            ids = tokenizer.encode(line, add_special_tokens=False).ids
            # A decoder may add text too. Divided by 8, because it may write a byte as `<0x20>`.
            num_tokens = max(len(ids), len(tokenizer.decode(ids)) // 8)
        except Exception:
            # The vocabulary has no token for the line, and the corpus may not need it.
            continue
        except BaseException as error:
            # Panics of the library are not Exceptions.
            return f"{line[:40]!r}: {error}"
        if num_tokens > most * (len(line.encode()) + 1):
            return f"{line[:40]!r}: {num_tokens:,} tokens"
    return None


if __name__ == "__main__":
    sys.path[:], most_tokens, limits, text, pages = json.load(sys.stdin)
    from tokenizers import Tokenizer

    for kind, most in zip((resource.RLIMIT_AS, resource.RLIMIT_CPU), limits, strict=True):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))
    fields = []
    json.loads(text, object_pairs_hook=fields.extend)
    # The tokenizer may replace these texts by much longer texts.
    pages += [f"{value:40}" for _, value in fields if isinstance(value, str)]
    given = Tokenizer.from_str(text)
    given.encode_special_tokens = True
    sys.exit(fault_of(given, "\n".join(pages), most_tokens))
