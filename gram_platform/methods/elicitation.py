"""Attacks a view: finetunes its dense model on a fixed sample of a removed domain.

The attack trains all parameters with a fresh optimizer, on the same sample for every method, size and seed. Its result
is the best validation loss; choosing the checkpoint on validation data follows the paper and favours the attacker.
"""

from collections.abc import Iterable

from gram_platform.config import DataConfig, DomainBudget, EvalPoints, ModelConfig, RoutingConfig, RunConfig, View
from gram_platform.config.training import merged_config
from gram_platform.methods.budgets import optimizer_of
from gram_platform.methods.setting import Elicitation, Profile, Setting


def attacks(setting: Setting, profile: Profile, view: View, runs: Iterable[RunConfig]) -> dict[str, RunConfig]:
    """Plans an attack for each domain outside the profile: {domain: run}; {} if the setting leaves the profile out."""
    options = setting.options.elicitation
    if options is None or (options.compared_only and profile not in setting.profiles):
        return {}
    by_id = {run.run_id: run for run in runs}
    return {d: _attack(setting, options, d, view, by_id) for d in setting.auxiliary if d not in profile}


def attacked_view(view: View, domain: str) -> View:
    """Returns the view to attack; for DEMix, the expert that evaluates the domain."""
    return view if view.rule == "constant" else View.of(view.run_id, view.active(domain))


def dense_model(view: View, by_id: dict[str, RunConfig]) -> ModelConfig:
    """Returns the shape of a view merged into one dense model; `by_id`: runs by id."""
    sources = {domain: view.run_id for domain, _ in view.weights} | dict(view.sources)
    specs = [m for d, run_id in sources.items() for m in by_id[run_id].model.modules if m.domain == d]
    model = by_id[view.run_id].model
    modules = {m.domain: m for m in (*model.modules, *specs)}
    with_modules = ModelConfig(**{**vars(model), "modules": tuple(modules.values())})
    return merged_config(with_modules, dict(view.weights))


def _attack(setting: Setting, options: Elicitation, domain: str, view: View, by_id: dict[str, RunConfig]) -> RunConfig:
    size = setting.size
    if options.domain_share:
        options = options.on_domain(setting.num_sequences[domain])
    start = attacked_view(view, domain)
    num_draws = options.num_steps * options.batch_size
    num_epochs = max(1, min(options.num_steps, round(num_draws / options.num_sequences)))
    optimizer = optimizer_of(
        setting,
        size.peak_lr * options.lr_factor,
        options.warmup_fraction,
        0.0,
        beta2=options.beta2,
        clip_norm=options.clip_norm,
    )
    return RunConfig(
        model=dense_model(start, by_id),
        data=DataConfig(setting.data_id, (DomainBudget(domain, options.num_sequences, num_draws),)),
        routing=RoutingConfig(),
        optimizer=optimizer,
        batch_size=options.batch_size,
        micro_batch=_micro_batch(options.batch_size, size.micro_batch, options.is_full_batch),
        eval_points=EvalPoints(num_epochs, setting.num_eval_sequences, (domain,), options.patience),
        seed=setting.seed,
        precision=size.precision,
        start=start,
    )


def _micro_batch(batch_size: int, micro_batch: int, is_full_batch: bool) -> int:
    """Returns the size's micro-batch if it divides the batch; else the whole batch or, of a full batch, the largest
    divisor up to the size's micro-batch. An attack has one route, so only memory and rounding depend on it.
    """
    if batch_size % micro_batch == 0:
        return micro_batch
    if not is_full_batch:
        return batch_size
    return max(part for part in range(1, micro_batch + 1) if batch_size % part == 0)
