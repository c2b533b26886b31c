"""FT-Full, FT-LoRA and FT-MLP train a base model on core, then finetune a branch for each domain.

The base and all branches together cost as much as the baseline, so the base gets fewer steps. The
cost includes rehearsal (the core batches of a branch) and branches that are not run.
"""

from dataclasses import dataclass, replace

from gram_platform.config import (
    CORE,
    DataConfig,
    DomainBudget,
    ModuleSpec,
    RoutingConfig,
    RunConfig,
    Slice,
    View,
)
from gram_platform.config.flops import core_parameters, mlp_parameters
from gram_platform.config.identity import invalid, sum_in_order
from gram_platform.config.ladder import lora_rank
from gram_platform.methods.budgets import slice_unlabelled, training_run
from gram_platform.methods.labels import budget_label, count_sequences, divide_text
from gram_platform.methods.setting import Branching, MethodRuns, Profile, Setting


def plan_full(setting: Setting) -> MethodRuns:
    """Plans FT-Full. Each branch finetunes all parameters on core and one domain."""
    budget = branch_budget(setting, setting.options.branch_full, module_parameters=0)
    base = _base(setting, budget)
    branches = {d: _branch(setting, budget, base, d, None) for d in _list_branches(setting)}
    views: dict[Profile, View] = {(): View.of(base.run_id)}
    views |= {(d,): View.of(run.run_id) for d, run in branches.items()}
    return _plans(setting, base, branches, views)


def plan_lora(setting: Setting) -> MethodRuns:
    """Plans FT-LoRA, which trains a LoRA for each domain on the frozen base.

    Each LoRA has as many parameters as an auxiliary MLP.
    """
    size = setting.size
    return _module_branches(setting, "lora", lora_rank(size.d_model, size.d_dense, size.d_aux))


def plan_mlp(setting: Setting) -> MethodRuns:
    """Plans FT-MLP, which trains an auxiliary MLP for each domain on the frozen base."""
    return _module_branches(setting, "mlp", setting.size.d_aux)


def _module_branches(setting: Setting, kind: str, width: int) -> MethodRuns:
    # FT-LoRA gets FT-MLP's budget and base.
    size = setting.size
    parameters = size.num_layers * mlp_parameters(size.architecture, size.d_model, size.d_aux)
    budget = branch_budget(setting, setting.options.branch_module, parameters)
    base = _base(setting, budget)
    specs = {d: ModuleSpec(d, kind, width) for d in _list_branches(setting)}
    branches = {d: _branch(setting, budget, base, d, spec) for d, spec in specs.items()}
    profiles = [(), *((d,) for d in branches), *setting.profiles, *setting.subsets]
    if set(branches) == set(setting.auxiliary):
        profiles.append(setting.auxiliary)
    views = {}
    for profile in profiles:
        weights = setting.modules_on(profile)
        sources = tuple((d, branches[d].run_id) for d, weight in weights.items() if weight)
        views[profile] = View.of(base.run_id, weights, sources=sources)
    return _plans(setting, base, branches, views)


def _list_branches(setting: Setting) -> tuple[str, ...]:
    retained = {d for profile in setting.profiles for d in profile}
    return tuple(d for d in setting.auxiliary if d in retained)


def _plans(
    setting: Setting, base: RunConfig, branches: dict[str, RunConfig], views: dict[Profile, View]
) -> MethodRuns:
    runs = {setting.profile_name((d,)): run for d, run in branches.items()}
    return MethodRuns({"core": base, **runs}, views)


@dataclass(frozen=True)
class BranchBudget:
    """The data of the base and of all branches, including branches that are not run."""

    branching: Branching
    # Core and all unlabelled sequences.
    base: DomainBudget
    # The slice of core that each branch rehearses.
    core: dict[str, Slice]
    aux: dict[str, DomainBudget]


def branch_budget(setting: Setting, branching: Branching, module_parameters: int) -> BranchBudget:
    """Returns the data of the base and of all branches.

    Rounds the base's data to whole steps, and a branch's auxiliary text to route units. The paper's
    factor for equal compute (lambda, `app:equal-compute`) assumes that a rehearsal batch costs as
    much as an auxiliary batch. Raises ValueError if the base gets no step.
    """
    setting, texts = divide_text(setting)
    unit, batch = setting.route_unit(setting.routing.accumulation), setting.size.batch_size
    labelled = 1.0 - setting.options.unlabelled_share
    lengths = {d: labelled * count_sequences(texts[d]) for d in setting.auxiliary}
    share = {d: branching.factor(d) * (1.0 + branching.core_ratio) for d in setting.auxiliary}
    total = sum(setting.num_sequences.values())
    aux_mode = sum_in_order(share[d] * lengths[d] for d in setting.auxiliary)
    parameters, scale = core_parameters(setting.size.dense()), 1.0
    if setting.equal_compute:
        scale = total * parameters / (total * parameters + aux_mode * module_parameters)
    base_core = round(scale * (total - aux_mode) / batch) * batch
    if base_core < batch:
        allowed = "a ratio so small, or a corpus so large, that the base gets a step"
        raise invalid("branching.core_ratio", branching.core_ratio, allowed)
    hidden = slice_unlabelled(setting, scale)
    base = budget_label(setting, texts[CORE], scale, base_core, base_core, hidden)
    first, core, aux = base.pool[0].num_sequences, {}, {}
    for domain in setting.auxiliary:
        number = max(1, round(scale * lengths[domain] / unit)) * unit
        steps = max(1, round(scale * share[domain] * lengths[domain] / batch))
        draws = max(1, round(steps * batch / (1.0 + branching.core_ratio) / unit)) * unit
        aux[domain] = budget_label(setting, texts[domain], scale, number, draws)
        if steps * batch > draws:
            num_rehearsed = steps * batch - draws
            if setting.pool(CORE, first + num_rehearsed) < first + num_rehearsed:
                # Only sequences that the base has seen remain.
                first = 0
            core[domain] = Slice(CORE, first, num_rehearsed)
            first += num_rehearsed
    return BranchBudget(branching, base, core, aux)


def _base(setting: Setting, budget: BranchBudget) -> RunConfig:
    data = DataConfig(setting.data_id, (budget.base,))
    routing = RoutingConfig(accumulation=setting.routing.accumulation)
    return training_run(setting, setting.size.dense(), data, routing)


def _branch(
    setting: Setting, budget: BranchBudget, base: RunConfig, domain: str, module: ModuleSpec | None
) -> RunConfig:
    domains = [budget.aux[domain]]
    if domain in budget.core:
        rehearsal = budget.core[domain]
        number = rehearsal.num_sequences
        domains.append(DomainBudget(CORE, number, number, (rehearsal,)))
    model = setting.size.model(setting.size.d_dense, (module,) if module else ())
    routing = RoutingConfig(accumulation=setting.routing.accumulation)
    if module:
        routing = replace(routing, p_core_robust=1.0, p_aux_spread=0.0, freeze_core=True)
    data = DataConfig(setting.data_id, tuple(domains))
    factor, start = budget.branching.lr_factor, View.of(base.run_id)
    return training_run(setting, model, data, routing, lr_factor=factor, start=start)
