"""Builds the site of a storage: the state of every study and search, links to their reports, all claims.

    python dashboards/build.py --storage ~/.gram --out ~/site

This is the same as `gram report`. Open the folder's `index.html`: the pages, and the copies of the reports beside them,
need no network and no server.
"""

import tyro

from gram_platform.cli.studies import site_command
from gram_platform.config.endings import escape_output, exit_codes

if __name__ == "__main__":
    escape_output()
    with exit_codes():
        tyro.cli(site_command, description=__doc__)
