"""Plans the data mixtures, equal-compute factors and runs of several methods."""

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
from gram_platform.config.flops import (
    companion_shares,
    compute_units,
    core_parameters,
    hardware_flops,
    module_parameters,
)
from gram_platform.config.identity import invalid, sum_in_order
from gram_platform.config.routing import (
    CORE_MLP,
    EMBEDDINGS,
    SHARED,
    module_set,
    route_counts,
)
from gram_platform.config.training import DISTILLATION
from gram_platform.methods.labels import budget_label, count_sequences, divide_text
from gram_platform.methods.setting import Setting


def data_budget(
    setting: Setting,
    domains: tuple[str, ...],
    route_unit: int,
    factor: Callable[[str], float] = lambda domain: 1.0,
    scale: float = 1.0,
    unlabelled_is_core: bool = True,
) -> DataConfig:
    """Returns a mixture of one epoch of `domains`, with lengths multiplied by `scale` (lambda).

    `factor` (p_af) multiplies an auxiliary domain's draws, which are rounded to route units. Core
    gets all other draws, so `factor` does not change the total. Sequences repeat if `factor` > 1,
    or if a domain has too few sequences. If `unlabelled_is_core`, unlabelled text joins core.
    Otherwise it has its own budgets. Text with a wrong label is in that label's budget. Raises
    ValueError if core gets less than a route unit.
    """
    setting, texts = divide_text(setting)
    labelled = 1.0 - setting.options.unlabelled_share
    lengths = {d: scale * count_sequences(texts[d]) * labelled for d in domains}
    pools = slice_unlabelled(setting, scale)
    num_sequences = sum(lengths.values()) + count_sequences(pools)
    num_steps = max(1, round(num_sequences / setting.size.batch_size))
    budgets = [
        budget_label(
            setting,
            texts[d],
            scale,
            _in_units(lengths[d], route_unit),
            _in_units(factor(d) * lengths[d], route_unit),
        )
        for d in domains
        if d != CORE
    ]
    if pools and not unlabelled_is_core:
        budgets += _budget_unlabelled(pools, route_unit, setting.conventions.unlabelled_by_domain)
    core_draws = num_steps * setting.size.batch_size - sum(b.num_draws for b in budgets)
    if core_draws < route_unit:
        allowed = "a factor so small, or a corpus so large, that core gets a batch"
        raise invalid("aux_factor", max(map(factor, domains)), allowed)
    hidden = pools if unlabelled_is_core else ()
    core = budget_label(setting, texts[CORE], scale, core_draws, core_draws, hidden)
    return DataConfig(setting.data_id, (core, *budgets))


