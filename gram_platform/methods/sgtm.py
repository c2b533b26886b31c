"""SGTM, selective gradient masking (Shilov and others, 2025, arXiv 2512.05648).

In every layer's MLP, some hidden units (a part) are reserved for a domain's text. Zeroing them
removes the domain. Each part is a module. The core's MLP and the parts together are as wide as the
dense MLP, so a run has the baseline's parameters, data and steps. With `heads`, each part also has
query heads with a key-value head, in addition to the core's [ours]. A run then has more parameters
than the baseline and, with equal compute, proportionally fewer steps. All micro-batches of a step
are of one kind:

- Forget (auxiliary text): everything is active. Only the matrices of the text's part are trained,
  and, unless `mask_embeddings`, the embedding and the norms.
- Retain (a share of core): the parts are inactive, and everything else is trained.
- Default (the rest of core, unlabelled text): everything is active and trained.

The authors have one part for all domains (our option `joint`), which includes one of the dense
model's heads. Their schedule differs, and they can train output biases after the removal. Here, a
step changes only the parameters that it trains: weight decay and moments change no untrained
parameters. Forget steps do not train the unembedding.

In a view's dense model, all key-value heads have equally many query heads. A part with fewer query
heads is padded with heads of zeros, which attacks train too.
"""

from dataclasses import replace

from gram_platform.config import (
    CORE,
    DataConfig,
    DomainBudget,
    ModuleSpec,
    RoutingConfig,
    View,
    is_unlabelled,
)
from gram_platform.config.flops import core_parameters, total_parameters
from gram_platform.config.identity import invalid, require_int
from gram_platform.config.training import RESERVED_UNITS
from gram_platform.methods.budgets import data_budget, training_run
from gram_platform.methods.gram import every_profile, width_of
from gram_platform.methods.setting import MethodRuns, Setting

JOINT = "auxiliary"


def plan(setting: Setting) -> MethodRuns:
    """Plans one run, and a view for each profile. With `joint`, only `core` and `all` have views.

    Raises InvalidField if the parts leave no hidden units for the core, or if `heads` exceeds the
    number of query heads that share a key-value head in the core.
    """
    options, size, auxiliary = setting.options.sgtm, setting.size, setting.auxiliary
    parts = (JOINT,) if options.joint else auxiliary
    width = width_of(setting, options.share)
    if len(parts) * width >= size.d_dense:
        allowed = f"less than the MLP's {size.d_dense} units, found {len(parts)} x {width}"
        raise invalid("sgtm.share", options.share, allowed)
    dense = size.dense()
    require_int("sgtm.heads", options.heads, 0, dense.group_size)
    specs = tuple(ModuleSpec(part, RESERVED_UNITS, width, options.heads) for part in parts)
    model = size.model(size.d_dense - len(parts) * width, specs)
    scale = core_parameters(dense) / total_parameters(model) if setting.equal_compute else 1.0
    routing = RoutingConfig(
        p_core_robust=1.0 - options.retain_share,
        p_aux_spread=0.0,
        accumulation="uniform",
        companions="all",
        p_aux_companion=1.0,
        spreads_embeddings=not options.mask_embeddings,
    )
    data = data_budget(
        setting, setting.domains, size.batch_size, scale=scale, unlabelled_is_core=False
    )
    run = training_run(setting, model, join_domains(data) if options.joint else data, routing)
    profiles = ((), auxiliary) if options.joint else every_profile(setting)
    on = {p: setting.modules_on(parts if options.joint and p else p) for p in profiles}
    return MethodRuns({"all": run}, {p: View.of(run.run_id, weights) for p, weights in on.items()})


def join_domains(data: DataConfig) -> DataConfig:
    """Merges the labelled sequences of all auxiliary domains under one label."""
    apart = [d for d in data.domains if d.name == CORE or is_unlabelled(d.name)]
    pooled = [d for d in data.domains if d not in apart]
    counts = (sum(d.num_sequences for d in pooled), sum(d.num_draws for d in pooled))
    budget = DomainBudget(JOINT, *counts, tuple(part for d in pooled for part in d.pool))
    return replace(data, domains=(*apart, budget))
