"""`python -m gram_platform.site STORAGE TRACKING_URI`: what a study or search does at its end, in a process of its own.

The site lies above the studies: they start it by its name, and it cannot harm them.
"""

import sys

from gram_platform.site.build import build_site
from gram_platform.store import Store

if __name__ == "__main__":
    storage, tracking_uri = sys.argv[1:]
    print(build_site(Store(storage), tracking_uri).index)
