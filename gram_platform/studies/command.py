"""Runs the command line of a study without a search.

What executes nodes (torch, Ray, MLflow) is imported after the flags are read: help and misspelt values need none of it.
"""

from gram_platform.config.endings import exit_with
from gram_platform.studies.definition import Study
from gram_platform.studies.flags import parse


def main(study: Study, arguments: list[str] | None = None) -> None:
    """Runs the command line of an experiment file, and ends the process."""
    exit_with(lambda: _run(study, arguments))


def _run(study: Study, arguments: list[str] | None) -> int:
    flags = parse(study, arguments)
    from gram_platform.studies.run import run_study

    return run_study(study, flags)
