"""Implements `gram run`: the studies and searches of `studies/library/`, by name, from wherever the package is."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Literal

from gram_platform.cli.flags import Positional
from gram_platform.config.identity import require_choice
from gram_platform.config.plugins import Table
from gram_platform.studies import Study, library
from gram_platform.studies.campaign import run_searched
from gram_platform.studies.flags import Flags, checked, parse_flags
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.run import checked_flags, run_search
from gram_platform.studies.session import exit_with

OURS = tuple(sorted(module.name for module in iter_modules(library.__path__)))
OFFERED = Table("gram.studies", {}, is_usable=lambda study: isinstance(study, Study), reserved=OURS)


def run_command(study: Positional[Literal[OURS]]) -> None:
    """Run a study or a search by name, as `python experiments/NAME.py` does; `gram run NAME --help` lists its flags.

    Args:
        study: name of a study or search, one of these or of an installed package; its own flags follow
    """
    run_named(study, [])


def run_named(name: str, arguments: list[str]) -> None:
    """Runs a study or a search with its own flags, and ends the process; ValueError for an unknown name."""
    study = find_study(name)
    kind = study.flags_type if isinstance(study, Search) else Flags
    flags = parse_flags(kind, study.about, arguments, f"gram run {name}")
    if isinstance(study, Search):
        exit_with(lambda: run_search(study, checked_flags(study, flags)))
    exit_with(lambda: run_searched(study, checked(study, flags)))


def study_names() -> tuple[str, ...]:
    """Returns the names of our studies and searches, then those of installed packages."""
    return (*OURS, *OFFERED)


def find_study(name: str) -> Study:
    """Returns the study or search with this name; ValueError if there is none."""
    require_choice("study", name, study_names())
    if name in OFFERED:
        return OFFERED[name]
    module = import_module(f"{library.__name__}.{name}")
    return module.SEARCH if hasattr(module, "SEARCH") else module.STUDY
