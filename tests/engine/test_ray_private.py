"""Which module uses Ray beside its public calls."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "gram_platform"


def test_one_module_imports_private_names_of_ray():
    found = {path for path in PACKAGE.rglob("*.py") if any(map(is_private, imported(path)))}
    assert {path.name for path in found} == {"ray_private.py"}, found


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_private(name: str) -> bool:
    library, *parts = name.split(".")
    return library == "ray" and any(part.startswith("_") or part == "generated" for part in parts)
