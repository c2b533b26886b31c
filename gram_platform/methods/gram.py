"""GRAM: one run with an auxiliary MLP for each domain; every subset of modules is a view of it."""

from gram_platform.config import View
from gram_platform.methods.setting import Plans, Profile, Setting, data_budget, routed_scale, training_run


def plan(setting: Setting) -> Plans:
    domains = tuple(setting.num_sequences)
    model = setting.size.modular(domains)
    scale = routed_scale(setting, model)
    is_uniform = setting.routing.accumulation == "uniform"
    unit = setting.size.batch_size if is_uniform else setting.size.micro_batch
    data = data_budget(setting, domains, unit, setting.aux_factor, scale)
    run = training_run(setting, model, data, setting.routing)
    return Plans({"all": run}, {p: View.of(run.run_id, dict.fromkeys(p, 1.0)) for p in every_profile(setting)})


def every_profile(setting: Setting) -> tuple[Profile, ...]:
    """Core alone, core with each domain, all, and the compared ones: a view costs one evaluation, no training."""
    singles = tuple((domain,) for domain in setting.auxiliary)
    return tuple(dict.fromkeys(((), *singles, setting.auxiliary, *setting.profiles)))
