"""Builds the site of a storage: an index, a page for every study and search, and one of all claims.

The pages are static files. `build.py` writes those whose facts have changed; `facts.py` reads the storage, `pages.py`
and the files that it imports turn facts into pages. Every number comes from `analysis/`. Runs are in MLflow.
"""

from gram_platform.pages.site.build import build_site, watch_site

__all__ = ["build_site", "watch_site"]
