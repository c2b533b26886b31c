"""Mixtures, equal compute and the runs that several methods have in common."""

from collections.abc import Callable

from gram_platform.config import (
    CORE,
    UNLABELLED,
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
from gram_platform.flops import active_parameters, compute_units, core_parameters, equal_compute_factor
from gram_platform.identity import invalid
from gram_platform.methods.setting import Setting


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
        draws = num_hidden // route_unit * route_unit
        budgets.append(DomainBudget(UNLABELLED, num_hidden, draws, pools))
    core_draws = num_steps * setting.size.batch_size - sum(b.num_draws for b in budgets)
    if core_draws < route_unit:
        raise invalid(
            "aux_factor",
            max(map(factor, domains)),
            "small enough to leave core a share of the run's sequences",
        )
    core = core_budget(core_draws, pools if unlabelled_is_core else (), setting.pool(CORE, core_draws))
    return DataConfig(setting.data_id, (core, *budgets))


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
    **parts,
) -> RunConfig:
    """A run of this setting: its size's batch and learning rate, its schedule and seed, and where the size starts.

    ValueError for a run that begins with an imported model and has a core of another width.
    """
    rate = setting.size.peak_lr * lr_factor
    optimizer = OptimizerConfig(rate, setting.warmup_fraction, setting.decay_fraction)
    num_steps = data.num_draws // setting.size.batch_size
    points = EvalPoints(min(num_eval_points, num_steps), setting.num_eval_sequences, setting.domains)
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
    return RunConfig(model=model, data=data, routing=routing, **{**defaults, **parts})


def dense_run(setting: Setting, domains: tuple[str, ...], num_eval_points: int, accumulation: str) -> RunConfig:
    """A dense model on one epoch of `domains` (and of whatever is unlabelled)."""
    data = data_budget(setting, domains, setting.route_unit(accumulation))
    routing = RoutingConfig(accumulation=accumulation)
    return training_run(setting, setting.size.dense(), data, routing, num_eval_points)


def routed_scale(setting: Setting, model: ModelConfig) -> float:
    """lambda: F_base / F_routed with F_routed = L_core P_core + L_aux (P_core + P_aux), or 1 without equal compute.

    A core batch with a companion module counts as P_core here, as in the paper; `plan_compute_units` has companions in
    expectation over p_cr.
    """
    if not setting.equal_compute:
        return 1.0
    lengths = dict(setting.num_sequences)
    base = sum(lengths.values()) * core_parameters(setting.size.dense())
    routed = sum(n * active_parameters(model, () if d == CORE else (d,)) for d, n in lengths.items())
    return equal_compute_factor(base, routed)


def plan_compute_units(run: RunConfig) -> int:
    """compute_units of a run in expectation over p_cr, with which a core batch has a companion, each equally often.

    The plan that is drawn differs a little. p_as changes nothing here: parameters that it freezes are active.
    """
    modules, total = run.model.module_domains, 0
    for budget in run.data.domains:
        tokens = budget.num_draws * run.model.seq_len
        if budget.name in modules or budget.name == UNLABELLED:
            total += compute_units(run.model, tokens, modules if budget.name == UNLABELLED else (budget.name,))
            continue
        total += compute_units(run.model, tokens)
        if budget.name == CORE and modules:
            companions = sum(active_parameters(run.model, (d,)) - core_parameters(run.model) for d in modules)
            total += round(tokens * run.routing.p_core_robust * companions / len(modules))
    return total
