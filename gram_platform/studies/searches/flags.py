"""Defines and checks the flags of searches: those that they share with studies, and limits, grids and ranges."""

from dataclasses import dataclass, replace

from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.store import Store
from gram_platform.studies.flags import CommonFlags, absolute_place, split_list

AUTO = "auto"


@dataclass(frozen=True)
class SearchFlags(CommonFlags):
    """The flags of every search."""

    max_concurrent: int = 0
    """at most so many trials at once (default: what the cluster holds; on one that can grow also the trials that depend
    on no result: all of a grid, the first ten of an Optuna study)"""
    report_only: bool = False
    """build tables and report again from what is stored; start no trial"""


@dataclass(frozen=True)
class OptunaFlags(SearchFlags):
    """The flags of searches with Optuna."""

    trials: int = 0
    """trials to be complete, in each Optuna study of the search (default: the preset's)"""
    space: tuple[str, ...] = ()
    """ranges in place of the preset's: name=low:high, name=log:low:high, or name=value to hold one"""


@dataclass(frozen=True)
class GridFlags(SearchFlags):
    """The flags of the LR/batch grid."""

    lrs: tuple[str, ...] = (AUTO,)
    """peak learning rates for every size; auto: the preset's, around each size's own"""
    batches: tuple[str, ...] = (AUTO,)
    """batches in sequences for every size; auto: the preset's, around each size's own"""
    window: float = 0.0
    """the fit uses cells within this fraction of the lowest loss (0.05: 5%; default: all cells)"""
    max_extensions: int = -1
    """rows or columns that each side of a grid may grow by while its minimum lies there (default: the preset's)"""


def checked_search_flags(flags: SearchFlags) -> SearchFlags:
    """Checks the flags that studies do not have, after `checked_common`; ValueError naming flag and value."""
    require_int("max_concurrent", flags.max_concurrent, 0)
    if isinstance(flags, OptunaFlags):
        require_int("trials", flags.trials, 0)
        uri = _database("optuna_uri", flags.optuna_uri or _default_database(flags.storage))
        return replace(flags, space=split_list(flags.space), optuna_uri=uri)
    if isinstance(flags, GridFlags):
        require_real("window", flags.window, 0.0)
        require_int("max_extensions", flags.max_extensions, -1)
        lists = {"lrs": _numbers("lrs", flags.lrs), "batches": _numbers("batches", flags.batches)}
        return replace(flags, **lists)
    return flags


def _numbers(field: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Splits a list of positive numbers; () for auto."""
    if texts == (AUTO,):
        return ()
    items = split_list(texts)
    if not items:
        raise invalid(field, texts, f"positive numbers, at least one, or {AUTO}")
    for item in items:
        try:
            require_real(field, float(item), 0.0, open_low=True)
        except ValueError as error:
            raise invalid(field, item, "positive numbers") from error
    if len({float(item) for item in items}) != len(items):
        raise invalid(field, items, "each value once")
    return items


def _default_database(storage: str) -> str:
    """Returns SQLite inside a local storage; ValueError for an object store, which needs a server."""
    store = Store(storage)
    if not store.is_local:
        raise invalid("optuna_uri", None, f"the URL of a database for the search's trials: {storage} cannot hold one")
    return f"sqlite:///{store.root}/optuna.db"


def _database(field: str, uri: str) -> str:
    """Returns a database's URL, a SQLite path made absolute."""
    if uri.startswith("sqlite:///"):
        return "sqlite:///" + absolute_place(field, uri.removeprefix("sqlite:///"))
    if "://" not in uri:
        raise invalid(field, uri, "a database's URL such as postgresql://host/optuna or sqlite:////path/optuna.db")
    return uri
