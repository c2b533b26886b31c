"""Filtering: trains a dense model for each profile on one epoch of core and the profile's domains alone."""

from gram_platform.config import CORE, View
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.setting import Plans, Setting, profile_name


def plan(setting: Setting) -> Plans:
    accumulation = setting.routing.accumulation
    runs = {profile: dense_run(setting, (CORE, *profile), 0, accumulation) for profile in setting.profiles}
    return Plans(
        {profile_name(profile, setting.auxiliary): run for profile, run in runs.items()},
        {profile: View.of(run.run_id) for profile, run in runs.items()},
    )
