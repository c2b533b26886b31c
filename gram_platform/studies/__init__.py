"""What a study is: its definition, flags, nodes, execution, tables and report."""

from gram_platform.studies.definition import Preset, Study
from gram_platform.studies.run import main

__all__ = ["Preset", "Study", "main"]
