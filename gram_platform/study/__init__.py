"""What a study is: its definition, flags, nodes, execution, tables and report."""

from gram_platform.study.definition import Preset, Study
from gram_platform.study.run import main

__all__ = ["Preset", "Study", "main"]
