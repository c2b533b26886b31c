"""Tables in a terminal and in a log: columns stand apart, and no cell is cut."""

import re

from gram_platform.analysis.columns import align_columns

ROWS = [("name", "runs"), ("gram 0.28M core, lisp", 7), ("\u6a21\u578b", 1234)]


def test_texts_stand_to_the_left_and_numbers_to_the_right():
    lines = align_columns(ROWS, 1).splitlines()
    assert [re.split(" {2,}", line) for line in lines] == [list(map(str, row)) for row in ROWS]
    # Every number ends at the same place; each letter of the last name is two columns wide.
    assert list(map(len, lines)) == [27, 27, 25]


def test_a_narrow_terminal_gets_every_letter():
    text = align_columns(ROWS, width=14)
    assert max(map(len, text.splitlines())) <= 14
    joined = re.sub(r"\s", "", text)
    assert sorted(joined) == sorted(
        "".join("".join(map(str, row)) for row in ROWS).replace(" ", "")
    )


def test_a_cell_commands_no_terminal_and_is_no_markup():
    assert align_columns([("\x1b[2J", "[red]:smile:")]) == r"\x1b[2J  [red]:smile:"
