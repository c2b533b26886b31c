"""Builds the sections of a run's history: losses, norms, rates and routes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gram_platform.config import core_first, run_from_plain
from gram_platform.config.routing import CORE_MLP, SHARED, Plan, Route, module_set
from gram_platform.pages.figures.runs import KIND_STYLES, TOTAL, curves_figure, routes_figure, set_styles, sets_figure
from gram_platform.pages.figures.style import domain_styles
from gram_platform.pages.report.page import Section
from gram_platform.pages.site.words import columns_of
from gram_platform.store.checkpoints import NORM

Curves = dict[str, dict[int, float]]  # {name: {step: value}}


def curves_of(records: Iterable[Mapping]) -> Curves:
    """Collects every metric of a run's records."""
    curves: Curves = defaultdict(dict)
    for record in records:
        for name, value in record["metrics"].items():
            curves[name][record["step"]] = value
    return dict(curves)


def history_sections(records: Sequence[Mapping]) -> list[Section]:
    """Builds the sections of a run's records; a run without records has one that says so."""
    curves = curves_of(records)
    if not curves:
        return [Section("Losses", "Nothing is recorded yet: records come with the first checkpoint.")]
    return [_losses(curves), *_norms(curves), _rates(curves)]


def _losses(curves: Curves) -> Section:
    train, validation = _under(curves, "train/loss/"), _under(curves, "validation/loss/")
    styles = domain_styles([*train, *validation])
    figures = [curves_figure("Training loss by domain", "nats a token", train, styles, log=True)]
    if validation:
        title = "Validation loss by domain, every module active"
        figures.append(curves_figure(title, "nats a token", validation, styles, log=True))
    text = "Training losses are means over the steps since the record before, each domain on the routes that it drew."
    return Section("Losses", text, figures, table=_table({"train": train, "validation": validation}))


def _norms(curves: Curves) -> list[Section]:
    """Shows the norms by parameter set; old runs have only the norm of all gradients together."""
    gradients, weights = _under(curves, f"{NORM}gradient/"), _under(curves, f"{NORM}weights/")
    shown = {**gradients, TOTAL: curves.get("train/grad_norm", {})}
    styles = set_styles([*gradients, *weights])
    figures = [curves_figure("Gradient norm by parameter set, before clipping", "norm", shown, styles, log=True)]
    if weights:
        figures.append(curves_figure("Weight norm by parameter set", "norm", weights, styles))
    text = "Of a set: at the record's own step, where that step trained it. All together: mean since the record before."
    return [Section("Norms", text, figures, table=_table({"gradient": shown, "weights": weights}))]


def _rates(curves: Curves) -> Section:
    rate, lr = curves.get("train/tokens_per_second", {}), curves.get("train/lr", {})
    figures = [
        curves_figure("Throughput", "tokens a second", {"tokens a second": rate}, {}),
        curves_figure("Learning rate", "learning rate", {"learning rate": lr}, {}),
    ]
    text = "Tokens a second since the attempt at work began, its own evaluations included."
    return Section("Throughput", text, figures, table=_table({"": {"tokens_per_second": rate, "lr": lr}}))


def _under(curves: Curves, prefix: str) -> Curves:
    """Returns the curves with a prefix by the rest of their names, core first."""
    found = {name.removeprefix(prefix): curve for name, curve in curves.items() if name.startswith(prefix)}
    return {name: found[name] for name in core_first(tuple(found))}


def _table(groups: Mapping[str, Curves]) -> dict[str, list]:
    """Makes a row for each step and a column for each curve."""
    columns = {f"{group} {name}".strip(): curve for group, curves in groups.items() for name, curve in curves.items()}
    steps = sorted({step for curve in columns.values() for step in curve})
    values = {name: [curve.get(step, float("nan")) for step in steps] for name, curve in columns.items()}
    return {"step": steps, **values}


# ------------------------------------------------------------------------------------------------------ routes


def route_sections(config: Mapping, num_steps: int) -> list[Section]:
    """Shows the routes of the first `num_steps` steps of the run's plan."""
    run = run_from_plain(config)
    num_drawn = num_steps * run.micro_batches_per_step
    if not num_drawn:
        return []
    counts = Plan(run).route_counts(num_drawn)
    kinds: dict[str, dict[str, float]] = {}
    for (domain, route), count in counts.items():
        shares = kinds.setdefault(route_kind(domain, route), {})
        shares[domain] = shares.get(domain, 0.0) + count / num_drawn
    kinds = {kind: kinds[kind] for kind in KIND_STYLES if kind in kinds}
    sets = [SHARED, *([CORE_MLP] if run.model.d_mlp else []), *map(module_set, run.model.module_domains)]
    trained, active = (dict.fromkeys(sets, 0.0) for _ in range(2))
    for (_, route), count in counts.items():
        for name in set(sets) & route.trained:
            trained[name] += count / num_drawn
        for name in (set(sets) - set(map(module_set, run.model.module_domains))) | set(_modules(route)):
            active[name] += count / num_drawn
    text = f"Of the {num_drawn:,} micro-batches of {run.micro_batch} sequences in the {num_steps:,} steps done: the "
    text += "plan follows from config and seed, so this is what was drawn, not an expectation."
    figures = [routes_figure(kinds), sets_figure(trained, active)]
    return [Section("Routes", text, figures, table=_route_table(counts, num_drawn))]


def route_kind(domain: str, route: Route) -> str:
    """Returns the route's key in KIND_STYLES."""
    active = [name for name, _ in route.active]
    if not active:
        return "the core alone"
    if len(active) > 1:
        return "everything"
    whose = "its own module" if active == [domain] else "another module"
    trains_core = bool({SHARED, CORE_MLP} & route.trained)
    return f"{whose} and the core" if trains_core else f"{whose} alone"


def _modules(route: Route) -> list[str]:
    return [module_set(name) for name, _ in route.active]


def _route_table(counts: Mapping[tuple[str, Route], int], num_drawn: int) -> dict[str, list]:
    rows = [
        {
            "domain": domain,
            "active modules": ", ".join(name for name, _ in route.active) or "none",
            "trained": ", ".join(sorted(route.trained)),
            "micro_batches": count,
            "share": f"{count / num_drawn:.2%}",
        }
        for (domain, route), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1]))
    ]
    return columns_of(rows)
