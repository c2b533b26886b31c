"""UNDO (unlearn, noise, distil on outputs): distils an unlearned model into its noised copy.

"Distillation Robustifies Unlearning", Lee, Foote, Infanger and others, 2025 (arXiv 2506.06278), and
its code, AddieFoote/distillation-robustify-unlearning (`code/tools/serum.py`,
`run_partial_distill_*.py`):

- The teacher is a MaxEnt model or, on WMDP, an RMU model.
- The student starts with noise: matrices as (1 - alpha) teacher + alpha beta U (Xavier-uniform),
  vectors as (1 - alpha) teacher. Alpha is .1 to .8, beta .1. Gemma stores gain - 1, so scaling
  moves its gains towards 1. We move ours towards 1 as well.
- The loss is KL(teacher || student) at temperature 1, on pretraining text of retain and forget
  domains, without labels.
- AdamW without weight decay clips to norm 1. The rate warms up over 50 steps to the pretraining
  rate (on language, 2.25 times this rate), then follows a cosine.
- Training stops when the retain loss is within 5% of the teacher's, or after a fixed number of
  steps. For the strongest setting, the abstract reports 60 to 80% of retraining's compute.

We do not know the alpha of the strongest setting, or whether its compute includes the teacher. By
default [ours], alpha is .6, and the student trains for .6 of the baseline's steps, with the
baseline's schedule. With the teacher's passes, this costs .8 of the baseline's compute.
"""

from dataclasses import replace

from gram_platform.config import Objective, View
from gram_platform.config.training import DISTILLATION
from gram_platform.methods.budgets import dense_run, optimizer_of
from gram_platform.methods.labels import restore_true_labels
from gram_platform.methods.setting import TEACHERS, MethodRuns, Options, Setting
from gram_platform.methods.unlearning import plan_maxent, plan_rmu

PLANS = dict(zip(TEACHERS, (plan_maxent, plan_rmu), strict=True))


def plan(setting: Setting) -> MethodRuns:
    """Plans teachers, and a run that distils each on the baseline's mixture."""
    options, accumulation = setting.options.undo, setting.baseline_accumulation
    taught = PLANS[options.teacher](setting)
    labelled = replace(restore_true_labels(setting), options=Options())
    rate = setting.size.peak_lr * options.lr_factor
    optimizer = optimizer_of(setting, rate, setting.warmup_fraction, setting.decay_fraction)
    parts = {
        "optimizer": replace(optimizer, weight_decay=0.0),
        "objective": Objective(DISTILLATION, noise=options.noise, noise_scale=options.noise_scale),
    }
    # A step with a teacher costs 4/3 of a step.
    scale, runs, views = 0.75 * options.compute, {}, {}
    for label, run in taught.runs.items():
        runs[label if label == "all" else f"{label} unlearned"] = run
    for profile, start in taught.views.items():
        run = dense_run(labelled, setting.domains, 0, accumulation, scale, start=start, **parts)
        runs[setting.profile_name(profile)], views[profile] = run, View.of(run.run_id)
    return MethodRuns(runs, views)
