"""Gives the site of the documents the places of the repository: relative links then work here as on
a code host.

MkDocs reads `docs/` alone, as if it were the top. This hook puts its files below `docs/` again, and
the documents that lie beside it, of which README.md is the home page, in their places. See
mkdocs.yml.
"""

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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Returns the files of the theme, and the documents by their paths in the repository."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    theme = [file for file in files if file.src_dir != config.docs_dir]
    found = [
        docs / file.src_uri for file in files if file not in theme and file.inclusion.is_included()
    ]
    found += [path for pattern in BESIDE for path in sorted(root.glob(pattern))]
    places = [str(path.relative_to(root)) for path in found]
    return Files(
        [
            *theme,
            *(
                File(place, str(root), config.site_dir, config.use_directory_urls)
                for place in places
            ),
        ]
    )
