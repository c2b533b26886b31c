"""Mirrors the storage to MLflow, and reads runs and curves back as data frames. No other room writes to MLflow."""

from gram_platform.tracking.connection import TrackingUnavailable
from gram_platform.tracking.tracker import Tracker, default_tracking_uri

__all__ = ["Tracker", "TrackingUnavailable", "default_tracking_uri"]
