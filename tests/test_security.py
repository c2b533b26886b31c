"""Every section of promises in SECURITY.md has tests that would fail if it broke; the list at its
end names them."""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROMISED = (
    (TESTS.parent / "SECURITY.md").read_text().split("## What is promised")[1].split("\n## ")[0]
)
LISTED = (TESTS.parent / "SECURITY.md").read_text().split("## The tests of the promises")[1]
SECTIONS = re.findall(r"^### ([\w ]+)$", PROMISED, re.MULTILINE)
# Each a section, a promise and the lines of its tests.
ROWS = re.findall(r"^([A-Z][\w ]+): (.+)\n((?:    .*\n)*)", LISTED, re.MULTILINE)
NAMES = [name for _, _, lines in ROWS for name in lines.split()]


@functools.cache
def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    """{name: definition} of a file's tests."""
    nodes = ast.parse((TESTS / file).read_text()).body
    return {
        node.name: node
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_each_section_has_promises_and_each_promise_has_tests():
    assert len(SECTIONS) == PROMISED.count("\n### ") > 8
    assert list(dict.fromkeys(section for section, _, _ in ROWS)) == SECTIONS
    assert not [promise for _, promise, lines in ROWS if not lines]
    assert len(NAMES) == len(re.findall("::", LISTED)), "a line of another form"


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_a_named_test_exists_and_is_not_switched_off(name):
    file, _, function = name.partition("::")
    assert function in functions_of(file)
    marks = [ast.unparse(mark) for mark in functions_of(file)[function].decorator_list]
    assert not [
        mark for mark in marks if mark.startswith(("pytest.mark.skip(", "pytest.mark.xfail"))
    ]
