"""Implements `gram run`, which runs studies and searches by name, and `gram list`.

Imports torch, Ray and MLflow only to run a study, so that lists and help appear quickly.
"""

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, Literal, Union

import tyro

from gram_platform.cli.flags import AsJson, Positional
from gram_platform.cli.tables import say_json, say_rows
from gram_platform.config.flops import module_parameters, total_parameters
from gram_platform.config.identity import require_choice
from gram_platform.config.plugins import Table
from gram_platform.corpora import catalog_names
from gram_platform.corpora.resolution import describe_corpus, mixture
from gram_platform.methods import METHODS
from gram_platform.studies import Preset, Study, library
from gram_platform.studies.flags import Text, boxes_of
from gram_platform.studies.searches.command import main, own_flags
from gram_platform.studies.searches.definition import Search

OURS = tuple(sorted(module.name for module in iter_modules(library.__path__)))
OFFERED = Table("gram.studies", {}, is_usable=lambda study: isinstance(study, Study), reserved=OURS)


STUDY_HELP = f"{', '.join(OURS)}, or a study of an installed package; its own flags follow"


def run_command(
    study: Annotated[Positional[str], tyro.conf.arg(metavar="STUDY", help=STUDY_HELP)],
) -> None:
    """Run a study or search by name; `gram run NAME --help` lists its flags."""
    run_named(study, [])


def run_named(name: str, arguments: list[str]) -> None:
    if name.startswith("-"):
        raise ValueError(f"{name}: the study comes first, as in gram run scaling {name} ...")
    main(find_study(name), arguments, f"gram run {name}")


def run_with_studies() -> Any:
    """Returns a tyro type with a subcommand per study, for shell completion of `gram run`."""
    forms = {}
    for name in study_names():
        study = find_study(name)
        sizes = dict.fromkeys(size for preset in study.presets.values() for size in preset.sizes)
        values = {"preset": study.presets, "methods": METHODS, "sizes": sizes, "through": sizes}
        forms[name] = boxes_of(own_flags(study), values)
    return _subcommands(forms)


def list_with_kinds() -> Any:
    """Returns a tyro type with a subcommand per kind of list, for completion of `gram list`."""
    return _subcommands({what: partial(list_command, what) for what in LISTINGS})


def _subcommands(forms: Mapping[str, Any]) -> Any:
    named = ((form, tyro.conf.subcommand(name, prefix_name=False)) for name, form in forms.items())
    return Union[*(Annotated[one] for one in named)]


def study_names() -> tuple[str, ...]:
    return (*OURS, *OFFERED)


def find_study(name: str) -> Study:
    """Returns a study or search by name. Raises ValueError if there is none."""
    require_choice("study", name, study_names())
    if name in OFFERED:
        return OFFERED[name]
    module = import_module(f"{library.__name__}.{name}")
    return module.SEARCH if hasattr(module, "SEARCH") else module.STUDY


Row = dict[str, object]


def list_command(
    what: Positional[
        Literal["studies", "methods", "presets", "corpora", "sizes", "mixtures"]
    ] = "studies",
    study: Text = "",
    as_json: AsJson = False,
) -> None:
    """List what `gram run` can use: studies, methods, presets, corpora, sizes or mixtures.

    Args:
        what: what to list (`sizes`: layers, widths and parameters; `mixtures`: number of tokens and
            share of all tokens for each hub dataset)
        study: the study whose presets, sizes or mixtures are listed (default: all studies)
    """
    of_study = what in ("presets", "sizes", "mixtures")
    rows = list(LISTINGS[what](study) if of_study else LISTINGS[what]())
    if as_json:
        say_json(rows)
    elif rows:
        say_rows([list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)])


def _studies() -> Iterator[Row]:
    for name in study_names():
        study = find_study(name)
        kind = "search" if isinstance(study, Search) else "study"
        yield {"name": name, "kind": kind, "presets": list(study.presets), "title": study.title}


def _methods() -> Iterator[Row]:
    for name, plan in METHODS.items():
        text = inspect.getdoc(plan) or inspect.getmodule(plan).__doc__ or ""
        sentence = " ".join(text.split("\n\n")[0].split()).split(". ")[0]
        yield {"name": name, "about": sentence.rstrip(".") + "."}


def _presets_of(study: str) -> Iterator[tuple[str, str, Preset]]:
    for name in [study] if study else study_names():
        for preset_name, preset in find_study(name).presets.items():
            yield name, preset_name, preset


def _presets(study: str) -> Iterator[Row]:
    for name, preset_name, preset in _presets_of(study):
        yield {
            "study": name,
            "name": preset_name,
            "corpus": preset.corpus,
            "sizes": list(preset.sizes),
            "seeds": preset.num_seeds,
            "machine": preset.machine,
            "family": preset.family,
        }


def _sizes(study: str) -> Iterator[Row]:
    for name, preset_name, preset in _presets_of(study):
        for size in preset.sizes.values():
            yield {
                "study": name,
                "preset": preset_name,
                "name": size.name,
                "parameters": total_parameters(size.dense()),
                "core_tokens": size.core_tokens,
                "peak_lr": size.peak_lr,
                "batch_size": size.batch_size,
                "seq_len": size.seq_len,
                "layers": size.num_layers,
                "d_model": size.d_model,
                "core_mlp": size.d_core,
                "module_mlp": size.d_aux,
                "module_parameters": module_parameters(size.modular(("module",)), "module"),
            }


def _mixtures(study: str) -> Iterator[Row]:
    for name, preset_name, preset in _presets_of(study):
        for size in preset.sizes.values():
            parts = mixture(preset.corpus, size.core_tokens, preset.aux_share)
            for (domain, source), tokens in parts.items():
                yield {
                    "study": name,
                    "preset": preset_name,
                    "size": size.name,
                    "name": domain,
                    "source": source,
                    "tokens": round(tokens),
                    "share": f"{tokens / sum(parts.values()):.2%}",
                }


LISTINGS = {
    "studies": _studies,
    "methods": _methods,
    "presets": _presets,
    "corpora": lambda: [{"name": name, "about": describe_corpus(name)} for name in catalog_names()],
    "sizes": _sizes,
    "mixtures": _mixtures,
}


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
