"""Equal compute on the plans, and the paper's cost table."""

import dataclasses

import pytest

from gram_platform.config import CORE, RoutingConfig
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.methods import plan
from gram_platform.methods.branches import branch_budget
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import method_costs
from gram_platform.methods.setting import Branching, Options, Setting
from gram_platform.methods.unlearning import apportion
from tests.refused import refused

AUXILIARY = ("cyber", "lisp", "nuclear", "virology")
SINGLES = ((), *((d,) for d in AUXILIARY))


@pytest.fixture
def dual_use() -> Setting:
    """The paper's 800M dual-use setting."""
    return Setting(
        size=PAPER_SIZES["800M"],
        seed=0,
        data_id="dual-use",
        num_sequences={CORE: 15_722_656, **dict.fromkeys(AUXILIARY, 39_307)},
        profiles=SINGLES,
        routing=RoutingConfig(0.2, 0.5),
        warmup_fraction=0.02,
        decay_fraction=0.1,
        num_eval_points=100,
        num_eval_sequences=512,
    )


def test_base_and_branches_cost_what_the_baseline_costs(dual_use):
    base = plan_compute_units(plan("baseline", dual_use).runs["all"])
    for method in ("ft_full", "ft_lora", "ft_mlp"):
        runs = plan(method, dual_use).runs.values()
        assert sum(map(plan_compute_units, runs)) == pytest.approx(base, rel=1e-3)


def test_bases_are_shared_and_budgeted_for_all_branches(dual_use):
    lora, mlp, full = (plan(m, dual_use).runs for m in ("ft_lora", "ft_mlp", "ft_full"))
    assert lora["core"].run_id == mlp["core"].run_id != full["core"].run_id
    fewer = dataclasses.replace(dual_use, profiles=(("virology",),))
    assert plan("ft_lora", fewer).runs["core"].run_id == lora["core"].run_id
    assert set(plan("ft_lora", fewer).runs) == {"core", "core+virology"}


def test_rehearsal_is_core_that_the_base_never_saw(dual_use):
    options = Options(branch_module=Branching(core_ratio=2.0, aux_factor=2.0))
    budget = branch_budget(
        dataclasses.replace(dual_use, options=options), options.branch_module, 49_205_760
    )
    ends = [part.first + part.num_sequences for part in budget.core.values()]
    starts = [part.first for part in budget.core.values()]
    assert starts == [budget.base.num_sequences, *ends[:-1]]
    assert ends[-1] < dual_use.num_sequences[CORE]
    for domain, aux in budget.aux.items():
        assert budget.core[domain].num_sequences == pytest.approx(2 * aux.num_draws, rel=0.01)
        assert aux.num_draws == pytest.approx(2 * aux.num_sequences, rel=0.01)


def test_all_modules_are_composed_once_every_branch_is_run(dual_use):
    assert AUXILIARY in plan("ft_lora", dual_use).views
    some = dataclasses.replace(dual_use, profiles=SINGLES[:-1])
    assert AUXILIARY not in plan("ft_lora", some).views


def test_without_equal_compute_base_and_branches_train_on_as_much_text_as_the_baseline(dual_use):
    plain = dataclasses.replace(dual_use, equal_compute=False)
    tokens = sum(run.num_tokens for run in plan("ft_lora", plain).runs.values())
    assert tokens == pytest.approx(plan("baseline", plain).runs["all"].num_tokens, rel=1e-4)
    assert tokens > 1.0001 * sum(run.num_tokens for run in plan("ft_lora", dual_use).runs.values())


def test_the_smallest_domain_gets_a_step_of_core_and_itself(dual_use):
    """One sequence becomes half a step of 672, rounded to micro-batches of 96, from a pool of one
    micro-batch."""
    small = dataclasses.replace(dual_use, num_sequences={**dual_use.num_sequences, "virology": 1})
    core, virology = plan("ft_lora", small).runs["core+virology"].data.domains
    assert (virology.num_sequences, virology.num_draws) == (96, 384)
    assert core.num_draws == 672 - 384


def test_rehearsal_begins_again_where_core_ends(dual_use):
    """Core suffices for the base and the first branch: the others rehearse its first sequences."""
    options = dual_use.options.branch_module
    plenty = [part.first for part in branch_budget(dual_use, options, 49_205_760).core.values()]
    short = dataclasses.replace(dual_use, available={CORE: plenty[1]})
    parts = list(branch_budget(short, options, 49_205_760).core.values())
    length = plenty[1] - plenty[0]
    assert [part.first for part in parts] == [plenty[0], 0, length, 2 * length]
    assert {part.num_sequences for part in parts} == {length}


def test_branches_have_their_own_schedule_and_rate(dual_use):
    runs = plan("ft_full", dual_use).runs
    assert runs["core+virology"].optimizer.peak_lr == pytest.approx(
        0.2 * runs["core"].optimizer.peak_lr
    )
    assert runs["core+virology"].optimizer.warmup_fraction == runs["core"].optimizer.warmup_fraction


