"""Plans attacks, which finetune a view to regain a removed domain, and other finetuning of views.

Attacks on a domain use the same text for every method and seed, and a fresh optimizer. An attack's
result is its lowest validation loss on the domain, which favours the attacker, as in the paper.
"""

from collections.abc import Iterable
from dataclasses import replace

from gram_platform.config import (
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModuleSpec,
    Objective,
    RoutingConfig,
    RunConfig,
    View,
)
from gram_platform.config.identity import invalid, one_of
from gram_platform.config.training import merge_config
from gram_platform.methods.budgets import optimizer_of
from gram_platform.methods.setting import NEIGHBOUR, OWN, Elicitation, MethodRuns, Profile, Setting


def plan_attacks(
    setting: Setting, profile: Profile, view: View, runs: Iterable[RunConfig]
) -> dict[str, RunConfig]:
    """Plans an attack on each domain that the profile removes.

    Returns {} if the options include no attacks on the profile.
    """
    options = setting.options.elicitation
    if options is None or (options.compared_only and profile not in setting.profiles):
        return {}
    by_id, attacks = {run.run_id: run for run in runs}, {}
    for domain in setting.auxiliary:
        if domain not in profile:
            number, start = setting.num_sequences[domain], view_to_attack(view, domain)
            own = options.on_domain(number) if options.domain_share else options
            text = choose_text(setting, own, domain)
            attacks[domain] = finetuning_run(setting, own, text, domain, start, by_id)
    return attacks


def view_to_attack(view: View, domain: str) -> View:
    """Returns the view to attack. A DEMix view is reduced to the expert it uses on `domain`."""
    return view if view.rule == "constant" else View.of(view.run_id, view.active(domain))


def choose_text(setting: Setting, options: Elicitation, domain: str) -> str:
    """Returns the domain whose text is used to attack `domain`.

    If `options.text` is OWN, this is `domain`. If it is NEIGHBOUR, this is the next auxiliary
    domain (after the last one, the first) [ours]. Otherwise `options.text` is the domain's name.
    Raises ValueError if the corpus has no such domain.
    """
    auxiliary = setting.auxiliary
    if options.text == OWN:
        return domain
    if options.text == NEIGHBOUR and len(auxiliary) > 1:
        return auxiliary[(auxiliary.index(domain) + 1) % len(auxiliary)]
    if options.text not in setting.domains:
        names = one_of(options.text, setting.domains)
        allowed = f"{OWN}, {NEIGHBOUR} in a corpus of several auxiliary domains, or {names}"
        raise invalid("elicitation.text", options.text, allowed)
    return options.text


def add_finetuning(setting: Setting, options: Elicitation, plans: MethodRuns) -> MethodRuns:
    """Plans runs that finetune the views of the compared profiles on `options.text`.

    If none of these profiles has a view, finetunes all views. The finetuned views replace the
    method's views. Raises ValueError for DEMix.
    """
    by_id = {run.run_id: run for run in plans.runs.values()}
    compared = {p: view for p, view in plans.views.items() if p in setting.profiles} or plans.views
    runs, views = dict(plans.runs), {}
    for profile, view in compared.items():
        if view.rule != "constant":
            allowed = "none for a method whose views choose an expert by domain"
            raise invalid("options.finetuning", options.text, allowed)
        run = finetuning_run(setting, options, options.text, options.text, view, by_id)
        runs[f"{setting.profile_name(profile)} finetuned"] = run
        views[profile] = View.of(run.run_id, dict.fromkeys(run.model.module_domains, 1.0))
    return MethodRuns(runs, views)


def finetuning_run(
    setting: Setting,
    options: Elicitation,
    text: str,
    measured: str,
    start: View,
    by_id: dict[str, RunConfig],
) -> RunConfig:
    """Plans a run that finetunes a view on the domain `text`, and evaluates it on `measured`."""
    size, shape = setting.size, start.model(lambda run_id: by_id[run_id].model)
    num_draws = options.num_steps * options.batch_size
    num_epochs = max(1, min(options.num_steps, round(num_draws / options.num_sequences)))
    rate, norm = size.peak_lr * options.lr_factor, options.clip_norm
    optimizer = optimizer_of(
        setting, rate, options.warmup_fraction, 0.0, beta2=options.beta2, clip_norm=norm
    )
    adapters = (ModuleSpec(text, "lora", options.rank),) if options.rank else ()
    return RunConfig(
        model=replace(merge_config(shape, dict(start.weights)), modules=adapters),
        data=DataConfig(setting.data_id, (DomainBudget(text, options.num_sequences, num_draws),)),
        routing=RoutingConfig(freeze_core=bool(adapters)),
        optimizer=optimizer,
        batch_size=options.batch_size,
        micro_batch=_micro_batch(options, size.micro_batch),
        eval_points=EvalPoints(
            num_epochs, setting.num_eval_sequences, (measured,), options.patience
        ),
        seed=setting.seed,
        precision=size.precision,
        objective=Objective(responses_after=options.responses_after),
        start=start,
    )


def _micro_batch(options: Elicitation, micro_batch: int) -> int:
    """Returns `micro_batch` if it divides the batch size.

    Otherwise, returns the batch size if the sample is larger than a batch, or else the batch size's
    largest divisor below `micro_batch`. The choice affects only memory and rounding.
    """
    if options.batch_size < options.num_sequences and options.batch_size % micro_batch:
        return options.batch_size
    return max(part for part in range(1, micro_batch + 1) if options.batch_size % part == 0)
