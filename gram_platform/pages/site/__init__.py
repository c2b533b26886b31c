"""Builds the site of a storage: an index of all studies and searches, and a page of all claims.

The site leads to the reports that studies and searches have written, and renders none again. `build.py` writes what has
changed; `facts.py` reads the storage, `index.py` and `claims.py` turn facts into pages. Runs are in MLflow.
"""

from gram_platform.pages.site.build import build_site, watch_site

__all__ = ["build_site", "watch_site"]
