"""Declares a search, a study whose points come from a source, with the flags of each kind.

What executes trials (Ray, Optuna, MLflow) is imported by `Search.work_type` alone: a declaration
and its `--help` need none of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gram_platform.config.identity import invalid, require_int
from gram_platform.store import Store
from gram_platform.studies.definition import Study, with_changes
from gram_platform.studies.flag_groups import FlagGroup, Number, Switch, Texts
from gram_platform.studies.flag_values import split_list
from gram_platform.studies.flags import CommonFlags, checked_common, parse_flags

if TYPE_CHECKING:
    from gram_platform.studies.searches.work import SearchWork


# -------------------------------------------------------------------------------------------- flags


@dataclass(frozen=True)
class TrialFlags(FlagGroup):
    """Of this search.

    Args:
        max_concurrent: at most so many trials at once (default: what the cluster holds; on one that
            can grow also the trials that depend on no result: all of a grid, the first ten of an
            Optuna study)
        report_only: build tables and report again from what is stored; start no trial
    """

    title = "search"

    max_concurrent: Number = 0
    report_only: Switch = False


@dataclass(frozen=True)
class SearchFlags(TrialFlags, CommonFlags):
    """The flags of every search."""

    def checked(self) -> SearchFlags:
        """Returns the flags that studies do not have with defaults filled in, after
        `checked_common`.

        ValueError naming flag and value.
        """
        require_int("max_concurrent", self.max_concurrent, 0)
        return self


@dataclass(frozen=True)
class OptunaTrialFlags(TrialFlags):
    """Of this search.

    Args:
        trials: trials to be complete, in each Optuna study of the search (default: the preset's)
        space: ranges in place of the preset's: name=low:high, name=log:low:high, or name=value to
            hold one
    """

    trials: Number = 0
    space: Texts = ()


@dataclass(frozen=True)
class OptunaFlags(OptunaTrialFlags, SearchFlags):
    """The flags of searches with Optuna."""

    def checked(self) -> OptunaFlags:
        require_int("trials", self.trials, 0)
        uri = _optuna_uri(self.optuna_uri, self.storage)
        return replace(super().checked(), space=split_list(self.space), optuna_uri=uri)


def _optuna_uri(uri: str, storage: str) -> str:
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


# ----------------------------------------------------------------------------------------- searches


@dataclass(frozen=True)
class Search(Study):
    """The declaration of a search; each kind is a subclass."""

    flags_type = SearchFlags

    def of_preset(self, name: str) -> Search:
        """Returns the search as one of its presets changes it."""
        return self

    def checked(self, flags: SearchFlags) -> SearchFlags:
        """Returns the flags with the kind's defaults; ValueError for flags that it cannot serve."""
        return flags

    def work_type(self) -> type[SearchWork]:
        """Returns the class of the search on its corpora, whose modules it imports."""
        raise NotImplementedError


def parse_search(
    search: Search, arguments: list[str] | None = None, prog: str | None = None
) -> SearchFlags:
    """Returns the checked flags of a search; ValueError as `checked_flags`."""
    return checked_flags(search, parse_flags(search.flags_type, search.about, arguments, prog))


def checked_flags(search: Search, flags: SearchFlags) -> SearchFlags:
    """Returns the flags with defaults filled in.

    ValueError naming the flag, the value and what is expected.
    """
    common = checked_common(search, flags)
    return with_changes(search, common.preset, common.changes).checked(common.checked())
