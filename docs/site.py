"""Gives the site of the documents the places of the repository: relative links then work here as on
a code host.

MkDocs reads `docs/` alone, as if it were the top. This hook puts its files below `docs/` again, and
the documents that lie beside it, of which README.md is the home page, in their places. See
mkdocs.yml. It also writes the page of the Python names: those that the package offers to notebooks,
and those that the examples of docs/extend.md import.
"""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

BESIDE = (
    "*.md",
    "cluster/*.md",
    "cluster/haproxy.cfg",
    "benchmarks/*.md",
    "LICENSE",
    "CITATION.cff",
)
PACKAGE = "gram_platform"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Returns the files of the theme, the documents by their paths in the repository, and the page
    of the Python names."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    theme = [file for file in files if file.src_dir != config.docs_dir]
    found = [
        docs / file.src_uri for file in files if file not in theme and file.inclusion.is_included()
    ]
    found += [path for pattern in BESIDE for path in sorted(root.glob(pattern))]
    places = [str(path.relative_to(root)) for path in found]
    reference = File.generated(config, "docs/api.md", content=reference_page(root))
    return Files(
        [
            *theme,
            reference,
            *(
                File(place, str(root), config.site_dir, config.use_directory_urls)
                for place in places
            ),
        ]
    )


def reference_page(root: Path) -> str:
    """Returns a page that names what mkdocstrings describes from the source."""
    public = runpy.run_path(str(root / PACKAGE / "__init__.py"))["PUBLIC"]
    return "\n\n".join(
        [
            "# Python names",
            "## For notebooks",
            f"`from {PACKAGE} import load_runs`, for example. Importing the package is fast,"
            " because each function loads its module on first use.",
            *(f"::: {PACKAGE}.{module}.{name}" for name, module in public.items()),
            "## For extensions",
            "The examples of [Extend](extend.md) import these.",
            *(
                f"::: {name}\n    options: {{show_root_full_path: true}}"
                for name in dict.fromkeys(extension_names(root))
            ),
        ]
    )


def extension_names(root: Path) -> Iterator[str]:
    """Yields the functions and classes that docs/extend.md imports, except from our studies."""
    text = (root / "docs" / "extend.md").read_text(encoding="utf-8")
    for module, names in re.findall(rf"^from ({PACKAGE}\S*) import (.+)$", text, re.MULTILINE):
        if ".library." not in module:
            yield from (f"{module}.{name}" for name in names.split(", ") if not name.isupper())
