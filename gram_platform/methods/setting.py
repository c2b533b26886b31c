"""What a method is given, what it returns, and the budgets that all methods share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gram_platform.config import (
    CORE,
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
    View,
)
from gram_platform.flops import active_parameters, compute_units, core_parameters, equal_compute_factor
from gram_platform.identity import invalid
from gram_platform.ladder import Size

Profile = tuple[str, ...]  # the auxiliary domains that are retained, sorted; () is core alone


def profile_name(retained: Profile, auxiliary: tuple[str, ...]) -> str:
    """`core`, `core+virology`, or `all`."""
    if retained and set(retained) == set(auxiliary):
        return "all"
    return "+".join((CORE, *retained))


@dataclass(frozen=True)
class Setting:
    """One cell of a study: a size, a seed, the data, and the choices that its methods share."""

    size: Size
    seed: int
    data_id: str
    num_sequences: Mapping[str, int]  # of each domain, core included: the baseline's one epoch
    profiles: tuple[Profile, ...]  # what retraining methods train for, and every method is compared on
    routing: RoutingConfig  # of routed methods; its accumulation also the others'
    warmup_fraction: float
    decay_fraction: float
    num_eval_points: int  # on the baseline's learning curve
    num_eval_sequences: int  # of each domain's validation split
    aux_factor: float = 1.0  # p_af
    equal_compute: bool = True  # lambda of `app:equal-compute`
    baseline_accumulation: str = "heterogeneous"

    @property
    def auxiliary(self) -> tuple[str, ...]:
        return tuple(d for d in self.num_sequences if d != CORE)


@dataclass(frozen=True)
class Plans:
    """The runs of a method in a setting, and its views: what to call them and what they retain."""

    runs: dict[str, RunConfig]  # a label within the method -> run
    views: dict[Profile, View] = field(default_factory=dict)


def data_budget(
    setting: Setting, domains: tuple[str, ...], route_unit: int, factor: float = 1.0, scale: float = 1.0
) -> DataConfig:
    """One epoch of `domains` scaled by `scale` (lambda), auxiliary domains drawn `factor` (p_af) times.

    Every auxiliary domain is rounded to whole route units, at least one; core takes the rest of the rounded number of
    steps, so that the total does not depend on `factor`. Core never repeats; an auxiliary pool repeats only through
    `factor` above 1.
    """
    lengths = {d: scale * setting.num_sequences[d] for d in domains}
    num_steps = max(1, round(sum(lengths.values()) / setting.size.batch_size))
    in_units = lambda length: max(1, round(length / route_unit)) * route_unit  # noqa: E731
    budgets = [DomainBudget(d, in_units(lengths[d]), in_units(factor * lengths[d])) for d in domains if d != CORE]
    core_draws = num_steps * setting.size.batch_size - sum(b.num_draws for b in budgets)
    if core_draws < route_unit:
        raise invalid("aux_factor", factor, "small enough to leave core a share of the run's sequences")
    return DataConfig(setting.data_id, (DomainBudget(CORE, core_draws, core_draws), *budgets))


def training_run(
    setting: Setting, model: ModelConfig, data: DataConfig, routing: RoutingConfig, num_eval_points: int = 0
) -> RunConfig:
    """A pretraining run of this setting: its size's batch and learning rate, its schedule and seed."""
    domains = tuple(setting.num_sequences)
    optimizer = OptimizerConfig(setting.size.peak_lr, setting.warmup_fraction, setting.decay_fraction)
    num_steps = data.num_draws // setting.size.batch_size
    points = EvalPoints(min(num_eval_points, num_steps), setting.num_eval_sequences, domains)
    return RunConfig(
        model=model,
        data=data,
        routing=routing,
        optimizer=optimizer,
        batch_size=setting.size.batch_size,
        micro_batch=setting.size.micro_batch,
        eval_points=points,
        seed=setting.seed,
        precision=setting.size.precision,
    )


def dense_run(setting: Setting, domains: tuple[str, ...], num_eval_points: int, accumulation: str) -> RunConfig:
    """A dense model on one epoch of `domains`."""
    unit = setting.size.micro_batch if accumulation == "heterogeneous" else setting.size.batch_size
    data = data_budget(setting, domains, unit)
    routing = RoutingConfig(accumulation=accumulation)
    return training_run(setting, setting.size.dense(), data, routing, num_eval_points)


def routed_scale(setting: Setting, model: ModelConfig) -> float:
    """lambda: F_base / F_routed with F_routed = L_core P_core + L_aux (P_core + P_aux), or 1 without equal compute.

    A core batch with a companion module counts as P_core here, as in the paper; `flops` counts the plan itself.
    """
    if not setting.equal_compute:
        return 1.0
    lengths = dict(setting.num_sequences)
    base = sum(lengths.values()) * core_parameters(setting.size.dense())
    routed = sum(n * active_parameters(model, () if d == CORE else (d,)) for d, n in lengths.items())
    return equal_compute_factor(base, routed)


def plan_compute_units(run: RunConfig) -> int:
    """compute_units of a run as its plan is expected to draw it, companions of core batches (p_cr) included."""
    modules, total = run.model.module_domains, 0
    for budget in run.data.domains:
        tokens = budget.num_draws * run.model.seq_len
        if budget.name in modules:
            total += compute_units(run.model, tokens, (budget.name,))
            continue
        total += compute_units(run.model, tokens)
        if budget.name == CORE and modules:
            companions = sum(active_parameters(run.model, (d,)) - core_parameters(run.model) for d in modules)
            total += round(tokens * run.routing.p_core_robust * companions / len(modules))
    return total
