"""Implements `gram run`: the studies and searches of `studies/library/`, by name, from wherever the package is."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Literal

from gram_platform.cli.flags import Positional
from gram_platform.config.identity import require_choice
from gram_platform.studies import Study, library
from gram_platform.studies.campaign import run_searched
from gram_platform.studies.flags import Flags, checked, parse_flags
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.run import checked_flags, run_search
from gram_platform.studies.session import exit_with

STUDIES = tuple(sorted(module.name for module in iter_modules(library.__path__)))
StudyName = Literal[STUDIES]


def run_command(study: Positional[StudyName]) -> None:
    """Run a study or a search by name, as `python experiments/NAME.py` does; `gram run NAME --help` lists its flags.

    Args:
        study: name of the study or search; its own flags follow
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


def find_study(name: str) -> Study:
    """Returns the study or search with this name; ValueError if there is none."""
    require_choice("study", name, STUDIES)
    module = import_module(f"{library.__name__}.{name}")
    return module.SEARCH if hasattr(module, "SEARCH") else module.STUDY
