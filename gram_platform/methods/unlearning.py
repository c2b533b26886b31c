"""MaxEnt, RMU and GradDiff unlearn domains of the baseline, in one run per profile."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from gram_platform.config import (
    CORE,
    DataConfig,
    Objective,
    RoutingConfig,
    RunConfig,
    View,
)
from gram_platform.config.identity import invalid, sum_in_order
from gram_platform.config.training import MISDIRECTION
from gram_platform.methods.budgets import data_budget, optimizer_of, training_run
from gram_platform.methods.dense import baseline_run
from gram_platform.methods.setting import MethodRuns, Options, Profile, Setting, Unlearning


def plan_maxent(setting: Setting) -> MethodRuns:
    """Plans MaxEnt, which maximises the entropy of predictions on forget text.

    "A Closer Look at Machine Unlearning for Large Language Models", Yuan, Pang, Du, Chen, Zhang and
    Lin, 2024. Raises ValueError if `maxent_profiles` has a domain that the corpus lacks.
    """
    for profile, _ in setting.options.maxent_profiles:
        if not set(profile) <= set(setting.auxiliary):
            allowed = "a profile of the auxiliary domains " + ", ".join(setting.auxiliary)
            raise invalid("maxent_profiles", profile, allowed)
    return plan_unlearning(setting, setting.options.maxent_of)


def plan_rmu(setting: Setting) -> MethodRuns:
    """Plans RMU, which pushes activations on forget text towards a fixed random direction.

    Activations on retain text stay near the baseline's. "The WMDP Benchmark: Measuring and Reducing
    Malicious Use With Unlearning", Li, Pan, Gopal and others, 2024. The authors train the MLP
    output matrices of three layers. We train all weights up to the steered layer [ours]. FLOPs do
    not include the frozen baseline's passes on retain text.
    """
    return plan_unlearning(setting, lambda profile: setting.options.rmu)


def plan_graddiff(setting: Setting) -> MethodRuns:
    """Plans GradDiff, which increases the loss on forget text and decreases it on retain text.

    "Continual Learning and Private Unlearning", Liu, Liu and Stone, 2022. The increase is
    unbounded, so more steps or a higher learning rate also damage retained abilities.
    """
    return plan_unlearning(setting, lambda profile: setting.options.graddiff)


def plan_unlearning(setting: Setting, options_of: Callable[[Profile], Unlearning]) -> MethodRuns:
    """Plans the baseline, and an unlearning run for each profile that removes a domain."""
    start = baseline_run(setting)
    runs, views = {"all": start}, {}
    for profile in setting.profiles:
        if set(profile) != set(setting.auxiliary):
            run = _unlearning(setting, options_of(profile), start, profile)
            runs[setting.profile_name(profile)] = run
            views[profile] = View.of(run.run_id)
    return MethodRuns(runs, views)


def _unlearning(
    setting: Setting, options: Unlearning, start: RunConfig, profile: Profile
) -> RunConfig:
    """Plans a run whose steps have as many forget sequences as retain sequences.

    Forget domains are drawn equally often. The retain sequences are from core and the profile's
    domains, in proportion to the baseline's mixture [ours]. With `core_share`, core supplies this
    share of the retain sequences, and the profile's domains supply equal parts of the rest.
    """
    size = setting.size
    forget = tuple(d for d in setting.auxiliary if d not in profile)
    batch = options.batch_size or size.batch_size
    micro_batch = math.gcd(batch, size.micro_batch)
    half = options.num_steps * batch
    noise = Options(recall=setting.options.recall, precision=setting.options.precision)
    unit = setting.route_unit(setting.baseline_accumulation)
    labelled = data_budget(replace(setting, options=noise), setting.domains, unit)
    budgets = {d.name: d for d in labelled.domains}
    retained: dict[str, float] = {d: budgets[d].num_sequences for d in (CORE, *profile)}
    if options.core_share and profile:
        retained = dict.fromkeys(profile, (1.0 - options.core_share) / len(profile))
        retained = {CORE: options.core_share} | retained
    draws = apportion(half, dict.fromkeys(forget, 1), micro_batch)
    draws |= apportion(half, retained, micro_batch)
    mixture = tuple(replace(budgets[d], num_draws=n) for d, n in draws.items())
    return training_run(
        setting,
        size.dense(),
        DataConfig(setting.data_id, mixture),
        RoutingConfig(),
        batch_size=2 * batch,
        micro_batch=micro_batch,
        optimizer=optimizer_of(
            setting, options.peak_lr, options.warmup_fraction, 0.0, clip_norm=options.clip_norm
        ),
        objective=_objective(options, forget, size.num_layers),
        start=View.of(start.run_id),
    )


def _objective(options: Unlearning, forget: Profile, num_layers: int) -> Objective:
    kind, weight = options.kind, options.retain_weight
    if kind == MISDIRECTION:
        steered = max(1, round(options.depth * num_layers))
        return Objective(kind, forget, weight, steered_layers=steered, steering=options.steering)
    return Objective(kind, forget, weight, options.stop_below)


def apportion(total: int, weights: Mapping[str, float], unit: int) -> dict[str, int]:
    """Splits `total` in proportion to `weights`, into a multiple of `unit` for each name.

    Each name gets at least one unit. The largest remainders are rounded up. Raises ValueError if
    `total` has fewer units than there are names.
    """
    num_units, whole = total // unit, sum_in_order(weights.values())
    if num_units < len(weights):
        allowed = f"at least {unit} sequences for each of {', '.join(weights)}"
        raise invalid("num_draws", total, allowed)
    exact = {name: num_units * weight / whole for name, weight in weights.items()}
    units = {name: max(1, int(share)) for name, share in exact.items()}
    by_need = sorted(weights, key=lambda name: units[name] - exact[name])
    missing = num_units - sum(units.values())
    for index in range(abs(missing)):
        if missing > 0:
            units[by_need[index % len(by_need)]] += 1
        else:
            units[max(units, key=units.__getitem__)] -= 1
    return {name: count * unit for name, count in units.items()}
