"""Label noise: which sequences carry a wrong label, in every method's runs."""

from dataclasses import replace

import pytest

from gram_platform.config import CORE, Slice
from gram_platform.methods import METHODS, plan
from gram_platform.methods.elicitation import plan_attacks
from gram_platform.methods.nodes import method_nodes
from gram_platform.methods.setting import Demix, Options
from tests.methods.test_plans import AUXILIARY, setting
from tests.refused import refused

NOISY = {"recall": 0.8, "precision": 0.5}
TRAINED = ("filtering", "gram", "ft_lora", "maxent", "demix")


def noisy(**noise):
    balanced = Demix(sampling="balanced")
    return setting().with_options(**(noise or NOISY), demix=balanced)


def labels_of(runs) -> dict[tuple[str, int], set[str]]:
    """The labels that runs give every sequence, by pool and place."""
    labels: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        for budget in run.data.domains:
            for part in budget.pool:
                for place in range(part.first, part.first + part.num_sequences):
                    labels.setdefault((part.domain, place), set()).add(budget.name)
    return labels


def test_filtering_trains_on_exactly_the_text_that_carries_its_labels():
    recalled = plan("filtering", noisy(recall=0.8)).runs["core+virology"].data
    core, virology = recalled.domains
    hidden = tuple(Slice(d, 200, 50) for d in AUXILIARY)
    assert core.pool[1:] == hidden
    assert core.pool[0].domain == CORE
    assert virology.pool == (Slice("virology", 0, 200),)
    # A multiple of the micro-batch.
    assert recalled.num_draws == pytest.approx(4000 + 4 * 50 + 200, abs=16)
    core, virology = plan("filtering", noisy(precision=0.5)).runs["core+virology"].data.domains
    assert core.pool == (Slice(CORE, 0, 3000),)
    assert sorted(part.num_sequences for part in virology.pool) == [250, 250]
    assert {part.domain: part.first >= 3000 for part in virology.pool} == {
        CORE: True,
        "virology": False,
    }


def test_a_sequence_has_one_label_in_all_methods_and_seeds():
    runs = [
        run
        for method in TRAINED
        for seed in (0, 1)
        for run in plan(method, replace(noisy(), seed=seed)).runs.values()
        # The baseline, from which MaxEnt starts, needs no labels.
        if method != "maxent" or run.objective.forget
    ]
    labels = labels_of(runs)
    assert {len(found) for found in labels.values()} == {1}
    wrong = {place for place, found in labels.items() if place[0] not in found}
    assert sum(domain == CORE for domain, _ in wrong) == 4 * 200
    assert sum(domain == "lisp" for domain, _ in wrong) == 50


@pytest.mark.parametrize("noise", [{"recall": 0.5}, {"precision": 0.5}, NOISY], ids=str)
def test_noise_leaves_the_baseline_the_total_text_validation_and_attacks_as_they_are(noise):
    clean, wrong = setting(), noisy(**noise)
    assert plan("baseline", clean) == plan("baseline", wrong)
    of_gram = [plan("gram", s).runs["all"] for s in (clean, wrong)]
    assert of_gram[0].data.num_draws == of_gram[1].data.num_draws
    assert of_gram[0].run_id != of_gram[1].run_id
    for method in TRAINED:
        evaluated = [
            {(n.config.data_id, n.config.domains) for n in method_nodes(method, s) if not n.is_run}
            for s in (clean, wrong)
        ]
        assert evaluated[0] == evaluated[1]
    attacked = []
    for s in (clean, wrong):
        plans = plan("gram", s)
        found = plan_attacks(s, ("virology",), plans.views["virology",], plans.runs.values())
        attacked.append({domain: run.data for domain, run in found.items()})
    assert attacked[0] == attacked[1]


def test_labels_without_noise_give_the_same_ids():
    for method in METHODS:
        given = setting().with_options(recall=1.0, precision=1.0)
        assert plan(method, given) == plan(method, setting())


def test_adjacent_text_comes_from_the_named_pools_alone():
    near = replace(
        noisy(precision=0.8),
        parts=((CORE, CORE, Slice("core:core", 0, 400)),),
        adjacent=("core:core", "lisp"),
    )
    budgets = {b.name: b for b in plan("gram", near).runs["all"].data.domains}
    pools = {name: {part.domain for part in b.pool} for name, b in budgets.items()}
    assert pools[CORE] == {CORE, "core:core"}
    assert pools["virology"] == {"virology", "core:core", "lisp"}
    assert pools["lisp"] == {"lisp", "core:core"}
    base = {b.name: b.pool for b in plan("baseline", near).runs["all"].data.domains}
    assert Slice("core:core", 0, 400) in base[CORE]
    assert base["lisp"][0].domain == "lisp"


def test_bad_noise_is_refused():
    for share in (0.0, -0.1, 1.1, float("nan")):
        with refused("recall"):
            Options(recall=share)
        with refused("precision"):
            Options(precision=share)
    with refused("unlabelled_share", 0.5):
        Options(recall=0.5, unlabelled_share=0.5)
    with refused("precision", 0.2):
        plan("filtering", noisy(precision=0.2))
    with refused("precision", 0.5):
        # Nothing but virology itself is adjacent to virology.
        plan("gram", replace(noisy(), adjacent=("virology",)))
