"""The storage: directories of runs and evaluations. It is the truth, of which MLflow is a mirror."""

from gram_platform.store.directories import EvaluationDirectory
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.leases import LeaseHeld
from gram_platform.store.root import Store
from gram_platform.store.runs import RunDirectory

__all__ = ["CorruptFile", "EvaluationDirectory", "Folder", "LeaseHeld", "RunDirectory", "Store"]
