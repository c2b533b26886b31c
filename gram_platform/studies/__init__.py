"""Declares and runs studies and searches.

Ray is imported only when nodes are executed.
"""

from gram_platform.config.endings import exit_with
from gram_platform.studies.definition import Preset, Study

__all__ = ["Preset", "Study", "main"]


def main(study: Study, arguments: list[str] | None = None) -> None:
    """Runs a study's command line and exits the process. Never starts a search."""

    def run() -> int:
        from gram_platform.studies.flags import StudyFlags, parse_flags
        from gram_platform.studies.make_plan import make_plan

        plan = make_plan(study, parse_flags(StudyFlags, study.about, arguments))
        from gram_platform.studies.drive import drive

        return drive(plan)

    exit_with(run)
