"""Defines and plans searches.

The class that `Search.kind` names is imported after the flags are read, because it imports Ray,
Optuna and MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from gram_platform.config.identity import invalid, require_int
from gram_platform.store import Store
from gram_platform.studies.build import resolve_corpora, settings_of
from gram_platform.studies.definition import Study
from gram_platform.studies.flags import Flags, Number, Switch
from gram_platform.studies.make_plan import plan_of, read_study
from gram_platform.studies.plan import Plan, StudyPlan

if TYPE_CHECKING:
    from gram_platform.studies.searches.search_plan import SearchPlan


@dataclass(frozen=True)
class TrialFlags:
    """Which trials of a search to start.

    Args:
        max_concurrent: the most trials at once (default: as many as fit; on a cluster that can
            grow, all trials of a grid or sweep, or the first ten of an Optuna study)
        report_only: rewrite the tables and the report without starting trials
    """

    title = "search"

    max_concurrent: Number = 0
    report_only: Switch = False


@dataclass(frozen=True)
class Search(Study):
    """A study whose trials are proposed by the class that `kind` names."""

    # As module:class; see the module `search_plan`.
    kind: str = ""
    flags_type: type[TrialFlags] = TrialFlags
    # Reads the flags of the kind into the fields of its class; ValueError for bad values.
    read: Callable[[Search, Any, StudyPlan], Mapping[str, Any]] = lambda *_: {}
    # Grids or values of knobs by preset. MaxEnt's ranges are in the presets.
    points: Mapping[str, Any] = field(default_factory=dict)
    # Whether Optuna chooses the points, and keeps them in a database.
    needs_optuna: bool = False


def optuna_place(uri: str, storage: str, is_written: bool = False) -> str:
    """Returns the URL of Optuna's database, by default a SQLite file in the local `storage`.

    If `is_written`, raises PermissionError if this process may not write to the file.
    """
    from gram_platform.config.crash_safe import require_rights
    from gram_platform.tracking.database import (
        database_path,
        database_uri,
        require_driver,
        with_absolute_path,
    )

    store = Store(storage)
    if not (uri or store.is_local):
        expected = f"the URL of a database for the search's trials: {storage} cannot hold one"
        raise invalid("optuna_uri", None, expected)
    uri = uri or database_uri(f"{store.root}/optuna.db")
    if (path := database_path(uri)) is not None:
        if is_written:
            require_rights(path)
        return with_absolute_path("optuna_uri", uri)
    if "://" not in uri:
        expected = "a database's URL such as postgresql://host/optuna or sqlite:////path/optuna.db"
        raise invalid("optuna_uri", uri, expected)
    require_driver("optuna_uri", uri)
    return uri


def make_search_plan(search: Search, flags: Flags) -> Plan:
    """Returns the plan of a search with its nodes. Raises ValueError that names an invalid flag."""
    own = flags.own
    assert isinstance(own, TrialFlags)
    part = read_study(search, flags, flags.subject.changes)
    plan = plan_of(flags, (part,))
    require_int("max_concurrent", own.max_concurrent, 0)
    given, uri = part.study.read(part.study, own, part), ""
    if search.needs_optuna:
        is_written = not (plan.dry_run or own.report_only)
        uri = optuna_place(plan.optuna_uri, plan.storage, is_written)
    elif plan.optuna_uri:
        expected = f"no value: {search.name} chooses its points itself"
        raise invalid("optuna_uri", plan.optuna_uri, expected)
    searched = search_plan_of(part, given, uri, plan.dry_run).with_nodes()
    return replace(
        plan,
        studies=(searched,),
        report_only=own.report_only,
        max_concurrent=own.max_concurrent,
    )


def search_plan_of(
    part: StudyPlan, given: Mapping[str, Any], optuna_uri: str, is_dry: bool
) -> SearchPlan:
    """Adds corpora and settings to a search. `given` has the other fields of the search's class."""
    from gram_platform.studies.searches.search_plan import SearchPlan

    recipes = resolve_corpora(part.preset, part.choice)
    settings = settings_of(part.preset, part.choice, recipes)
    kind = resolve_name(part.study.kind)(settings=settings, **given)
    return SearchPlan(
        # See `MaxEntRanges.search`.
        replace(part.study, name=getattr(kind, "name", part.study.name)),
        part.preset_name,
        part.changes,
        part.preset,
        part.choice,
        part.ranks,
        recipes={size: (recipe,) for size, recipe in recipes.items()},
        settings=settings,
        kind=kind,
        optuna_uri=optuna_uri,
        is_dry=is_dry,
    )
