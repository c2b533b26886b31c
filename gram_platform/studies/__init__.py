"""Declares and runs studies and searches."""

from gram_platform.studies.definition import Preset, Study
from gram_platform.studies.run import main

__all__ = ["Preset", "Study", "main"]
