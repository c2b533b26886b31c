"""Methods as functions from a setting to runs and views."""

import dataclasses
import itertools

import pytest

from gram_platform.config import CORE, OptimizerConfig, RoutingConfig, Slice, View
from gram_platform.config.flops import core_parameters, total_parameters
from gram_platform.config.identity import short_hash
from gram_platform.config.ladder import PAPER_SIZES, SMOKE_SIZES
from gram_platform.config.routing import EMBEDDINGS, Schedule, module_set
from gram_platform.methods import METHODS, Setting, plan
from gram_platform.methods.budgets import compute_lambda, plan_compute_units
from gram_platform.methods.dense import baseline_run
from gram_platform.methods.labels import budget_label
from gram_platform.methods.nodes import method_nodes, require_closed, unique
from gram_platform.methods.setting import (
    TEACHERS,
    Branching,
    Conventions,
    Demix,
    Elicitation,
    Options,
    Sgtm,
    Undo,
    Unlearning,
    profile_name,
)
from gram_platform.train.optimizers import learning_rate
from tests.refused import refused

AUXILIARY = ("cyber", "lisp", "nuclear", "virology")


def setting(size=SMOKE_SIZES["tiny"], core=4000, aux=250, **parts) -> Setting:
    defaults = {
        "size": size,
        "seed": 0,
        "data_id": "data",
        "num_sequences": {CORE: core, **dict.fromkeys(AUXILIARY, aux)},
        "profiles": (("virology",),),
        "routing": RoutingConfig(0.5, 0.3),
        "warmup_fraction": 0.1,
        "decay_fraction": 0.1,
        "num_eval_points": 5,
        "num_eval_sequences": 4,
        "options": Options(
            branch_full=Branching(2.0),
            maxent=Unlearning(num_steps=4),
            elicitation=Elicitation(32, 8),
        ),
    }
    return Setting(**{**defaults, **parts})


def test_baseline_sees_everything_once_and_filtering_only_its_profile():
    base = plan("baseline", setting()).runs["all"]
    filtered = plan("filtering", setting()).runs["core+virology"]
    assert {d.name for d in base.data.domains} == {CORE, *AUXILIARY}
    assert {d.name for d in filtered.data.domains} == {CORE, "virology"}
    for run in (base, filtered):
        assert all(d.num_draws <= d.num_sequences for d in run.data.domains)
        assert run.model.modules == ()
    assert base.num_tokens == pytest.approx(5000 * 64, rel=0.01)
    assert filtered.num_tokens == pytest.approx(4250 * 64, rel=0.01)
    assert base.eval_points.num_points == 5
    assert filtered.eval_points.num_points == 0


def test_gram_costs_what_the_baseline_costs():
    cell = setting(core=40_000, aux=2_500)
    base, routed = plan("baseline", cell).runs["all"], plan("gram", cell).runs["all"]
    without_companions = dataclasses.replace(routed, routing=RoutingConfig(0.0, 0.3))
    assert plan_compute_units(without_companions) == pytest.approx(
        plan_compute_units(base), rel=2e-3
    )
    # p_cr costs what it costs.
    assert plan_compute_units(routed) > plan_compute_units(without_companions)
    unmatched = plan("gram", dataclasses.replace(cell, equal_compute=False)).runs["all"]
    assert unmatched.num_tokens == base.num_tokens > routed.num_tokens


def test_lambda_is_the_papers_formula():
    cell = setting(PAPER_SIZES["800M"], core=15_722_656, aux=39_306)
    model = cell.size.modular((CORE, *AUXILIARY))
    p_core, p_aux = core_parameters(cell.size.dense()), 49_205_760
    l_core, l_aux = 15_722_656, 4 * 39_306
    expected = (l_core + l_aux) * p_core / (l_core * p_core + l_aux * (p_core + p_aux))
    assert compute_lambda(cell, model) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("accumulation", ["heterogeneous", "uniform"])
