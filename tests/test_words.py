"""The words of the code and of the pages: the field's terms, and comments that stand above their line."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = [ROOT / "gram_platform" / name for name in ("engine", "studies", "store")]
PAGES = [
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "cluster/README.md")),
]
# Words that once had a meaning of our own here, and the field's terms.
TERMS = {
    "told": "asked to stop, reported",
    "notice": "stop request",
    "heed": "handle",
    "hopeless": "pruned",
    "cleared": "reserved",
    "adopt": "resume",
    "room": "free resources, capacity",
}
# The pages that explain the layout call a package of `gram_platform` a room.
ALLOWED = {
    ("docs/architecture.md", "room"),
    ("docs/extend.md", "room"),
    ("README.md", "room"),
    ("CONTRIBUTING.md", "room"),
}
PHRASES = {"tells whether": "returns whether", "does as": "like"}
DIRECTIVES = ("# noqa", "# type: ignore", "# fmt:", "# pragma")


def own_files() -> list[Path]:
    return sorted(path for room in ROOMS for path in room.rglob("*.py"))


def words(text: str) -> set[str]:
    """Lower-case words of a text, those inside names too: `_ToldToStop` has told, to, stop."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def forms(word: str) -> set[str]:
    return {word, word + "s", word + "ed", word + "d"}


def private_words(text: str) -> Iterator[str]:
    found = words(text)
    yield from (word for word in TERMS if forms(word) & found)
    spaced = " ".join(text.lower().split())
    yield from (phrase for phrase in PHRASES if phrase in spaced)


def test_private_words_are_found_in_names_and_texts():
    assert set(private_words("class _ToldToStop: ...\nhas_room = adopted('NOTICE')")) == {
        "told",
        "room",
        "adopt",
        "notice",
    }
    assert set(private_words("Tells\n  whether a broom is noticed")) == {"tells whether", "notice"}
    assert not set(private_words("study.tell(trial); classroom, unadopted"))


def test_code_and_pages_use_the_terms_of_the_field():
    """Names, comments, docstrings and messages of the rooms, and the pages."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (*own_files(), *PAGES)}
    found = {(name, word) for name, text in texts.items() for word in private_words(text)}
    assert found == ALLOWED, {one: (TERMS | PHRASES)[one[1]] for one in found ^ ALLOWED}


def trailing_comments(text: str) -> Iterator[int]:
    """Numbers of the lines that have a comment behind their code."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_behind = token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
        if is_behind and not token.string.startswith(DIRECTIVES):
            yield token.start[0]


def test_comments_stand_above_their_line():
    assert list(trailing_comments("a = 1  # of b\n# whole\nb = '# text'\nimport c  # noqa: F401\n")) == [1]
    assert not [(str(p.relative_to(ROOT)), line) for p in own_files() for line in trailing_comments(p.read_text())]
