"""Describes a study for its tables and report: the facts of its flags, its preset and its corpus."""

from gram_platform.analysis.ratios import MEAN
from gram_platform.config import CORE
from gram_platform.corpora.recipe_file import recipe_text
from gram_platform.methods import Setting
from gram_platform.pages.results.record import StudyRecord, entries_of
from gram_platform.studies.build import Graph
from gram_platform.studies.definition import (
    FAMILIES,
    NOT_REPRODUCED,
    OURS,
    SOURCES,
    preset_params,
    seeds_text,
    shown_place,
)
from gram_platform.studies.unit_errors import unit_errors_of


def record_of(graph: Graph) -> StudyRecord:
    """Describes a study for its tables and report, with the facts of its flags and preset."""
    flags, setting = graph.flags, graph.settings[0]
    routing, data = setting.routing, graph.data_id
    kinds = dict.fromkeys(each.routing.accumulation for each in graph.settings)
    variants = dict.fromkeys(names["variant"] for node in graph.entries if "variant" in (names := node.names))
    ranges = {size: graph.preset.seeds(size, flags.seeds, flags.first_seed) for size in flags.sizes}
    seeds = seeds_text({size: len(found) for size, found in ranges.items()})
    first = next(iter(ranges.values())).start
    facts = (
        f"Preset {flags.preset}: {FAMILIES[graph.preset.family]}.",
        f"Corpus {shown_place(flags.corpus)} (data {data}), {seeds} seed{'s' * (seeds != '1')} from {first}.",
        f"Routing: p_as {routing.p_aux_spread}, p_cr {routing.p_core_robust}, p_af {_factors(setting)}, "
        f"{' or '.join(kinds)} accumulation; compute {'' if setting.equal_compute else 'not '}matched by lambda.",
    )
    if graph.preset.family != OURS:
        facts += (NOT_REPRODUCED,)
    if flags.changes:
        facts += (f"Changed from the preset: {'; '.join(flags.changes)}.",)
    params = preset_params(flags.preset, flags.changes)
    if recipe := recipe_text(flags.corpus):
        params["recipe"] = recipe
    params |= {"family": graph.preset.family, "data_id": data, "seeds": seeds}
    params |= {"sizes": ",".join(flags.sizes), "methods": ",".join(flags.methods)}
    facts += tuple(SOURCES[flag].format(shown_place(source)) for flag, source in flags.sources.items())
    params |= flags.sources
    facts += tuple(f"Against its evidence: {doubt}." for doubt in graph.law_doubts)
    return StudyRecord(
        **graph.study.description,
        facts=facts,
        params=params,
        sizes=flags.sizes,
        parameters=graph.parameters,
        profile=graph.study.profile or _compared_profile(setting),
        entries=entries_of(graph.entries),
        costs=graph.costs,
        variants=tuple(variants),
        measurement=graph.preset.measurement.name,
        probed=tuple(n.id for n in graph.nodes if n.is_run and n.config.eval_points.num_probes),
        by_modules=graph.preset.every_subset,
        unit_errors=unit_errors_of(graph),
    )


def _factors(setting: Setting) -> str:
    exceptions = "".join(f" ({domain} {factor:.3g})" for domain, factor in setting.aux_factor_of)
    return f"{setting.aux_factor:.3g}{exceptions}"


def _compared_profile(setting: Setting) -> str:
    """Returns the first compared profile, or `mean` if core alone is one of several."""
    if () in setting.profiles and len(setting.profiles) > 1:
        return MEAN
    return "+".join((CORE, *setting.profiles[0]))
