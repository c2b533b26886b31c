"""The record of a study, made from its graph when it is submitted."""

from collections.abc import Mapping

from gram_platform.analysis.order import MEAN
from gram_platform.analysis.ratios import VARIANT
from gram_platform.config import CORE
from gram_platform.config.flops import total_parameters
from gram_platform.methods import Setting
from gram_platform.methods.costs import method_costs
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.record import StudyRecord
from gram_platform.studies.build import Graph
from gram_platform.studies.definition import FAMILIES, NOT_REPRODUCED, OURS


def record_of(graph: Graph) -> StudyRecord:
    flags, setting = graph.flags, graph.settings[0]
    routing, data = setting.routing, ", ".join(graph.data_ids)
    kinds = dict.fromkeys(cell.routing.accumulation for cell in graph.settings)
    variants = dict.fromkeys(tags["variant"] for node in graph.entries if "variant" in (tags := dict(node.tags)))
    ranges = {size: graph.preset.seeds(size, flags.seeds, flags.first_seed) for size in flags.sizes}
    seeds = seeds_text({size: len(own) for size, own in ranges.items()})
    first = next(iter(ranges.values())).start
    facts = (
        f"Preset {flags.preset}: {FAMILIES[graph.preset.family]}.",
        f"Corpus {flags.corpus} (data {data}), {seeds} seeds from {first}.",
        f"Routing: p_as {routing.p_aux_spread}, p_cr {routing.p_core_robust}, p_af {_factors(setting)}, "
        f"{' or '.join(kinds)} accumulation; compute {'' if setting.equal_compute else 'not '}matched by lambda.",
    )
    if graph.preset.family != OURS:
        facts += (NOT_REPRODUCED,)
    params = {"preset": flags.preset, "family": graph.preset.family, "data_id": data, "seeds": seeds}
    params |= {"sizes": ",".join(flags.sizes), "methods": ",".join(flags.methods)}
    if flags.law:
        facts += (f"Learning rates and batches by the law {flags.law}.",)
    if flags.maxent:
        facts += (f"MaxEnt's rate and weight of every profile from the search {flags.maxent}.",)
    if flags.start:
        facts += (f"Training begins with the imported model {flags.start}.",)
    given = {"law": flags.law, "maxent": flags.maxent, "start": flags.start}
    params |= {name: value for name, value in given.items() if value}
    return StudyRecord(
        name=graph.study.name,
        title=graph.study.title,
        question=graph.study.question,
        facts=facts,
        params=params,
        sizes=flags.sizes,
        parameters={s.size.name: total_parameters(s.size.dense()) for s in graph.settings},
        profile=graph.study.profile or _compared_profile(setting),
        entries=tuple(_entry(node) for node in graph.entries),
        costs=_costs(graph),
        compare_with=graph.study.compare_with,
        varies=graph.study.varies,
        variants=tuple(variants),
        unit=graph.study.unit,
        own_baseline=graph.study.own_baseline,
        measurement=graph.preset.measurement.name,
        probed=tuple(n.id for n in graph.nodes if n.kind == "run" and n.config.eval_points.num_probes),
        by_modules=graph.preset.every_subset,
    )


def seeds_text(of_size: Mapping[str, int]) -> str:
    """The number of seeds, or the most common one and those of other sizes: `3 (2B 1, 5B 1)`."""
    counts = list(of_size.values())
    common = max(counts, key=counts.count)
    others = ", ".join(f"{size} {number}" for size, number in of_size.items() if number != common)
    return f"{common} ({others})" if others else str(common)


def _factors(setting: Setting) -> str:
    own = "".join(f" ({domain} {factor:.3g})" for domain, factor in setting.aux_factor_of)
    return f"{setting.aux_factor:.3g}{own}"


def _compared_profile(setting: Setting) -> str:
    """The only profile that is compared, the first of several, or their mean where core alone is among them."""
    if () in setting.profiles and len(setting.profiles) > 1:
        return MEAN
    return "+".join((CORE, *setting.profiles[0]))


def _entry(node: Node) -> dict:
    return {"id": node.id, "kind": node.kind, "tags": dict(node.tags)}


def _costs(graph: Graph) -> tuple[dict, ...]:
    """The cost of every method at every size, and of every variant that has it; seeds cost the same.

    A row of several variants names them all.
    """
    pairs = zip(graph.settings, graph.variants, strict=True)
    cells = {(setting.size.name, variant.name): (setting, variant) for setting, variant in pairs}
    variants_of: dict[tuple, list[str]] = {}  # by size and cost
    for (size, name), (setting, variant) in cells.items():
        for cost in method_costs(setting, [m for m in graph.flags.methods if variant.serves(m)]):
            variants_of.setdefault((("size", size), *cost.items()), []).append(name)
    named = [(dict(row), ", ".join(names)) for row, names in variants_of.items()]
    sizes, methods = graph.flags.sizes, graph.flags.methods
    named.sort(key=lambda pair: (sizes.index(pair[0]["size"]), methods.index(pair[0]["method"])))
    return tuple({**row, VARIANT: names} if names else row for row, names in named)
