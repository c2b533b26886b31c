"""Lists the measurements. Each is one object: the nodes that a study runs, and how their results are read and shown.

A new one is a file with a class like `Losses`, and a line in this table.
"""

from gram_platform.studies.measurements.losses import Losses
from gram_platform.studies.measurements.samples import Samples
from gram_platform.studies.measurements.tokens import TokenIncreases

MEASUREMENTS = {measurement.name: measurement for measurement in (Losses, TokenIncreases, Samples)}

__all__ = ["MEASUREMENTS", "Losses", "Samples", "TokenIncreases"]
