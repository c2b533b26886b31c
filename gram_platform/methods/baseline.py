"""Baseline: a dense model on all data. Its learning curve is the unit of compute ratios."""

from gram_platform.config import View
from gram_platform.methods.setting import Plans, Setting, dense_run


def plan(setting: Setting) -> Plans:
    domains = tuple(setting.num_sequences)
    run = dense_run(setting, domains, setting.num_eval_points, setting.baseline_accumulation)
    return Plans({"all": run}, {setting.auxiliary: View.of(run.run_id)})