def test_aux_factor_draws_more_of_the_domain_and_less_core(accumulation):
    routing = RoutingConfig(0.5, 0.3, accumulation)
    once, thrice = (
        plan("gram", setting(aux_factor=f, routing=routing)).runs["all"] for f in (1.0, 3.0)
    )
    assert thrice.num_steps == once.num_steps
    for before, after in zip(once.data.domains, thrice.data.domains, strict=True):
        if before.name == CORE:
            assert after.num_draws < before.num_draws
            assert after.num_draws <= after.num_sequences
        else:
            assert after.num_sequences == before.num_sequences
            assert after.num_draws == pytest.approx(3 * before.num_draws, abs=once.route_unit * 2)
    assert len(Schedule(thrice)) == thrice.num_steps * thrice.micro_batches_per_step


def test_too_much_auxiliary_data_is_refused():
    with refused("aux_factor", 10.0):
        plan("gram", setting(aux_factor=10.0))


def test_core_may_be_left_one_micro_batch_and_no_less():
    """One step of 16 sequences in micro-batches of 4: 12 of lisp leave 4 of core, 16 leave none."""
    draws = {d.name: d.num_draws for d in baseline_of({CORE: 3, "lisp": 13}).data.domains}
    assert draws == {CORE: 4, "lisp": 12}
    with refused("aux_factor", 1.0):
        baseline_of({CORE: 1, "lisp": 15})
    assert {d.name: d.num_draws for d in baseline_of({CORE: 30, "lisp": 1}).data.domains} == {
        CORE: 28,
        "lisp": 4,
    }


def test_labelled_core_fills_what_unlabelled_text_leaves():
    hidden = (Slice(CORE, 100, 4), Slice("lisp", 50, 3))
    text = (Slice(CORE, 0, 4000),)
    budget = budget_label(setting(), text, 1.0, 8, 8, hidden)
    assert budget.pool == (Slice(CORE, 0, 1), *hidden)
    with refused("unlabelled_share", 7):
        budget_label(setting(), text, 1.0, 7, 7, hidden)


def baseline_of(num_sequences):
    return plan("baseline", setting(num_sequences=num_sequences, profiles=())).runs["all"]


def test_gram_serves_every_profile_from_one_run():
    plans = plan("gram", setting())
    names = [profile_name(profile, AUXILIARY) for profile in plans.views]
    assert names == ["core", "core+cyber", "core+lisp", "core+nuclear", "core+virology", "all"]
    assert {view.run_id for view in plans.views.values()} == {plans.runs["all"].run_id}
    assert plans.views[("lisp",)].active(CORE) == {"lisp": 1.0}


def test_unlearning_methods_are_one_stage_after_one_baseline():
    kinds = {"maxent": "maxent_entropy", "rmu": "misdirection", "graddiff": "gradient_difference"}
    base = plan("baseline", setting()).runs["all"]
    for method, kind in kinds.items():
        plans = plan(method, setting())
        run = plans.runs["core+virology"]
        assert plans.runs["all"].run_id == base.run_id == run.start.run_id
        assert plans.views == {("virology",): View.of(run.run_id)}
        assert (run.objective.kind, run.objective.forget) == (kind, ("cyber", "lisp", "nuclear"))
        forgotten = [d.num_draws for d in run.data.domains if d.name in run.objective.forget]
        assert 2 * sum(forgotten) == run.data.num_draws
        assert max(forgotten) - min(forgotten) <= run.micro_batch
    steered = {
        name: plan("rmu", setting(size)).runs["core+virology"] for name, size in PAPER_SIZES.items()
    }
    assert {name: run.objective.steered_layers for name, run in steered.items()} == {
        name: round(size.num_layers / 4) for name, size in PAPER_SIZES.items()
    }


@pytest.mark.parametrize("teacher", TEACHERS)
def test_undo_distils_its_teachers_runs_on_the_baselines_mixture(teacher):
    cell = setting().with_options(undo=Undo(teacher, compute=0.6))
    plans, taught, base = plan("undo", cell), plan(teacher, cell), baseline_run(cell)
    unlearned, run = plans.runs["core+virology unlearned"], plans.runs["core+virology"]
    assert {"all": base, "core+virology": unlearned} == taught.runs
    assert run.start == taught.views["virology",]
    assert plans.views == {("virology",): View.of(run.run_id)}
    shares = {
        d.name: d.num_draws / b.num_draws
        for d, b in zip(run.data.domains, base.data.domains, strict=True)
    }
    assert shares == pytest.approx(dict.fromkeys(cell.domains, 0.45), abs=0.05)
    assert plan_compute_units(run) / plan_compute_units(base) == pytest.approx(0.6, rel=0.01)
    # Labels, which only the teacher needs, do not change the text of the distillation.
    noisy = plan("undo", cell.with_options(recall=0.8)).runs
    assert noisy["core+virology unlearned"].data != unlearned.data
    assert noisy["core+virology"].data == run.data


