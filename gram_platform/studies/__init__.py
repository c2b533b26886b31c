"""Declares and runs studies and searches.

What runs them is imported on first use: a declaration needs no Ray.
"""

from gram_platform.studies.definition import Preset, Study

__all__ = ["Preset", "Study", "main"]


def main(study: Study, arguments: list[str] | None = None) -> None:
    """Runs the command line of a study, and ends the process."""
    from gram_platform.studies.searches import command

    command.main(study, arguments)
