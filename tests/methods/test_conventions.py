"""What the authors' published settings do otherwise than the paper's text: each choice changes what
it should."""

import dataclasses

import pytest

from gram_platform.config import CORE, RoutingConfig, View
from gram_platform.config.flops import total_parameters
from gram_platform.config.routing import Schedule
from gram_platform.methods import plan
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.elicitation import plan_attacks
from gram_platform.methods.setting import Conventions, Demix, Elicitation, Options, Unlearning
from tests.methods.test_plans import AUXILIARY, setting

HALF = Options(unlabelled_share=0.5)


def gram(**parts):
    return plan("gram", setting(core=40_000, aux=2_500, **parts)).runs["all"]


def test_p_as_over_p_af_trains_the_core_as_often_as_without_oversampling():
    factors = {
        "aux_factor": 3.0,
        "aux_factor_of": (("lisp", 4.0),),
        "routing": RoutingConfig(0.2, 0.5),
    }
    text, run = gram(**factors), gram(**factors, conventions=Conventions(spread_over_factor=True))
    assert text.routing.p_aux_spread_of == ()
    spreads = dict(run.routing.p_aux_spread_of)
    assert spreads["lisp"] == 0.125
    assert spreads["cyber"] == pytest.approx(0.5 / 3)
    assert run.data == text.data
    rare = gram(
        aux_factor=0.25,
        routing=RoutingConfig(0.2, 0.5),
        conventions=Conventions(spread_over_factor=True),
    )
    # Every batch of a domain that is drawn rarely.
    assert set(dict(rare.routing.p_aux_spread_of).values()) == {1.0}


def test_companions_in_proportion_to_what_is_drawn_of_a_domain():
    factors = {"aux_factor": 3.0, "aux_factor_of": (("lisp", 4.0),)}
    run = gram(**factors, conventions=Conventions(companions_by_size=True))
    assert dict(run.routing.companion_weights) == {
        "lisp": 10_000.0,
        "cyber": 7_500.0,
        "nuclear": 7_500.0,
    } | {"virology": 7_500.0}
    beside = {
        r.active: n for (d, r), n in Schedule(run).route_counts().items() if d == CORE and r.active
    }
    for domain, share in (
        ("cyber", 3 / 13),
        ("lisp", 4 / 13),
        ("nuclear", 3 / 13),
        ("virology", 3 / 13),
    ):
        assert beside[(domain, 1.0),] / sum(beside.values()) == pytest.approx(share, abs=0.03)


def test_unlabelled_batches_of_one_domain_each():
    pooled = gram(options=HALF)
    apart = gram(options=HALF, conventions=Conventions(unlabelled_by_domain=True))
    own = {d.name: d for d in apart.data.domains if d.name.startswith("unlabelled:")}
    assert set(own) == {f"unlabelled:{d}" for d in (CORE, *AUXILIARY)}
    assert all(len({part.domain for part in budget.pool}) == 1 for budget in own.values())
    (pool,) = (d for d in pooled.data.domains if d.name == "unlabelled")
    assert set(pool.pool) == {part for budget in own.values() for part in budget.pool}
    everything = tuple((d, 1.0) for d in AUXILIARY)
    assert all(
        r.active == everything
        for (d, r) in Schedule(apart).route_counts()
        if d.startswith("unlabelled:")
    )


@pytest.mark.parametrize("options", [Options(), HALF])
def test_lambda_can_count_what_is_really_drawn(options):
    factors = {"aux_factor": 3.0, "aux_factor_of": (("lisp", 4.0),), "options": options}
    base = plan_compute_units(plan("baseline", setting(core=40_000, aux=2_500)).runs["all"])
    counted = plan_compute_units(gram(**factors, conventions=Conventions(lambda_counts_plan=True)))
    assert counted == pytest.approx(base, rel=1.5e-3)
    assert plan_compute_units(gram(**factors)) > 1.01 * base  # the paper's text leaves them out