def test_seeds_and_sizes_are_different_runs_and_names_are_not():
    ids = {plan("gram", setting(seed=s)).runs["all"].run_id for s in range(3)}
    assert len(ids) == 3
    renamed = dataclasses.replace(SMOKE_SIZES["tiny"], name="other")
    assert plan("gram", setting(renamed)).runs["all"].run_id in ids


def test_filtering_for_everything_is_the_baseline_but_for_its_curve():
    cell = setting(num_sequences={CORE: 4000, "virology": 250})
    base, filtered = plan("baseline", cell), plan("filtering", cell)
    twin = dataclasses.replace(filtered.runs["all"], eval_points=base.runs["all"].eval_points)
    assert twin.run_id == base.runs["all"].run_id


def test_nodes_are_closed_and_unique():
    nodes = [node for method in METHODS for node in method_nodes(method, setting())]
    require_closed(nodes)
    assert len(unique([*nodes, *nodes])) == len(unique(nodes)) == len({n.id for n in nodes})
    evaluations = [n for n in nodes if n.kind == "evaluation"]
    assert all(n.needs for n in evaluations)
    assert dict(evaluations[1].tags)["retained"] == "virology"


def test_unknown_method():
    with refused("methods", "magic"):
        plan("magic", setting())


def test_learning_rate_schedule():
    optimizer = plan("baseline", setting()).runs["all"].optimizer
    rates = [learning_rate(optimizer, step, 100) / optimizer.peak_lr for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:90] == [1.0] * 81
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_fractions_of_a_schedule_are_rounded_to_whole_steps():
    """0.16 and 0.28 of ten steps are two steps up and three down; without either the rate is
    constant."""
    rates = [learning_rate(OptimizerConfig(6.0, 0.16, 0.28), step, 10) for step in range(10)]
    assert rates == pytest.approx([3.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 4.0, 2.0])
    assert {learning_rate(OptimizerConfig(6.0, 0.0, 0.0), step, 10) for step in range(10)} == {6.0}


@pytest.mark.parametrize("joint", [False, True])
def test_sgtm_has_the_baselines_parameters_data_and_steps(joint):
    """Three quarters of core's steps, and all auxiliary steps, have everything on."""
    cell = setting().with_options(sgtm=Sgtm(0.1, joint=joint))
    base, plans = plan("baseline", cell).runs["all"], plan("sgtm", cell)
    run = plans.runs["all"]
    assert total_parameters(run.model) == total_parameters(base.model)
    assert run.num_steps == base.num_steps
    parts = {part for budget in run.data.domains for part in budget.pool}
    assert {(part.domain, part.num_sequences) for part in parts} == {
        (domain, 3968 if domain == CORE else 256) for domain in cell.domains
    }
    everything, counts = run.model.module_domains, Schedule(run).route_counts()
    assert [m.width for m in run.model.modules] == [13] * (1 if joint else 4)
    on = {(d, tuple(dict(r.active)), frozenset(r.trained)): n for (d, r), n in counts.items()}
    core = {active: n for (d, active, _), n in on.items() if d == CORE}
    assert core[everything] / sum(core.values()) == pytest.approx(0.75, abs=0.03)
    assert set(core) == {everything, ()}
    for domain, active, trained in on:
        if domain != CORE:
            assert (active, trained) == (everything, {module_set(domain), EMBEDDINGS})
    profiles = [(), AUXILIARY] if joint else [(), *((d,) for d in AUXILIARY), AUXILIARY]
    assert {p: dict(view.weights) for p, view in plans.views.items()} == {
        p: dict.fromkeys(everything if joint and p else p, 1.0) for p in profiles
    }


def test_sgtm_refuses_shares_before_any_work():
    for field, value in itertools.product(("share", "retain_share"), (0.0, 1.01, -0.1)):
        with refused(f"sgtm.{field}", value):
            Sgtm(**{field: value})
    for options in (Sgtm(0.25), Sgtm(1.0, joint=True)):
        with refused("sgtm.share", options.share):
            plan("sgtm", setting().with_options(sgtm=options))
    plan("sgtm", setting().with_options(sgtm=Sgtm(0.24)))
    with refused("sgtm.heads", -1):
        Sgtm(heads=-1)
    group = setting().size.num_heads // setting().size.num_kv_heads
    with refused("sgtm.heads", group + 1):
        plan("sgtm", setting().with_options(sgtm=Sgtm(heads=group + 1)))


