"""Baseline: trains a dense model on all data. Compute ratios refer to its learning curve."""

import dataclasses

from gram_platform.config import RunConfig, View
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.setting import Options, Plans, Setting


def run_of(setting: Setting) -> RunConfig:
    """Plans the baseline's run, which does not depend on labels."""
    labelled = dataclasses.replace(setting, options=Options())
    return dense_run(labelled, setting.domains, setting.num_eval_points, setting.baseline_accumulation)


def plan(setting: Setting) -> Plans:
    run = run_of(setting)
    return Plans({"all": run}, {setting.auxiliary: View.of(run.run_id)})
