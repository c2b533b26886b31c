"""Declares a search, a study whose points come from a source, with the flags of each kind.

What executes trials (Ray, Optuna, MLflow) is imported by `Search.work_type` alone: a declaration
and its `--help` need none of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from gram_platform.config.identity import invalid
from gram_platform.store import Store
from gram_platform.studies.build import resolve_corpora, settings_of
from gram_platform.studies.definition import Study
from gram_platform.studies.flags import Flags
from gram_platform.studies.make_plan import plan_of, read_study
from gram_platform.studies.plan import Plan, StudyPlan
from gram_platform.studies.searches.trial_flags import TrialFlags

if TYPE_CHECKING:
    from gram_platform.studies.searches.work import SearchWork


def optuna_place(uri: str, storage: str) -> str:
    """Returns the URL of a database, by default SQLite in a local storage; a SQLite path is made
    absolute."""
    from gram_platform.tracking.database import database_path, database_uri, with_absolute_path

    store = Store(storage)
    if not (uri or store.is_local):
        raise invalid(
            "optuna_uri",
            None,
            f"the URL of a database for the search's trials: {storage} cannot hold one",
        )
    uri = uri or database_uri(f"{store.root}/optuna.db")
    if database_path(uri) is not None:
        return with_absolute_path("optuna_uri", uri)
    if "://" not in uri:
        expected = "a database's URL such as postgresql://host/optuna or sqlite:////path/optuna.db"
        raise invalid("optuna_uri", uri, expected)
    return uri


@dataclass(frozen=True)
class Search(Study):
    """The declaration of a search; each kind is a subclass."""

    flags_type = TrialFlags
    # Whether Optuna chooses its points, and keeps them in a database.
    needs_optuna = False

    def of_preset(self, name: str) -> Search:
        """Returns the search as one of its presets changes it."""
        return self

    def checked(self, flags: TrialFlags, part: StudyPlan) -> TrialFlags:
        """Returns the flags with the kind's defaults; ValueError for flags that it cannot serve."""
        return flags

    def work_type(self) -> type[SearchWork]:
        """Returns the class of the search on its corpora, whose modules it imports."""
        raise NotImplementedError


def make_search_plan(search: Search, flags: Flags) -> Plan:
    """Returns what a search's submission will do, with the nodes that are known before its trials.

    ValueError naming the flag, the value and what is expected, before any work starts.
    """
    part = read_study(search, flags, flags.subject.changes)
    plan = plan_of(flags, (part,))
    own = part.study.checked(flags.own.checked(), part)
    uri = optuna_place(plan.optuna_uri, plan.storage) if search.needs_optuna else ""
    return replace(plan, studies=(work_of(part, own, uri, plan.dry_run).planned(),))


def work_of(part: StudyPlan, own: TrialFlags, optuna_uri: str, is_dry: bool = False) -> SearchWork:
    """Returns the search on its corpora with the setting of every size and seed, without nodes."""
    search = part.study.of_preset(part.preset_name)
    recipes = resolve_corpora(part.preset, part.choice)
    known = {field.name: getattr(part, field.name) for field in fields(StudyPlan)}
    known |= {
        "study": search,
        "recipes": {size: (recipe,) for size, recipe in recipes.items()},
        "settings": settings_of(part.preset, part.choice, recipes),
    }
    return search.work_type()(**known, flags=own, optuna_uri=optuna_uri, is_dry=is_dry)
