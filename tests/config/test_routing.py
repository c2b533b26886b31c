"""The plan, without a model."""

import collections
import dataclasses

import numpy as np
import pytest
import torch

from gram_platform.config import DataConfig, DomainBudget, Objective, RoutingConfig, Slice, View
from gram_platform.config.routing import (
    CORE_MLP,
    SHARED,
    Schedule,
    domain_permutation,
    draw_positions,
    hash_counters,
    module_set,
    passes_of_window,
    permute,
    uniforms,
)
from gram_platform.train.data import ScheduleReader
from tests import tiny
from tests.refused import refused


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 4097])
def test_keyed_permutation_is_a_permutation(size):
    images = permute(size, np.full(size, 123, np.uint64), np.arange(size))
    assert sorted(images) == list(range(size))


def test_keyed_permutations_look_random_and_differ_by_key():
    first, second = (
        permute(10_000, np.full(10_000, key, np.uint64), np.arange(10_000)) for key in (1, 2)
    )
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05
    assert (first == second).sum() < 20


def test_counters_are_hashed_as_published():
    """The first numbers of SplitMix64 from the seed 1234567, as in the algorithm's published test
    vectors."""
    first = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hash_counters(1234567, np.arange(5)).tolist() == first
    assert hash_counters(np.full(5, 1234567, np.uint64), np.arange(5)).tolist() == first
    assert uniforms(1234567, np.arange(5)).tolist() == [(number >> 11) / 2**53 for number in first]


