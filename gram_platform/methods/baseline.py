"""Baseline: a dense model on all data. Its learning curve is the unit of compute ratios."""

import dataclasses

from gram_platform.config import RunConfig, View
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.setting import Options, Plans, Setting


def run_of(setting: Setting) -> RunConfig:
    """The baseline's run; labels, hence missing ones, mean nothing to it."""
    labelled = dataclasses.replace(setting, options=Options())
    return dense_run(labelled, setting.domains, setting.num_eval_points, setting.baseline_accumulation)


def plan(setting: Setting) -> Plans:
    run = run_of(setting)
    return Plans({"all": run}, {setting.auxiliary: View.of(run.run_id)})
