"""The site of a storage: an index, a page for every study, search and run, and one of all claims, as static files.

`build.py` writes it, and again only the pages whose facts have changed; `facts.py` and `studies.py` read the storage,
the other files turn facts into sections. Nothing here is computed that `analysis/` does not compute.
"""

from gram_platform.pages.site.build import build_site, watch_site

__all__ = ["build_site", "watch_site"]