def _budget_unlabelled(
    pools: tuple[Slice, ...], route_unit: int, by_domain: bool
) -> list[DomainBudget]:
    groups = {UNLABELLED_OF + p.domain: (p,) for p in pools} if by_domain else {UNLABELLED: pools}
    budgets = []
    for name, slices in groups.items():
        number = count_sequences(slices)
        # A small domain has at least one unit.
        num_units = max(int(by_domain), number // route_unit)
        budgets.append(DomainBudget(name, number, num_units * route_unit, slices))
    return budgets


def slice_unlabelled(setting: Setting, scale: float) -> tuple[Slice, ...]:
    """Returns each domain's slice of unlabelled sequences.

    In all methods, a slice begins after 1.1 x the expected number of labelled sequences, plus two
    batches. The margin allows for rounding and for lambda > 1.
    """
    share, slices = setting.options.unlabelled_share, []
    for domain, number in setting.num_sequences.items():
        first = round(1.1 * (1.0 - share) * number) + 2 * setting.size.batch_size
        count = round(scale * share * number)
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
    """Plans a run with the setting's batch, learning rate, schedule, seed and start.

    `parts` are fields of the `RunConfig` to override. Raises ValueError if the setting's start is
    an imported model whose MLP is not as wide as the MLP of `model`.
    """
    size = setting.size
    rate = size.peak_lr * lr_factor
    num_steps = data.num_draws // size.batch_size
    parts = {
        "optimizer": optimizer_of(setting, rate, setting.warmup_fraction, setting.decay_fraction),
        "batch_size": size.batch_size,
        "micro_batch": size.micro_batch,
        "eval_points": EvalPoints(
            min(num_eval_points, num_steps),
            setting.num_eval_sequences,
            setting.domains,
            num_probes=min(num_probes, num_steps),
        ),
        "seed": setting.seed,
        "precision": size.precision,
        **parts,
    }
    if size.start and "start" not in parts:
        if model.d_mlp != size.d_dense:
            allowed = f"methods with a core as wide as the imported MLP, {size.d_dense}"
            raise invalid("start", size.start, f"{allowed}; one has {model.d_mlp}")
        parts["start"] = View.of(size.start)
    model = dataclasses.replace(model, document_end=setting.conventions.document_end)
    return RunConfig(model=model, data=data, routing=routing, **parts)


def optimizer_of(
    setting: Setting, rate: float, warmup: float, decay: float, **parts
) -> OptimizerConfig:
    """Returns an AdamW config with the setting's weight decay."""
    conventions = setting.conventions
    return OptimizerConfig(
        rate,
        warmup,
        decay,
        weight_decay=conventions.weight_decay,
        decay_vectors=conventions.decay_vectors,
        **parts,
    )


def dense_run(
    setting: Setting,
    domains: tuple[str, ...],
    num_eval_points: int,
    accumulation: str,
    scale: float = 1.0,
    **parts,
) -> RunConfig:
    """Plans a dense model's run on `scale` epochs of `domains` and of all unlabelled text.

    `parts` are passed to `training_run`.
    """
    data = data_budget(setting, domains, setting.route_unit(accumulation), scale=scale)
    routing = RoutingConfig(accumulation=accumulation)
    return training_run(setting, setting.size.dense(), data, routing, num_eval_points, **parts)


def compute_lambda(setting: Setting, model: ModelConfig) -> float:
    """Returns lambda = F_base / F_routed, which gives a routed run the baseline's compute.

    F_routed = L_core P_core + L_aux (P_core + P_aux), with lengths L and parameters P. Returns 1 if
    `equal_compute` is off. By default, as in the paper's text (`app:equal-compute`):

    - A run is one epoch of every domain.
    - Core batches cost P_core.
    - Unlabelled batches cost as much as labelled ones.

    With `lambda_counts_plan`, as in the authors' code:

    - Auxiliary domains are drawn for p_af epochs, in place of core.
    - Companions (other modules that are active in a batch) add cost.
    - Unlabelled batches use all modules.
    """
    if not setting.equal_compute:
        return 1.0
    lengths, routing = setting.num_sequences, setting.routing
    total, core = sum(lengths.values()), core_parameters(model)
    base = total * core_parameters(setting.size.dense())
    aux = {d: module_parameters(model, d) for d in setting.auxiliary}
    if not setting.conventions.lambda_counts_plan:
        return base / (total * core + sum(lengths[d] * aux[d] for d in aux))
    hidden = setting.options.unlabelled_share
    drawn = {d: (1.0 - hidden) * setting.factor(d) * lengths[d] for d in aux}
    num_core = total - hidden * total - sum_in_order(drawn.values())
    shares = companion_shares(routing, setting.auxiliary)
    companions = num_core * routing.p_core_robust * sum_in_order(shares[d] * aux[d] for d in aux)
    # On average, half of the other modules are companions.
    others = {d: 0.5 * (sum(aux.values()) - aux[d]) for d in aux}
    companions += routing.p_aux_companion * sum_in_order(drawn[d] * others[d] for d in aux)
    modules = sum_in_order(drawn[d] * aux[d] for d in aux) + hidden * total * sum(aux.values())
    return base / (total * core + (modules + companions))


def plan_compute_units(run: RunConfig, num_steps: int | None = None) -> int:
    """Counts a run's compute_units in the first `num_steps` (default: all).

    Includes companions and a distillation's teacher.
    """
    tokens, counts = run.micro_batch * run.model.seq_len, route_counts(run, num_steps)
    units = sum(
        compute_units(run.model, n * tokens, dict(route.active)) for (_, route), n in counts.items()
    )
    return add_teacher(run, units)


def add_teacher(run: RunConfig, units: int) -> int:
    """Adds a third to a distillation's compute_units, for the teacher's forward passes."""
    return units + units // 3 if run.objective.kind == DISTILLATION else units


def run_flops(run: RunConfig, num_steps: int | None = None) -> int:
    """Counts a run's hardware_flops in the first `num_steps` (default: all)."""
    total = 0
    for (_, route), count in route_counts(run, num_steps).items():
        active = tuple(dict(route.active))
        modules = [domain for domain in active if module_set(domain) in route.trained]
        trained = (SHARED in route.trained, CORE_MLP in route.trained, modules)
        has_embeddings = EMBEDDINGS in route.trained
        number = count * run.micro_batch
        total += hardware_flops(
            run.model, number, active, *trained, embeddings_trained=has_embeddings
        )
        if run.objective.kind == DISTILLATION:
            total += hardware_flops(run.model, number, backward=False)
    return total
