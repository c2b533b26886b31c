"""Plans dense models: the baseline on all data, and filtering with one model per profile."""

import dataclasses

from gram_platform.config import CORE, RunConfig, View
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.labels import restore_true_labels
from gram_platform.methods.setting import MethodRuns, Options, Setting


def baseline_run(setting: Setting) -> RunConfig:
    """Plans the baseline's run, which ignores missing and wrong labels."""
    labelled = dataclasses.replace(restore_true_labels(setting), options=Options())
    return dense_run(
        labelled, setting.domains, setting.num_eval_points, setting.baseline_accumulation
    )


def plan_baseline(setting: Setting) -> MethodRuns:
    """Plans one dense run on all domains."""
    run = baseline_run(setting)
    return MethodRuns({"all": run}, {setting.auxiliary: View.of(run.run_id)})


def plan_filtering(setting: Setting) -> MethodRuns:
    """Plans a dense run for each profile, on core and the profile's domains."""
    accumulation = setting.routing.accumulation
    runs = {
        profile: dense_run(setting, (CORE, *profile), 0, accumulation)
        for profile in setting.profiles
    }
    return MethodRuns(
        {setting.profile_name(profile): run for profile, run in runs.items()},
        {profile: View.of(run.run_id) for profile, run in runs.items()},
    )
