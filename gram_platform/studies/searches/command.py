"""Runs the command line of a study, a search or a campaign.

Imports torch, Ray and MLflow after reading the flags, so that help and flag errors appear quickly.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gram_platform.config.endings import exit_with
from gram_platform.config.identity import invalid, require_choice
from gram_platform.studies.definition import Study
from gram_platform.studies.flags import Flags, MemberFlags, StudyFlags, parse_flags, split_list
from gram_platform.studies.make_plan import make_plan
from gram_platform.studies.plan import Plan
from gram_platform.studies.searches.definition import Search, make_search_plan

NONE = "none"

CAMPAIGN_ABOUT = (
    "Runs the searches that studies begin with, all studies, then the other searches. No run is"
    " trained twice."
)


def main(study: Study, arguments: list[str] | None = None, prog: str | None = None) -> None:
    """Runs the command line `prog` of a study or a search, and exits the process."""

    def run() -> int:
        flags = parse_flags(own_flags(study), study.about, arguments, prog)
        if isinstance(study, Search):
            plan = make_search_plan(study, flags)
            from gram_platform.studies.drive import drive

            return drive(plan)
        plan = make_plan(study, flags)
        from gram_platform.studies.campaign import drive_campaign

        return drive_campaign(plan)

    exit_with(run)


def campaign_main(
    studies: Sequence[Study], searches: Sequence[Search], arguments: list[str] | None = None
) -> None:
    """Runs the command line of a campaign, and exits the process."""

    def run() -> int:
        flags = parse_flags(MemberFlags, CAMPAIGN_ABOUT, arguments)
        plan, others = make_campaign_plan(studies, searches, flags)
        from gram_platform.studies.campaign import drive_campaign

        return drive_campaign(plan, others)

    exit_with(run)


def make_campaign_plan(
    studies: Sequence[Study], searches: Sequence[Search], flags: Flags
) -> tuple[Plan, list[Plan]]:
    """Returns one plan for the chosen studies, and a plan for each chosen search."""
    own = flags.own
    assert isinstance(own, MemberFlags)
    if sizes := split_list(flags.subject.sizes):
        expected = "no value: each study has its own sizes; give --sizes to one study"
        raise invalid("sizes", sizes, expected)
    chosen = _choose("studies", own.studies, studies)
    optuna_uri, of_search = flags.storage.optuna_uri, []
    for search in _choose("searches", own.searches, searches):
        storage = replace(flags.storage, optuna_uri=optuna_uri if search.needs_optuna else "")
        search_flags = replace(flags, own=search.flags_type(), storage=storage)
        of_search.append(make_search_plan(search, search_flags))
    of_study = [make_plan(study, replace(flags, own=StudyFlags())) for study in chosen]
    if not (plans := [*of_study, *of_search]):
        raise invalid("studies", NONE, "at least one study or search")
    together = tuple(part for plan in of_study for part in plan.studies)
    return replace(plans[0], studies=together, optuna_uri=optuna_uri), of_search


def _choose(field: str, names: tuple[str, ...], known: Sequence[Any]) -> list:
    names = split_list(names)
    if names == (NONE,):
        return []
    by_name = {study.name: study for study in known}
    for name in names:
        require_choice(field, name, (*by_name, NONE))
    return [by_name[name] for name in names or by_name]


def own_flags(study: Study) -> type:
    return study.flags_type if isinstance(study, Search) else StudyFlags
