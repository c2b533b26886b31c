"""Mixtures, equal compute and the runs that several methods have in common."""

import dataclasses
from collections.abc import Callable

from gram_platform.config import (
    CORE,
    UNLABELLED,
    UNLABELLED_OF,
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
    Slice,
    View,
)
from gram_platform.flops import (
    companion_shares,
    compute_units,
    core_parameters,
    equal_compute_factor,
    module_parameters,
)
from gram_platform.identity import invalid
from gram_platform.methods.setting import Setting
from gram_platform.routing import route_counts


def data_budget(
    setting: Setting,
    domains: tuple[str, ...],
    route_unit: int,
    factor: Callable[[str], float] = lambda domain: 1.0,
    scale: float = 1.0,
    unlabelled_is_core: bool = True,
) -> DataConfig:
    """One epoch of `domains` scaled by `scale` (lambda), auxiliary domains drawn `factor(domain)` (p_af) times.

    Every auxiliary domain is rounded to whole route units, at least one; core takes the rest of the rounded number of
    steps, so that the total does not depend on `factor`. An auxiliary pool repeats through `factor` above 1, and like
    core where the setting says that there is too little of it. With partial labels the unlabelled share of all domains
    is one pool: core's, or of its own.
    """
    labelled = 1.0 - setting.options.unlabelled_share
    lengths = {d: scale * setting.num_sequences[d] * labelled for d in domains}
    pools = unlabelled_slices(setting, scale)
    num_hidden = sum(part.num_sequences for part in pools)
    num_steps = max(1, round((sum(lengths.values()) + num_hidden) / setting.size.batch_size))
    budgets = [
        DomainBudget(
            d, setting.pool(d, _in_units(lengths[d], route_unit)), _in_units(factor(d) * lengths[d], route_unit)
        )
        for d in domains
        if d != CORE
    ]
    if pools and not unlabelled_is_core:
        budgets += _unlabelled_budgets(pools, route_unit, setting.conventions.unlabelled_by_domain)
    core_draws = num_steps * setting.size.batch_size - sum(b.num_draws for b in budgets)
    if core_draws < route_unit:
        raise invalid(
            "aux_factor",
            max(map(factor, domains)),
            "small enough to leave core a share of the run's sequences",
        )
    core = core_budget(core_draws, pools if unlabelled_is_core else (), setting.pool(CORE, core_draws))
    return DataConfig(setting.data_id, (core, *budgets))