def test_compute_units_count_the_drawn_plan():
    run = gram(routing=RoutingConfig(0.5, 0.3))
    drawn = Schedule(run)
    batches = [drawn[t] for t in range(len(drawn))]
    tokens = run.micro_batch * run.model.seq_len
    by_hand = sum(
        tokens * total_parameters(dataclasses.replace(run.model, modules=active))
        for batch in batches
        for active in [tuple(m for m in run.model.modules if m.domain in dict(batch.route.active))]
    )
    assert plan_compute_units(run) == by_hand
    assert plan_compute_units(run, 3) < plan_compute_units(run, 4) < by_hand
    assert plan_compute_units(run, run.num_steps) == by_hand


def test_weight_decay_and_documents_reach_every_run():
    conventions = Conventions(document_end=0, weight_decay=0.01, decay_vectors=True)
    cell = setting(conventions=conventions)
    for method in ("baseline", "filtering", "gram", "ft_lora", "maxent", "demix"):
        plans = plan(method, cell)
        attacked = [
            a
            for p, v in plans.views.items()
            for a in plan_attacks(cell, p, v, plans.runs.values()).values()
        ]
        for run in (*plans.runs.values(), *attacked):
            assert run.model.document_end == 0
            assert (run.optimizer.weight_decay, run.optimizer.decay_vectors) == (0.01, True)


def test_an_attack_can_be_one_full_batch_a_step():
    full = Elicitation(
        512, 200, 10, batch_size=512, warmup_fraction=0.0, beta2=0.999, clip_norm=0.0
    )
    cell = setting(options=Options(elicitation=full))
    plans = plan("filtering", cell)
    ((profile, view),) = plans.views.items()
    attack = plan_attacks(cell, profile, view, plans.runs.values())["lisp"]
    assert attack.num_steps == 200
    assert attack.batch_size == 512
    assert attack.eval_points.num_points == 200
    assert attack.eval_points.patience == 10
    assert attack.batch_size % attack.micro_batch == 0
    assert attack.micro_batch <= cell.size.micro_batch
    assert (
        attack.optimizer.beta2,
        attack.optimizer.clip_norm,
        attack.optimizer.warmup_fraction,
    ) == (0.999, 0.0, 0.0)


def test_maxent_can_take_few_sequences_and_a_fixed_share_of_core():
    own = Unlearning(
        num_steps=100,
        batch_size=8,
        core_share=0.75,
        stop_below=2.0,
        clip_norm=0.0,
        warmup_fraction=0.0,
    )
    run = plan("maxent", setting(options=Options(maxent=own))).runs["core+virology"]
    draws = {d.name: d.num_draws for d in run.data.domains}
    assert run.batch_size == 16
    assert run.num_steps == 100
    assert draws[CORE] == 600
    assert draws["virology"] == 200
    assert sum(draws.values()) == 1600
    assert (run.objective.kind, run.objective.stop_below) == ("maxent_entropy", 2.0)
    assert run.optimizer.clip_norm == 0.0


def test_demix_can_be_scored_with_one_expert_for_every_domain():
    cell = setting(
        options=Options(demix=Demix(views="single_expert"), elicitation=Elicitation(32, 8))
    )
    plans = plan("demix", cell)
    run_id = plans.runs["all"].run_id
    assert plans.views[()] == View.of(run_id, {CORE: 1.0})
    assert plans.views[("lisp",)] == View.of(run_id, {"lisp": 1.0})
    assert len(plans.views) == 5  # no view of all: one expert is on
    pair = ("lisp", "nuclear")
    assert pair not in plan("demix", dataclasses.replace(cell, profiles=(pair,))).views
    attacked = plan_attacks(cell, ("virology",), plans.views[("virology",)], plans.runs.values())
    assert {a.start for a in attacked.values()} == {plans.views[("virology",)]}
    default = plan("demix", setting()).views[("lisp",)]
    assert default.rule == "by_domain"
