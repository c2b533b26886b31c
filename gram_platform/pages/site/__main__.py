"""Builds the site: `python -m gram_platform.pages.site STORAGE TRACKING_URI`.

Studies and searches start this at their end as a separate process: a failure here cannot harm them.
"""

import sys

from gram_platform.pages.site.build import build_site
from gram_platform.store import Store

if __name__ == "__main__":
    storage, tracking_uri = sys.argv[1:]
    print(build_site(Store(storage), tracking_uri).index)
