"""Stores runs, evaluations, imported models and packed corpora. MLflow mirrors the first two."""

from gram_platform.store.directories import EvaluationDirectory
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.leases import LeaseHeld
from gram_platform.store.root import Store
from gram_platform.store.runs import RunDirectory

__all__ = ["CorruptFile", "EvaluationDirectory", "Folder", "LeaseHeld", "RunDirectory", "Store"]
