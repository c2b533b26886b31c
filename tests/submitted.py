"""Plans and runs a study or a search in this process, as its command line does."""

from collections.abc import Sequence
from dataclasses import fields, replace

from gram_platform.store import Store
from gram_platform.studies.definition import Study
from gram_platform.studies.flags import Flags, MemberFlags, parse_flags
from gram_platform.studies.make_plan import make_plan
from gram_platform.studies.plan import Plan, StudyPlan
from gram_platform.studies.searches.command import make_campaign_plan, own_flags
from gram_platform.studies.searches.definition import Search, make_search_plan


def parse(study: Study, words: Sequence[str]) -> Flags:
    """The flags of a command line, which nothing has checked."""
    return parse_flags(own_flags(study), "", list(words))


def flags_of(study: Study, **values: object) -> Flags:
    """The flags of a study by name, whatever box they are in."""
    flags = Flags(own_flags(study)())
    for box in fields(Flags):
        group = getattr(flags, box.name)
        given = {f.name: values.pop(f.name) for f in fields(group) if f.name in values}
        flags = replace(flags, **{box.name: replace(group, **given)})
    assert not values
    return flags


def plan_of(study: Study, words: Sequence[str] | Flags) -> Plan:
    flags = words if isinstance(words, Flags) else parse(study, words)
    return make_search_plan(study, flags) if isinstance(study, Search) else make_plan(study, flags)


def study_plan(study: Study, words: Sequence[str] | Flags) -> StudyPlan:
    """The only study, or the search, of a plan."""
    return plan_of(study, words).studies[0]


def execute(study: Study, words: Sequence[str] | Flags) -> int:
    """Runs a study, after the search that it begins with, or a search."""
    plan = plan_of(study, words)
    if isinstance(study, Search):
        from gram_platform.studies.drive import drive

        return drive(plan)
    from gram_platform.studies.campaign import drive_campaign

    return drive_campaign(plan)


def execute_campaign(
    studies: Sequence[Study], searches: Sequence[Search], words: Sequence[str]
) -> int:
    """Runs studies and searches together."""
    from gram_platform.studies.campaign import drive_campaign

    plan, others = make_campaign_plan(studies, searches, parse_flags(MemberFlags, "", list(words)))
    return drive_campaign(plan, others)


def approved(plan: Plan) -> Plan:
    """The plan on its device, after everything that may refuse it before its data is packed."""
    from gram_platform.studies.drive import approve_cost
    from gram_platform.studies.packing import require_supply
    from gram_platform.studies.workplace import choose_device

    require_supply(plan.studies)
    store = Store(plan.storage)
    plan = plan.on(choose_device(plan, store))
    approve_cost(plan, store)
    return plan