def _unlabelled_budgets(pools: tuple[Slice, ...], route_unit: int, by_domain: bool) -> list[DomainBudget]:
    """One budget of all domains' unlabelled sequences, or one for each domain; whole route units of each."""
    if by_domain:
        draws = {part: max(1, part.num_sequences // route_unit) * route_unit for part in pools}
        return [DomainBudget(UNLABELLED_OF + p.domain, p.num_sequences, n, (p,)) for p, n in draws.items()]
    num_hidden = sum(part.num_sequences for part in pools)
    return [DomainBudget(UNLABELLED, num_hidden, num_hidden // route_unit * route_unit, pools)]


def core_budget(num_draws: int, pools: tuple[Slice, ...], num_sequences: int | None = None) -> DomainBudget:
    """Core's budget: its own first sequences, and what is unlabelled as far as it counts as core.

    Every draw is of another sequence unless there are only `num_sequences`.
    """
    own = num_draws - sum(part.num_sequences for part in pools)
    if own < 1:
        raise invalid("unlabelled_share", num_draws, "small enough to leave labelled core sequences")
    if pools:
        return DomainBudget(CORE, num_draws, num_draws, (Slice(CORE, 0, own), *pools))
    return DomainBudget(CORE, num_draws if num_sequences is None else num_sequences, num_draws)


def unlabelled_slices(setting: Setting, scale: float) -> tuple[Slice, ...]:
    """The unlabelled share of every domain: the same sequences for every method, but for lambda's part of their length.

    They begin behind the unscaled labelled share and what rounding and lambda can add to it, a tenth and two windows.
    """
    share, slices = setting.options.unlabelled_share, []
    for domain, length in setting.num_sequences.items():
        first = round(1.1 * (1.0 - share) * length) + 2 * setting.size.batch_size
        count = round(scale * share * length)
        slices += [Slice(domain, first, count)] if count else []
    return tuple(slices)


def _in_units(length: float, unit: int) -> int:
    return max(1, round(length / unit)) * unit


def training_run(
    setting: Setting,
    model: ModelConfig,
    data: DataConfig,
    routing: RoutingConfig,
    num_eval_points: int = 0,
    lr_factor: float = 1.0,
    num_probes: int = 0,
    **parts,
) -> RunConfig:
    """A run of this setting: its size's batch and learning rate, its schedule and seed, and where the size starts.

    ValueError for a run that begins with an imported model and has a core of another width.
    """
    rate = setting.size.peak_lr * lr_factor
    optimizer = optimizer_of(setting, rate, setting.warmup_fraction, setting.decay_fraction)
    num_steps = data.num_draws // setting.size.batch_size
    num_points, num_probes = (min(number, num_steps) for number in (num_eval_points, num_probes))
    points = EvalPoints(num_points, setting.num_eval_sequences, setting.domains, num_probes=num_probes)
    defaults = {
        "optimizer": optimizer,
        "batch_size": setting.size.batch_size,
        "micro_batch": setting.size.micro_batch,
        "eval_points": points,
        "seed": setting.seed,
        "precision": setting.size.precision,
        "start": View.of(setting.size.start) if setting.size.start else None,
    }
    if setting.size.start and "start" not in parts and model.d_mlp != setting.size.d_dense:
        allowed = f"a start of methods whose core is the imported MLP of {setting.size.d_dense}; one has {model.d_mlp}"
        raise invalid("start", setting.size.start, allowed)
    model = dataclasses.replace(model, document_end=setting.conventions.document_end)
    return RunConfig(model=model, data=data, routing=routing, **{**defaults, **parts})


def optimizer_of(setting: Setting, rate: float, warmup: float, decay: float, **parts) -> OptimizerConfig:
    """AdamW with the setting's weight decay."""
    own = {"weight_decay": setting.conventions.weight_decay, "decay_vectors": setting.conventions.decay_vectors}
    return OptimizerConfig(rate, warmup, decay, **own, **parts)


def dense_run(setting: Setting, domains: tuple[str, ...], num_eval_points: int, accumulation: str) -> RunConfig:
    """A dense model on one epoch of `domains` (and of whatever is unlabelled)."""
    data = data_budget(setting, domains, setting.route_unit(accumulation))
    routing = RoutingConfig(accumulation=accumulation)
    return training_run(setting, setting.size.dense(), data, routing, num_eval_points)


def routed_scale(setting: Setting, model: ModelConfig) -> float:
    """lambda: F_base / F_routed with F_routed = L_core P_core + L_aux (P_core + P_aux), or 1 without equal compute.

    Counts as the paper's text does (`app:equal-compute`): one epoch of every domain, core batches at P_core, unlabelled
    ones under their label. With `lambda_counts_plan` it counts what the routed run is expected to do, as the authors'
    code did: auxiliary batches p_af times in place of core's, companions, and every module on unlabelled batches.
    """
    if not setting.equal_compute:
        return 1.0
    lengths, core = dict(setting.num_sequences), core_parameters(model)
    base = sum(lengths.values()) * core_parameters(setting.size.dense())
    own = {d: module_parameters(model, d) for d in setting.auxiliary}
    if not setting.conventions.lambda_counts_plan:
        return equal_compute_factor(base, sum(lengths.values()) * core + sum(lengths[d] * own[d] for d in own))
    hidden = setting.options.unlabelled_share
    drawn = {d: (1.0 - hidden) * setting.factor(d) * lengths[d] for d in own}
    num_unlabelled = hidden * sum(lengths.values())
    num_core = sum(lengths.values()) - num_unlabelled - sum(drawn.values())
    shares = companion_shares(setting.routing, setting.auxiliary)
    companions = num_core * setting.routing.p_core_robust * sum(shares[d] * own[d] for d in own)
    others = {d: 0.5 * (sum(own.values()) - own[d]) for d in own}  # half of them beside a domain's batch that has some
    companions += setting.routing.p_aux_companion * sum(drawn[d] * others[d] for d in own)
    modules = sum(drawn[d] * own[d] for d in own) + num_unlabelled * sum(own.values()) + companions
    return equal_compute_factor(base, sum(lengths.values()) * core + modules)


def plan_compute_units(run: RunConfig, num_steps: int | None = None) -> int:
    """compute_units of a run's drawn plan, companions included, or of its first `num_steps` steps.

    p_as changes nothing here: parameters that it freezes are active.
    """
    tokens, counts = run.micro_batch * run.model.seq_len, route_counts(run, num_steps)
    return sum(compute_units(run.model, n * tokens, dict(route.active)) for (_, route), n in counts.items())