ROUTINGS = {
    "heterogeneous": (RoutingConfig(0.5, 0.3), "4e2b6c9756a2004d"),
    "uniform": (RoutingConfig(0.5, 0.3, "uniform"), "a9bcdf8fbfba5e63"),
    "weighted companions": (
        RoutingConfig(0.4, 0.5, companion_weights=(("virology", 3.0), ("lisp", 1.0))),
        "004e1afe043381c8",
    ),
    "subsets": (
        RoutingConfig(0.5, 0.4, companions="subset", p_aux_companion=0.5),
        "8f15f4e2b9a6dd13",
    ),
    "a rate of one domain": (
        RoutingConfig(0.5, 0.5, p_aux_spread_of=(("lisp", 0.125),)),
        "a3725e856162ef66",
    ),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_a_plan_of_the_first_version_stays(name):
    """Equal configs have equal plans in every version: another plan needs a higher
    RECIPE_VERSION."""
    routing, fingerprint = ROUTINGS[name]
    assert plan_of((64, 16, 16), routing=routing).fingerprint == fingerprint


def test_other_plans_of_the_first_version_stay():
    assert Schedule(tiny.run_config(data=tiny.HALF_LABELLED)).fingerprint == "d0843a2ce0cec8a8"
    objective = Objective("maxent_kl", ("lisp",), 1.0)
    stage = Schedule(
        tiny.run_config(False, draws=(160, 160, 0), objective=objective, start=View.of("start"))
    )
    assert stage.fingerprint == "d9cc6bf7b7f67b39"
    assert [stage[t].domain for t in range(len(stage))] == ["lisp", "core"] * 80


def test_draws_of_the_first_version_stay():
    order = domain_permutation("tiny", "lisp", 12)(np.arange(12)).tolist()
    assert order == [3, 8, 0, 1, 7, 9, 4, 11, 6, 2, 5, 10]
    of_16 = domain_permutation("tiny", "lisp", 16)(np.arange(16)).tolist()  # fills four bits
    assert of_16 == [3, 8, 0, 14, 12, 9, 4, 11, 6, 2, 5, 10, 7, 13, 15, 1]
    budget, drawn = (
        DomainBudget("lisp", 6, 20),
        [5, 3, 0, 1, 4, 2, 0, 2, 5, 3, 1, 4, 4, 0, 2, 5, 3, 1],
    )
    # Three passes, each in an order of its own.
    assert draw_positions(0, budget, 0, 18).tolist() == drawn
    for first, count in ((5, 9), (6, 6), (11, 2), (17, 1)):
        assert draw_positions(0, budget, first, count).tolist() == drawn[first : first + count]


def plan_of(draws, **parts):
    return Schedule(tiny.run_config(draws=draws, **parts))


@pytest.mark.parametrize("accumulation", ["heterogeneous", "uniform"])
def test_counts_match_the_mixture_exactly(accumulation):
    draws = (64, 16, 24)
    plan = plan_of(draws, routing=RoutingConfig(0.5, 0.3, accumulation))
    counts = collections.Counter(plan[t].domain for t in range(len(plan)))
    assert counts == {d: n // 2 for d, n in zip(tiny.DOMAINS, draws, strict=True)}


@pytest.mark.parametrize("accumulation", ["heterogeneous", "uniform"])
def test_every_draw_happens_once_and_nothing_repeats_within_a_pass(accumulation):
    config = tiny.run_config(draws=(64, 24, 24), routing=RoutingConfig(0.5, 0.3, accumulation))
    data = DataConfig(
        "tiny",
        tuple(
            DomainBudget(d, n, m)
            for d, n, m in zip(tiny.DOMAINS, (40, 24, 12), (64, 24, 24), strict=True)
        ),
    )
    config = dataclasses.replace(config, data=data)
    plan = Schedule(config)
    reader = ScheduleReader(config, tiny.arrays())
    rows = collections.defaultdict(list)
    for t in range(len(plan)):
        rows[plan[t].domain].extend(reader.rows(plan[t])[:, 1])
    assert sorted(collections.Counter(rows["lisp"]).values()) == [1] * 24
    assert sorted(collections.Counter(rows["virology"]).values()) == [2] * 12
    assert set(collections.Counter(rows["core"][:40]).values()) == {1}
    prefix = domain_permutation("tiny", "virology", 40)(np.arange(12))
    assert set(rows["virology"]) == set(prefix)


@pytest.mark.parametrize("size", [1, 2, 3, 40, 1000, 4097])
def test_a_permutation_and_its_inverse(size):
    forth, back = (domain_permutation("tiny", "lisp", size, inverse) for inverse in (False, True))
    images = forth(np.arange(size))
    assert sorted(images) == list(range(size))
    np.testing.assert_array_equal(back(images), np.arange(size))


def test_permuted_arrays_need_the_first_rows_alone():
    """The same tokens as from all rows in their first order."""
    config = tiny.run_config(draws=(64, 24, 24))
    budgets = (
        DomainBudget(d, n, m)
        for d, n, m in zip(tiny.DOMAINS, (40, 24, 12), (64, 24, 24), strict=True)
    )
    config = dataclasses.replace(config, data=DataConfig("tiny", tuple(budgets)))
    arrays, firsts, plan = tiny.arrays(), {}, Schedule(config)
    for budget in config.data.domains:
        order = domain_permutation("tiny", budget.name, len(arrays[budget.name]))(
            np.arange(budget.num_sequences)
        )
        firsts[budget.name] = arrays[budget.name][order]
    whole, first = ScheduleReader(config, arrays), ScheduleReader(config, firsts, permuted=True)
    for number in range(len(plan)):
        assert torch.equal(whole.tokens(plan[number]), first.tokens(plan[number]))


def test_training_sets_are_nested_prefixes_for_every_seed():
    pools = []
    for seed, size in ((0, 8), (1, 16)):
        config = tiny.run_config(draws=(64, 16, 16), seed=seed)
        data = DataConfig(
            "tiny", tuple(dataclasses.replace(d, num_sequences=size) for d in config.data.domains)
        )
        config = dataclasses.replace(config, data=data)
        plan = Schedule(config)
        reader = ScheduleReader(config, tiny.arrays())
        batches = (plan[t] for t in range(len(plan)))
        pools.append({row for m in batches if m.domain == "lisp" for row in reader.rows(m)[:, 1]})
    assert pools[0] < pools[1]
    assert len(pools[1]) == 16


def test_a_window_has_the_fewest_passes_and_the_core_first():
    """So at most one pass has micro-batches that train the core and others. One a pass they keep
    their order."""
    plan = plan_of((160, 80, 80), routing=RoutingConfig(0.5, 0.3), batch_size=16, micro_batch=4)
    for step in range(20):
        window = plan.window(step)
        trains_core = sorted("shared" not in m.route.trained for m in window)
        for most, sizes in ((2, [2, 2]), (3, [2, 2]), (4, [4]), (9, [4])):
            passes = passes_of_window(window, most)
            assert [len(micro_batches) for micro_batches in passes] == sizes
            ordered = [m for micro_batches in passes for m in micro_batches]
            assert sorted(ordered, key=lambda m: m.index) == window
            assert ["shared" not in m.route.trained for m in ordered] == trains_core
        assert passes_of_window(window, 1) == [[micro_batch] for micro_batch in window]


def test_uniform_accumulation_has_one_route_a_window():
    plan = plan_of((640, 160, 160), routing=RoutingConfig(0.5, 0.3, "uniform"))
    windows = [plan.window(s) for s in range(plan.config.num_steps)]
    assert all(len({(m.domain, m.route) for m in w}) == 1 for w in windows)
    mixed = plan_of((640, 160, 160), routing=RoutingConfig(0.5, 0.3))
    assert any(len({m.domain for m in mixed.window(s)}) > 1 for s in range(mixed.config.num_steps))


def test_routes_follow_the_paper():
    plan = plan_of((8000, 2000, 2000), routing=RoutingConfig(0.5, 0.3))
    core = {SHARED, CORE_MLP}
    batches = [plan[t] for t in range(len(plan))]
    for m in batches:
        active = [d for d, w in m.route.active if w == 1.0]
        assert len(active) == len(m.route.active)
        if m.domain == "core":
            assert len(active) <= 1
            assert m.route.trained == core | {module_set(d) for d in active}
        else:
            assert active == [m.domain]
            assert m.route.trained in ({module_set(m.domain)}, core | {module_set(m.domain)})
    share = lambda part, test: sum(map(test, part)) / len(part)
    core_batches = [m for m in batches if m.domain == "core"]
    aux_batches = [m for m in batches if m.domain != "core"]
    assert share(core_batches, lambda m: bool(m.route.active)) == pytest.approx(0.5, abs=0.03)
    assert share(core_batches, lambda m: m.route.active == (("lisp", 1.0),)) == pytest.approx(
        0.25, abs=0.03
    )
    assert share(aux_batches, lambda m: SHARED in m.route.trained) == pytest.approx(0.3, abs=0.04)


@pytest.mark.parametrize("accumulation", ["heterogeneous", "uniform"])
def test_counts_of_routes_are_those_of_the_plan(accumulation):
    plan = plan_of((640, 160, 160), routing=RoutingConfig(0.5, 0.3, accumulation))
    for num in (0, 1, 7, 100, len(plan)):
        counted = collections.Counter((m.domain, m.route) for m in (plan[t] for t in range(num)))
        assert plan.route_counts(num) == counted
    assert plan.route_counts() == plan.route_counts(10**9) == counted
    dense = plan_of(
        (64, 0, 0), routing=RoutingConfig(0.0, 0.0), model=tiny.model_config(modular=False)
    )
    assert plan_counts(dense) == [("core", 64 // dense.config.micro_batch)]


def plan_counts(plan):
    return [(domain, count) for (domain, _), count in plan.route_counts().items()]


def test_the_plan_depends_on_the_seed_and_not_on_the_way_there():
    plan, same, other = plan_of((64, 16, 16)), plan_of((64, 16, 16)), plan_of((64, 16, 16), seed=1)
    assert [same[t] for t in reversed(range(len(same)))][::-1] == [
        plan[t] for t in range(len(plan))
    ]
    assert plan.fingerprint == same.fingerprint != other.fingerprint


def test_reader_splits_a_micro_batch_over_ranks():
    config = tiny.run_config(micro_batch=4)
    plan = Schedule(config)
    whole, shared = (ScheduleReader(config, tiny.arrays()) for _ in range(2))
    for t in (0, 7, 3, len(plan) - 1):
        parts = [shared.tokens(plan[t], rank, 2) for rank in range(2)]
        assert (np.concatenate(parts) == whole.tokens(plan[t]).numpy()).all()


# -------------------------------------------------------- what the published settings do otherwise


def counted(plan) -> collections.Counter:
    return collections.Counter((plan[t].domain, plan[t].route) for t in range(len(plan)))


def long_run(routing, accumulation="heterogeneous"):
    routing = dataclasses.replace(routing, accumulation=accumulation)
    data = DataConfig(
        "tiny",
        tuple(
            DomainBudget(d, 40, n)
            for d, n in zip(tiny.DOMAINS, (16_000, 4_000, 4_000), strict=True)
        ),
    )
    return tiny.run_config(data=data, routing=routing, micro_batch=2, batch_size=8)


@pytest.mark.parametrize("accumulation", ["heterogeneous", "uniform"])
def test_a_domain_can_train_the_core_at_a_rate_of_its_own(accumulation):
    routing = RoutingConfig(0.2, 0.5, p_aux_spread_of=(("lisp", 0.125),))
    plan = Schedule(long_run(routing, accumulation))
    counts = plan.route_counts()
    for domain, rate in (("lisp", 0.125), ("virology", 0.5)):
        trains_core = sum(
            n for (d, route), n in counts.items() if d == domain and CORE_MLP in route.trained
        )
        units = 2_000 if accumulation == "heterogeneous" else 500
        assert trains_core / 2_000 == pytest.approx(
            rate, abs=3.5 * (rate * (1 - rate) / units) ** 0.5
        )
    assert counts == counted(plan)


@pytest.mark.parametrize("total", [4.0, 0.4])
def test_companions_can_be_drawn_in_proportion(total):
    """Weights may add up to anything."""
    weights = (("virology", 0.75 * total), ("lisp", 0.25 * total))
    routing = RoutingConfig(0.4, 0.5, companion_weights=weights)
    plan = Schedule(long_run(routing))
    counts = plan.route_counts()
    beside = {
        d: sum(n for (c, r), n in counts.items() if (c, r.active) == ("core", ((d, 1.0),)))
        for d in tiny.DOMAINS
    }
    assert beside["virology"] / 8_000 == pytest.approx(0.3, abs=0.02)
    assert beside["lisp"] / 8_000 == pytest.approx(0.1, abs=0.015)
    assert counts == counted(plan)
    even = Schedule(
        long_run(RoutingConfig(0.4, 0.5, companion_weights=(("virology", 2.0), ("lisp", 2.0))))
    )
    assert even.config.run_id != Schedule(long_run(RoutingConfig(0.4, 0.5))).config.run_id


def test_companion_weights_name_every_module():
    with refused("routing.companion_weights"):
        tiny.run_config(routing=RoutingConfig(0.4, companion_weights=(("lisp", 1.0),)))


def test_an_unlabelled_batch_of_one_domain_has_everything_on():
    budgets = (
        DomainBudget("core", 24, 64),
        DomainBudget("unlabelled:lisp", 8, 8, (Slice("lisp", 24, 8),)),
    )
    plan = Schedule(tiny.run_config(data=DataConfig("tiny", budgets)))
    (route,) = {r for (domain, r) in plan.route_counts() if domain == "unlabelled:lisp"}
    assert route.active == (("lisp", 1.0), ("virology", 1.0))
    assert route.trained == {SHARED, CORE_MLP, module_set("lisp"), module_set("virology")}


def test_random_subsets_of_companions():
    """Each module is on beside about half of the core batches that have companions, two at once
    beside a quarter; all active sets are trained there, and beside a domain's batch its own module
    alone."""
    routing = RoutingConfig(0.5, 0.4, companions="subset", p_aux_companion=0.5)
    plan = Schedule(long_run(routing))
    counts = plan.route_counts()
    core = {tuple(d for d, _ in r.active): n / 8_000 for (c, r), n in counts.items() if c == "core"}
    assert core[()] == pytest.approx(0.5, abs=0.02)
    assert core["lisp", "virology"] == pytest.approx(0.125, abs=0.015)
    # A quarter of the subsets, and half of the quarter that is empty.
    for alone in (("lisp",), ("virology",)):
        assert core[alone] == pytest.approx(0.5 * 0.375, abs=0.02)
    for domain, route in counts:
        active = {d for d, _ in route.active}
        if domain == "core":
            assert route.trained == {SHARED, CORE_MLP} | {module_set(d) for d in active}
        else:
            assert domain in active
            assert route.trained - {SHARED, CORE_MLP} == {module_set(domain)}
    lisp = sum(n for (d, r), n in counts.items() if d == "lisp" and len(r.active) == 2)
    assert lisp / 2_000 == pytest.approx(0.25, abs=0.04)
    assert counts == counted(plan)


def test_the_subsets_of_companions_follow_from_the_seed():
    """Two runs draw alike as often as chance has it: for three subsets of 3/8, 3/8 and 1/4."""
    run = long_run(RoutingConfig(0.5, 1.0, companions="subset"))
    plans = [Schedule(dataclasses.replace(run, seed=seed)) for seed in (1, 2)]
    pairs = [
        tuple(batch.route.active for batch in each)
        for each in zip(*plans, strict=True)
        if all(batch.domain == "core" for batch in each)
    ]
    same = sum(first == second for first, second in pairs) / len(pairs)
    assert same == pytest.approx(2 * (3 / 8) ** 2 + 1 / 16, abs=0.04)


def test_which_batches_train_the_core_follows_from_the_seed():
    """Of two runs, half of the auxiliary batches agree."""
    run = long_run(RoutingConfig(0.0, p_aux_spread=0.5))
    plans = [Schedule(dataclasses.replace(run, seed=seed)) for seed in (1, 2)]
    pairs = [
        tuple(CORE_MLP in batch.route.trained for batch in each)
        for each in zip(*plans, strict=True)
        if all(batch.domain != "core" for batch in each)
    ]
    assert sum(a == b for a, b in pairs) / len(pairs) == pytest.approx(0.5, abs=0.06)
