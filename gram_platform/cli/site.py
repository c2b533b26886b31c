"""`gram report` without a study, and `dashboards/build.py`: the site of a storage."""

import sys
from contextlib import suppress

from gram_platform.cli.flags import Storage, TrackingUri, stored
from gram_platform.config.identity import invalid
from gram_platform.pages.site.build import tracking_of
from gram_platform.studies.site import build_site, watch_site


def site_command(storage: Storage = "", tracking_uri: TrackingUri = "", out: str = "", watch: float = 0.0) -> None:
    """Build the site of a storage: an index, a page for every study, search and run, and one of all claims.

    Args:
        storage: folder or URL of the storage
        tracking_uri: MLflow server or database
        out: folder of the site; default: `site` in the storage
        watch: build it again every so many seconds if something has changed, until interrupted
    """
    store = stored(storage)
    uri, why_not = tracking_of(store, tracking_uri)
    if watch < 0:
        raise invalid("watch", watch, "a positive number of seconds, or 0 to build once")
    if watch:
        with suppress(KeyboardInterrupt):
            watch_site(store, uri, watch, lambda text: print(text, flush=True), out, why_not)
        return
    built = build_site(store, uri, out, why_not)
    for problem in built.problems:
        print(f"warning: {problem}", file=sys.stderr)
    print(f"{built.num_runs} runs, {built.num_written} files written now\n{built.index}")
