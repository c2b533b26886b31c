"""DEMix trains one expert MLP for each domain, in place of the core MLP.

All other weights are trained on all data. Each batch goes to its label's expert. In evaluation,
text of a removed domain goes to core's expert.
"""

from dataclasses import replace

from gram_platform.config import CORE, DataConfig, ModuleSpec, RoutingConfig, View
from gram_platform.methods.budgets import data_budget, training_run
from gram_platform.methods.gram import every_profile
from gram_platform.methods.setting import MethodRuns, Profile, Setting
from gram_platform.methods.unlearning import apportion


def plan(setting: Setting) -> MethodRuns:
    options, accumulation = setting.options.demix, setting.routing.accumulation
    width = options.expert_width or setting.size.d_dense
    model = setting.size.model(0, tuple(ModuleSpec(d, "mlp", width) for d in setting.domains))
    unit = setting.route_unit(accumulation)
    data = data_budget(setting, setting.domains, unit)
    if options.sampling == "balanced":
        draws = apportion(data.num_draws, dict.fromkeys(setting.domains, 1), unit)
        # Without slices partial labels keep their ids.
        kept = not setting.options.unlabelled_share
        budgets = (
            replace(d, num_draws=draws[d.name], slices=d.slices * kept) for d in data.domains
        )
        data = DataConfig(setting.data_id, tuple(budgets))
    run = training_run(setting, model, data, RoutingConfig(accumulation=accumulation))
    return MethodRuns({"all": run}, _views(setting, run.run_id))


def _views(setting: Setting, run_id: str) -> dict[Profile, View]:
    if setting.options.demix.views == "by_domain":
        granted = {p: dict.fromkeys((CORE, *p), 1.0) for p in every_profile(setting)}
        return {p: View.of(run_id, weights, rule="by_domain") for p, weights in granted.items()}
    return {
        p: View.of(run_id, {(p or (CORE,))[0]: 1.0}) for p in every_profile(setting) if len(p) < 2
    }
