"""Builds the site of a storage: an index, a page for every study, search and run, and one of all claims.

The pages are static files. `build.py` writes those whose facts have changed; `facts.py` and `studies.py` read the
storage, the other files turn facts into sections. Every number comes from `analysis/`.
"""

from gram_platform.pages.site.build import build_site, watch_site

__all__ = ["build_site", "watch_site"]
