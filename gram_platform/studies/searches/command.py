"""Runs the command line of a search, of a study, and of all of them together.

What executes nodes (torch, Ray, MLflow) is imported after the flags are read: help and misspelt
values need none of it.
"""

from collections.abc import Sequence

from gram_platform.config.endings import exit_with
from gram_platform.studies.definition import Study
from gram_platform.studies.flags import CampaignFlags, CommonFlags, Flags, parse, parse_flags
from gram_platform.studies.searches.definition import Search, parse_search

CAMPAIGN_ABOUT = (
    "The searches that studies begin with, every study as one graph, then the other searches: what"
    " any of them has trained is not trained again."
)


def main(study: Study, arguments: list[str] | None = None, prog: str | None = None) -> None:
    """Runs the command line `prog` of a study or a search, and ends the process."""
    exit_with(lambda: _run(study, arguments, prog))


def _run(study: Study, arguments: list[str] | None, prog: str | None) -> int:
    if isinstance(study, Search):
        of_search = parse_search(study, arguments, prog)
        from gram_platform.studies.searches.run import run_search

        return run_search(study, of_search)
    flags = parse(study, arguments, prog)
    from gram_platform.studies.campaign import run_searched

    return run_searched(study, flags)


def campaign_main(
    studies: Sequence[Study], searches: Sequence[Search], arguments: list[str] | None = None
) -> None:
    """Runs the command line of studies and searches together, and ends the process."""
    exit_with(lambda: _run_campaign(studies, searches, arguments))


def _run_campaign(
    studies: Sequence[Study], searches: Sequence[Search], arguments: list[str] | None
) -> int:
    flags = parse_flags(CampaignFlags, CAMPAIGN_ABOUT, arguments)
    from gram_platform.studies.campaign import run_campaign

    return run_campaign(studies, searches, flags)


def flags_of(study: Study) -> type[CommonFlags]:
    """Returns the kind of flags of a study or a search."""
    return study.flags_type if isinstance(study, Search) else Flags
