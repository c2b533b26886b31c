"""Builds the site of a storage with the sections of every measurement: `python -m gram_platform.studies.site ROOT URI`.

Studies and searches run it as a separate process when they end, so that a failure here cannot harm them.
"""

import atexit
import gc
import sys
from functools import partial

from gram_platform.config.endings import escape_output
from gram_platform.config.terminal import say
from gram_platform.pages import site
from gram_platform.store import Store
from gram_platform.studies.measurements import MEASUREMENTS

build_site = partial(site.build_site, measurements=MEASUREMENTS)
watch_site = partial(site.watch_site, measurements=MEASUREMENTS)

if __name__ == "__main__":
    atexit.register(gc.freeze)  # as in `exit_with`
    escape_output()
    root, tracking_uri = sys.argv[1:]
    say(build_site(Store(root), tracking_uri).index)
