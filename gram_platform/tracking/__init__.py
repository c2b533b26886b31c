"""MLflow as a mirror of the storage: the only code that writes to it."""

from gram_platform.tracking.connection import TrackingUnavailable
from gram_platform.tracking.tracker import Tracker, default_tracking_uri

__all__ = ["Tracker", "TrackingUnavailable", "default_tracking_uri"]
