"""Reads sentences and prompts that a user chose, and makes them tokens of a corpus."""

from gram_platform.config.crash_safe import A_FILE
from gram_platform.config.identity import invalid, local_path
from gram_platform.config.view import Texts
from gram_platform.config.written import target_kind
from gram_platform.corpora.packed import PackedCorpus
from gram_platform.corpora.records import Unit, read_unit

# They stand in the config of every view.
MOST_TEXTS = 100


def read_texts(place: str) -> Texts:
    """Returns pairs of a domain and a text: the `label` and `text` of every line of a .jsonl.

    ValueError for a bad line, and for none or too many.
    """
    path = local_path("texts", place)
    if not (target_kind("texts", path) == A_FILE and path.name.lower().endswith(".jsonl")):
        raise invalid("texts", place, "a file named *.jsonl that exists, of lines with text, label")
    texts = tuple((label, text) for label, text in read_unit(Unit((path,))))
    if not 0 < len(texts) <= MOST_TEXTS:
        raise invalid("texts", f"{place}: {len(texts)} lines", f"1 to {MOST_TEXTS} lines")
    return texts


def text_tokens(corpus: PackedCorpus, texts: Texts, most: int) -> list[tuple[str, list[int]]]:
    """Returns each text's domain and tokens, the end of another text before them.

    ValueError for a text of more than `most` tokens.
    """
    # Only this needs a tokenizer.
    from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer

    tokenizer, found = load_tokenizer(corpus.tokenizer_path), []
    for domain, text in texts:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        if len(tokens) > most:
            raise invalid("texts", f"{text[:40]}: {len(tokens)} tokens", f"at most {most} tokens")
        found.append((domain, [end_of_text_id(tokenizer), *tokens]))
    return found
