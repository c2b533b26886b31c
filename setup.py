"""Completes the package's description at build time: pyproject.toml has all else.

A package index shows README.md without the files beside it. `$GRAM_REPOSITORY`, such as https://github.com/ORG/NAME,
says where these are; without it the links become text, and the images are left out.
"""

import os
import re
from pathlib import Path

from setuptools import setup

REPOSITORY = os.environ.get("GRAM_REPOSITORY", "").rstrip("/")
RELATIVE = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:|#)([^)]+)\)")


def absolute(link: re.Match[str]) -> str:
    """Returns a relative link or image of README.md as it works elsewhere."""
    mark, text, place = link.groups()
    if REPOSITORY:
        return f"{mark}[{text}]({REPOSITORY}/{'raw' if mark else 'blob'}/HEAD/{place})"
    return "" if mark else text


README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(
    long_description=RELATIVE.sub(absolute, README),
    long_description_content_type="text/markdown",
    project_urls={
        "Repository": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Documentation": f"{REPOSITORY}/tree/HEAD/docs",
    }
    if REPOSITORY
    else {},
)
