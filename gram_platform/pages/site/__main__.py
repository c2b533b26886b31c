"""Builds the site of a storage: `python -m gram_platform.pages.site ROOT URI`.

Studies and searches run it as a separate process when they end, so that a failure here cannot harm them.
"""

import atexit
import gc
import sys

from gram_platform.config.endings import escape_output
from gram_platform.config.terminal import say
from gram_platform.pages.site.build import build_site
from gram_platform.store import Store

if __name__ == "__main__":
    atexit.register(gc.freeze)  # the collections at shutdown would walk every object of the libraries
    escape_output()
    root, tracking_uri = sys.argv[1:]
    say(build_site(Store(root), tracking_uri).index)
