"""Builds the site of a storage: the state of every study and search, a page for each, all claims.

    python dashboards/build.py --storage ~/.gram --out ~/site

This is the same as `gram report`. Open the folder's `index.html`: the pages need no network and no server.
"""

import sys

import tyro

from gram_platform.cli.studies import site_command
from gram_platform.config.terminal import say

if __name__ == "__main__":
    try:
        tyro.cli(site_command, description=__doc__)
    except ValueError as error:
        say(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