def test_reserved_heads_cost_steps():
    cell = setting(core=40_000).with_options(sgtm=Sgtm(heads=1))
    base, run = (plan(method, cell).runs["all"] for method in ("baseline", "sgtm"))
    assert {module.num_heads for module in run.model.modules} == {1}
    costs = [one.num_steps * total_parameters(one.model) for one in (base, run)]
    assert run.num_steps < base.num_steps
    assert costs[1] == pytest.approx(costs[0], rel=2e-3)
    unmatched = plan("sgtm", dataclasses.replace(cell, equal_compute=False)).runs["all"]
    assert unmatched.num_steps == base.num_steps


LENGTHS = {CORE: 4123, "cyber": 251, "lisp": 203, "nuclear": 331, "virology": 97}
# The kind that the first version had by default.
FORGET_HALF = Unlearning(30, 3e-4, 20.0, "maxent_kl", batch_size=24, core_share=0.6, stop_below=1.5)
PLAIN = {
    "num_sequences": LENGTHS,
    "profiles": ((), ("virology",), ("lisp", "nuclear")),
    "options": Options(
        branch_full=Branching(2.0),
        maxent=Unlearning(7, kind="maxent_kl"),
        elicitation=Elicitation(24, 9, domain_share=0.1),
    ),
}
UNUSUAL = {
    "num_sequences": LENGTHS,
    "profiles": (("virology",),),
    "every_subset": True,
    "aux_factor": 1.5,
    "aux_factor_of": (("lisp", 2.5),),
    "available": {CORE: 3900, "lisp": 90},
    "routing": RoutingConfig(0.4, 0.5, "uniform", p_aux_companion=0.2),
    "conventions": Conventions(
        spread_over_factor=True,
        companions_by_size=True,
        unlabelled_by_domain=True,
        lambda_counts_plan=True,
    ),
    "options": Options(
        branch_full=Branching(0.0, 0.5, 1.2, (("lisp", 2.0),)),
        branch_module=Branching(0.5, 2.0),
        maxent=FORGET_HALF,
        demix=Demix(24, "balanced", "single_expert"),
        elicitation=Elicitation(33, 5, batch_size=33, rank=2, text="neighbour", compared_only=True),
        unlabelled_share=0.3,
        routed_widths=(0.9, 0.13),
        probes=True,
        module_weight=0.5,
    ),
}
PINNED = {  # plain and unusual
    "baseline": ("d02052e65ae3", "8acc0f718cf2"),
    "filtering": ("38348aef524c", "e7a45fe5244c"),
    "gram": ("664d07b45311", "a6c76af56ff3"),
    "gram_subsets": ("c8c43a957569", "c0ab5bf34297"),
    "gram_lora": ("9b22f3851124", "fa68067ad0d9"),
    "ft_full": ("913431867df0", "9ccdccd00b3f"),
    "ft_lora": ("7f440652ea99", "15c6c142cb25"),
    "ft_mlp": ("14b28933652d", "02163a99eea7"),
    "maxent": ("def2058804f6", "37f946be475b"),
    "rmu": ("8714c8545529", "740959b89b19"),
    "graddiff": ("c52d4c64c874", "46dd4386aec6"),
    "undo": ("c56ef984879c", "db026e2c4fbe"),
    "demix": ("91945f0f14d6", "4af609d55796"),
    "sgtm": ("da1c154a9f3d", "24e651cd9682"),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_study_of_the_first_version_finds_its_nodes(method):
    """Equal settings give equal runs, views and attacks in every version, or what is stored would
    not be found again.

    Other ids are right only with a higher RECIPE_VERSION or EVAL_VERSION.
    """
    found = []
    for parts in (PLAIN, UNUSUAL):
        nodes = method_nodes(method, setting(**parts))
        found.append(
            short_hash(sorted((node.kind, node.names["profile"], node.id) for node in nodes))
        )
    assert tuple(found) == PINNED[method]
