"""Encodes pages of text in a process of its own, which a tokenizer cannot take memory or time from.

Reads {"tokenizer": the text of a tokenizer.json, "pages": [text, ...], "limit": tokens a byte} from
its input, and writes what is wrong with the tokenizer; nothing if the pages are encoded.
"""

import contextlib
import json
import resource
import sys

# Of the whole process; the largest vocabularies take a quarter of it.
MAX_BYTES = 1 << 31
# Seconds of a processor for the pages. A page takes some milliseconds.
MAX_SECONDS = 10


def limit(kind: int, most: int) -> None:
    """Limits what this process may use, where the system can."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (most, hard))


def fault_of(tokenizer, pages: list[str], most: int) -> str:
    """Says what is wrong, after the first line that shows it; "" if nothing is."""
    for line in (line for page in pages for line in page.split("\n")):
        try:
            num_tokens = len(tokenizer.encode(line, add_special_tokens=False).ids)
        except Exception:
            # A closed vocabulary has no token for the line; the corpus may need none.
            continue
        except BaseException as error:
            # A panic of the library.
            return f"it fails on the text {line[:40]!r}: {error}"
        if num_tokens > most * (len(line.encode()) + 1):
            return f"it makes {num_tokens:,} tokens of the text {line[:40]!r}"
    return ""


def main() -> None:
    from tokenizers import Tokenizer

    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_AS, MAX_BYTES)
    given = json.load(sys.stdin)
    tokenizer = Tokenizer.from_str(given["tokenizer"])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + MAX_SECONDS)
    sys.stdout.write(fault_of(tokenizer, given["pages"], given["limit"]))


if __name__ == "__main__":
    # Started without a current folder on its path: the caller's path holds the library.
    sys.path[:] = json.loads(sys.argv[1])
    main()
