"""Encodes pages of text within limits, as a script, see `tokenizer.require_page`.

Input: [sys.path, tokens a byte, [bytes of memory, seconds of a processor], tokenizer.json, pages].
Ends with a fault.
"""

import json
import resource
import sys
from itertools import cycle, islice

# Characters of long texts: a tokenizer that needs the square of a text's length takes too long.
LONG_CHARS = 1 << 18


def fault_of(tokenizer, page: str, most: int) -> str | None:
    """Describes the first line that breaks the library, or makes more than `most` tokens a byte.

    The last lines are long texts.
    """
    long = "".join(islice(cycle(page), LONG_CHARS))
    for line in [*page.splitlines(), "a" * LONG_CHARS, long]:
        try:
            ids = tokenizer.encode(line, add_special_tokens=False).ids
            # A decoder that adds text is as bad; without one a byte may be `<0x20>`.
            num_tokens = max(len(ids), len(tokenizer.decode(ids)) // 8)
        except Exception:
            # A closed vocabulary has no token for the line; the corpus may need none.
            continue
        except BaseException as error:
            # A panic of the library.
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
    # What a tokenizer replaces or splits at. Few signs may become eight times as many.
    pages += [f"{value:40}" for _, value in fields if isinstance(value, str)]
    given = Tokenizer.from_str(text)
    given.encode_special_tokens = True
    sys.exit(fault_of(given, "\n".join(pages), most_tokens))
