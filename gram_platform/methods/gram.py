"""GRAM trains a module for each auxiliary domain in one run. Each subset of modules is a view."""

from dataclasses import replace

from gram_platform.config import RoutingConfig, View
from gram_platform.config.ladder import Size
from gram_platform.methods.budgets import compute_lambda, data_budget, training_run
from gram_platform.methods.setting import MethodRuns, Profile, Setting


def plan(setting: Setting) -> MethodRuns:
    """Plans the paper's GRAM, with MLP modules."""
    return plan_routed(setting, "mlp")


def plan_lora(setting: Setting) -> MethodRuns:
    """Plans GRAM with LoRA modules that have as many parameters as the MLP modules."""
    return plan_routed(setting, "lora")


def plan_subsets(setting: Setting) -> MethodRuns:
    """Plans GRAM in which some batches also activate a random subset of modules [ours].

    These are some of the core batches and half of the auxiliary batches.
    """
    subsets = replace(setting.routing, companions="subset", p_aux_companion=0.5)
    return plan(replace(setting, routing=subsets))


def modular_size(setting: Setting) -> Size:
    """Returns the setting's size, in which `routed_widths` can override two widths."""
    if setting.options.routed_widths is None:
        return setting.size
    core, aux = (width_of(setting, share) for share in setting.options.routed_widths)
    return replace(setting.size, d_core=core, d_aux=aux)


def width_of(setting: Setting, share: float) -> int:
    """Returns `share` x the dense MLP's width, as a positive multiple of `width_multiple`."""
    unit = setting.conventions.width_multiple
    return unit * max(1, round(share * setting.size.d_dense / unit))


def plan_routed(setting: Setting, kind: str) -> MethodRuns:
    model = modular_size(setting).modular(setting.domains, kind)
    scale = compute_lambda(setting, model)
    unit = setting.route_unit(setting.routing.accumulation)
    data = data_budget(
        setting, setting.domains, unit, setting.factor, scale, unlabelled_is_core=False
    )
    num_probes = setting.num_eval_points if setting.options.probes else 0
    run = training_run(setting, model, data, routing_of(setting), num_probes=num_probes)
    views = {p: View.of(run.run_id, setting.modules_on(p)) for p in every_profile(setting)}
    return MethodRuns({"all": run}, views)


def routing_of(setting: Setting) -> RoutingConfig:
    """Applies the conventions `spread_over_factor` and `companions_by_size` to the routing."""
    routing, conventions = setting.routing, setting.conventions
    if conventions.spread_over_factor:
        spreads = tuple(
            (d, min(1.0, routing.p_aux_spread / setting.factor(d))) for d in setting.auxiliary
        )
        routing = replace(routing, p_aux_spread_of=spreads)
    if conventions.companions_by_size and routing.companions == "one":
        weights = tuple(
            (d, setting.factor(d) * setting.num_sequences[d]) for d in setting.auxiliary
        )
        routing = replace(routing, companion_weights=weights)
    return routing


def every_profile(setting: Setting) -> tuple[Profile, ...]:
    """Returns the setting's profiles and subsets, core, and core with each or all domains."""
    singles = ((domain,) for domain in setting.auxiliary)
    profiles = ((), *singles, setting.auxiliary, *setting.profiles, *setting.subsets)
    return tuple(dict.fromkeys(profiles))
