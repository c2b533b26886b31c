"""Computes the paper's cost table from configs: what each method costs relative to the baseline."""

from collections.abc import Sequence

from gram_platform.config import is_unlabelled
from gram_platform.config.flops import compute_units, mlp_parameters, module_parameters
from gram_platform.methods import plan
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.setting import Setting


def method_costs(setting: Setting, methods: Sequence[str]) -> list[dict]:
    """Returns one row for each method, with numbers as multiples of the baseline's.

    `train`: compute_units of all runs as the paper counts them (core batches at P_core); `plan`: the same with p_cr's
    companions; `active_mlp`: (least, most) MLP parameters of a forward pass with at most one active module;
    `total_mlp`: MLP parameters of all weights that serve the compared profiles.
    """
    base = next(iter(plan("baseline", setting).runs.values()))
    unit = base.model.num_layers * mlp_parameters(base.model.d_model, base.model.d_mlp)
    return [{"method": method, **_cost(setting, method, base, unit)} for method in methods]


def _cost(setting: Setting, method: str, base, unit: int) -> dict:
    plans = plan(method, setting)
    runs = {run.run_id: run for run in plans.runs.values()}
    active, total = set(), 0
    for run in runs.values():
        core = run.model.num_layers * mlp_parameters(run.model.d_model, run.model.d_mlp) if run.model.d_mlp else 0
        modules = {d: module_parameters(run.model, d) for d in run.model.module_domains}
        served = run.run_id in {view.run_id for view in plans.views.values()}
        total += (core if served else 0) + sum(modules.values())
        active |= {core + part for part in modules.values()} | ({core} if core and served else set())
    base_units = plan_compute_units(base)
    return {
        "train": sum(_paper_units(run) for run in runs.values()) / base_units,
        "plan": sum(plan_compute_units(run) for run in runs.values()) / base_units,
        "active_mlp": (min(active) / unit, max(active) / unit),
        "total_mlp": total / unit,
    }


def _paper_units(run) -> int:
    """Counts tokens x active parameters, core batches at P_core. Rehearsal batches also pass their branch's module,
    unlabelled batches all modules.
    """
    modules, total = run.model.module_domains, 0
    for budget in run.data.domains:
        has_all = run.routing.freeze_core or is_unlabelled(budget.name)
        active = (budget.name,) if budget.name in modules else modules if has_all else ()
        total += compute_units(run.model, budget.num_draws * run.model.seq_len, active)
    return total
