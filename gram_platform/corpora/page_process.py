"""Encodes pages of text within limits; a script, because a tokenizer can take all memory and time.

Arguments: the path of modules, and the limits: tokens a byte, bytes of memory, seconds of a
processor. Input: [tokenizer.json's text, pages]. Ends with a fault.
"""

import json
import resource
import sys


def fault_of(tokenizer, page: str, most: int) -> str | None:
    """Returns what is wrong with the first line that breaks the library, or that makes more than
    `most` tokens a byte; None if no line does."""
    for line in page.splitlines():
        try:
            num_tokens = len(tokenizer.encode(line, add_special_tokens=False).ids)
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
    sys.path[:] = json.loads(sys.argv[1])
    from tokenizers import Tokenizer

    most_tokens, *limits = map(int, sys.argv[2:])
    for kind, most in zip((resource.RLIMIT_AS, resource.RLIMIT_CPU), limits, strict=True):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))
    text, pages = json.load(sys.stdin)
    given = Tokenizer.from_str(text)
    given.encode_special_tokens = True
    sys.exit(fault_of(given, "\n".join(pages), most_tokens))
