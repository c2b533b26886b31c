"""Declares and runs studies and searches. What runs them is imported on first use: a declaration needs no Ray."""

from typing import TYPE_CHECKING

from gram_platform.studies.definition import Preset, Study

if TYPE_CHECKING:
    from gram_platform.studies.command import main

__all__ = ["Preset", "Study", "main"]


def __getattr__(name: str) -> object:
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gram_platform.studies.command import main

    return main
