"""When a study sends its nodes to MLflow."""

import pytest

from gram_platform.store import Store
from gram_platform.studies.live import Mirror
from gram_platform.tracking import Tracker, TrackingUnavailable, default_tracking_uri


def test_a_study_that_ends_soon_after_mlflow_came_back_is_sent(storage):
    """For a minute after a failure nothing is sent, so that training is not slowed; at the end
    there is none."""
    tracker, database = Tracker(default_tracking_uri(str(storage))), storage / "mlflow.db"
    database.symlink_to(storage / "elsewhere")
    for _ in range(2):
        with pytest.raises(TrackingUnavailable):
            tracker.prepare_database()
        database.unlink(missing_ok=True)
    said: list[str] = []
    mirror = Mirror(tracker, Store(str(storage)), said.append)
    mirror.start()
    mirror.finish(())
    assert not mirror.is_away
    assert not said
    assert database.is_file()
