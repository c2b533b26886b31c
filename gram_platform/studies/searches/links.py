"""Where people read about a search's runs: their pages in MLflow."""

from gram_platform.pages.results.record import LOCAL_UI
from gram_platform.tracking import Tracker, TrackingUnavailable


def run_links(tracker: Tracker | None) -> tuple[dict[str, str], str]:
    """({node id: page in MLflow}, a sentence on what the links need or why there are none)."""
    if tracker is None:
        return {}, "There are no links: nothing was written to MLflow."
    is_server = tracker.tracking_uri.startswith("http")
    try:
        nodes = tracker.runs().items()
        found = {
            node_id: tracker.run_url(run.info.run_id, None if is_server else LOCAL_UI) for (_, node_id), run in nodes
        }
    except TrackingUnavailable as error:
        return {}, f"There are no links: MLflow is away ({error})."
    needs = (
        "" if is_server else f"Links to MLflow open while `mlflow ui --backend-store-uri {tracker.tracking_uri}` runs."
    )
    return {node_id: url for node_id, url in found.items() if url}, needs