def test_an_unlabelled_batch_costs_all_modules(dual_use):
    """Without companions of core batches a plan costs what the paper's formula says."""
    options = Options(unlabelled_share=0.5, routed_widths=(0.95, 0.0125))
    partly = dataclasses.replace(dual_use, options=options, routing=RoutingConfig(0.0, 0.5))
    (row,) = method_costs(partly, ("gram",))
    assert row["train_all"] == row["plan_all"] > 1.0


def test_the_papers_cost_table(dual_use):
    """method.md: filtering 5x, 1x, 5x; GRAM and FT-LoRA 1x, 1-1.1x, 1.4x; FT-Full and MaxEnt 1x,
    1x, 5x."""
    rows = {
        row["method"]: row
        for row in method_costs(dual_use, ("filtering", "gram", "ft_lora", "ft_full", "maxent"))
    }
    expected = {"filtering": (5, 1, 1, 5), "gram": (1, 1, 1.1, 1.4), "ft_lora": (1, 1, 1.1, 1.4)}
    expected |= {"ft_full": (1, 1, 1, 5), "maxent": (1, 1, 1, 5)}
    for method, (train, least, most, total) in expected.items():
        row = rows[method]
        # MaxEnt's unlearning is extra: 5 profiles x 2,000 steps of two batches over the baseline's
        # 23,630 steps.
        extra = 5 * 2000 * 2 * 672 / 15_879_884 if method == "maxent" else 0.0
        assert row["train_all"] == pytest.approx(train + extra, rel=0.02), method
        assert row["active_mlp"] == pytest.approx((least, most), rel=0.01), method
        assert row["total_mlp_all"] == pytest.approx(total, rel=0.01), method
    assert rows["gram"]["plan_all"] > rows["gram"]["train_all"]


def test_apportion_is_exact_and_leaves_no_one_out():
    for total, weights in (
        (100, {"a": 1, "b": 1, "c": 1}),
        (64, {"a": 98, "b": 1, "c": 1}),
        (8, {"a": 5, "b": 0.1}),
    ):
        shares = apportion(total, weights, 4)
        assert sum(shares.values()) == total // 4 * 4
        assert all(n >= 4 and n % 4 == 0 for n in shares.values())
    with refused("num_draws", 4):
        apportion(4, {"a": 1, "b": 1}, 4)


def test_a_study_of_one_filtered_profile_says_what_filtering_costs_for_all_that_gram_serves(
    dual_use,
):
    """GRAM's one run serves core and core with each domain; filtering needs a run, FT-LoRA a branch
    for each."""
    shown = ("cyber",)
    fewer = dataclasses.replace(dual_use, profiles=(shown,))
    methods = ("baseline", "filtering", "gram", "ft_lora", "ft_full", "maxent")
    rows = {row["method"]: row for row in method_costs(fewer, methods)}
    whole = {row["method"]: row for row in method_costs(dual_use, methods)}
    assert {row["of_profiles"] for row in rows.values()} == {5}
    assert {method: row["profiles"] for method, row in rows.items()} == dict(
        zip(methods, (0, 1, 5, 2, 2, 1), strict=True)
    )
    assert {row["shown"] for row in rows.values()} == {"core+cyber"}
    assert {method: row["runs"] for method, row in rows.items()} == dict(
        zip(methods, ((1, 0), (5, 0), (1, 0), (1, 4), (1, 4), (1, 5)), strict=True)
    )
    assert {row["served"] for method, row in rows.items() if method != "baseline"} == {5}
    for method in methods:
        of_all = ("train_all", "plan_all", "active_mlp", "total_mlp_all", "train_shown")
        assert [rows[method][name] for name in of_all] == [whole[method][name] for name in of_all]
    units = {
        profile: plan_compute_units(plan("filtering", dual_use).runs[profile])
        for profile in ("core+cyber",)
    }
    base = plan_compute_units(plan("baseline", dual_use).runs["all"])
    assert rows["filtering"]["train_shown"] == pytest.approx(units["core+cyber"] / base)
    assert rows["filtering"]["train_all"] > 4.9 * rows["filtering"]["train_shown"]
    assert rows["gram"]["train_shown"] == rows["gram"]["train_all"]
    assert rows["ft_lora"]["train_shown"] < rows["ft_lora"]["train_all"]


def test_a_method_without_a_view_of_a_profile_does_not_serve_it(dual_use):
    pairs = dataclasses.replace(dual_use, profiles=(("cyber", "lisp"),))
    rows = {row["method"]: row for row in method_costs(pairs, ("gram", "ft_full"))}
    assert {method: (row["served"], row["of_profiles"]) for method, row in rows.items()} == {
        "gram": (6, 6),
        "ft_full": (5, 6),
    }
