"""Mirrors the storage to MLflow, and reads runs and curves back as data frames.

No other package writes to MLflow.
"""

from gram_platform.tracking.connection import TrackingUnavailable, default_tracking_uri
from gram_platform.tracking.tracker import Tracker

__all__ = ["Tracker", "TrackingUnavailable", "default_tracking_uri"]
