"""The graphs of studies that vary something: what each variant trains, and what they share."""

import dataclasses
from collections import Counter

import pytest

from gram_platform.config import CORE
from gram_platform.methods.nodes import method_costs
from gram_platform.methods.setting import subsets_of
from gram_platform.studies.definition import Study, Variant
from gram_platform.studies.library import (
    accumulation,
    aux_scaling,
    composing,
    dual_use,
    partial_labels,
    scaling,
    titration,
)
from gram_platform.studies.library.dual_use import PAPER_WIDTHS, partly_labelled
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.record import record_of
from tests.refused import refused
from tests.submitted import execute_campaign, flags_of, study_plan


def graph_of(study: Study, storage, **flags) -> StudyPlan:
    return study_plan(study, flags_of(study, preset="smoke", storage=str(storage), **flags))


def runs_of(graph: StudyPlan, **tags: str) -> list:
    found = [n for n in graph.entries if n.is_run and not n.is_attack]
    return [
        n.config for n in found if all(n.names.get(key) == value for key, value in tags.items())
    ]


def test_titration_evaluates_the_dual_use_runs_and_trains_nothing_else(tmp_path):
    turned, whole = graph_of(titration.STUDY, tmp_path), graph_of(dual_use.STUDY, tmp_path)
    runs = {node.id for node in turned.nodes if node.kind == "run"}
    assert runs < {node.id for node in whole.nodes}
    views = {
        (n.names["variant"], n.names["profile"]): n.config.view
        for n in turned.entries
        if n.kind == "evaluation" and n.method == "gram" and n.names["seed"] == "0"
    }
    assert dict(views["0.5", "core+airport"].weights) == {"airport": 0.5}
    assert views["0", "core+airport"] == views["1", "core"]
    adapters = [n for n in turned.entries if n.kind == "evaluation" and n.method == "ft_lora"]
    assert all(
        set(dict(n.config.view.sources)) == set(dict(n.config.view.weights)) for n in adapters
    )


def test_composing_evaluates_every_subset_of_the_modules_and_trains_one_run_a_method(tmp_path):
    graph, whole = (
        graph_of(composing.STUDY, tmp_path, seeds=1),
        graph_of(dual_use.STUDY, tmp_path, seeds=1),
    )
    trained = {n.id for n in graph.nodes if n.kind == "run" and n.method != "gram_subsets"}
    assert trained < {node.id for node in whole.nodes}
    assert len(runs_of(graph, method="gram")) == len(runs_of(graph, method="gram_subsets")) == 1
    assert len(runs_of(graph, method="ft_lora")) == 5  # a base and a branch a domain
    views = {method: views_of(graph, method) for method in graph.methods[1:]}
    for method, own in views.items():
        assert len(own) == len(set(own.values())) == 16
        assert dict(own["core+airport+beach"].weights) == {"airport": 1.0, "beach": 1.0}, method
        assert len(own["all"].weights) == 4
    assert set(dict(views["ft_lora"]["core+airport+beach"].sources)) == {"airport", "beach"}
    assert views["gram"].items() >= views_of(whole, "gram").items()
    assert record_of(graph).by_modules
    assert not record_of(whole).by_modules


def test_methods_that_retrain_do_not_follow_every_subset(tmp_path):
    graph = graph_of(
        composing.STUDY, tmp_path, seeds=1, methods=("filtering", "ft_full", "maxent", "demix")
    )
    singles = {"core", *(f"core+{d}" for d in ("airport", "attic", "bakery", "beach"))}
    assert set(views_of(graph, "filtering")) == set(views_of(graph, "maxent")) == singles
    assert len(runs_of(graph, method="filtering")) == 5
    assert set(views_of(graph, "ft_full")) == singles
    assert len(views_of(graph, "demix")) == 16


def test_of_many_modules_ten_subsets_of_each_number_are_drawn():
    domains = tuple("abcdefghijkl")
    found = subsets_of(domains)
    assert found == subsets_of(domains)
    counts = Counter(map(len, found))
    assert counts == {0: 1, **dict.fromkeys(range(1, 12), 10), 12: 1}
    assert len(set(found)) == len(found)
    assert all(tuple(sorted(subset)) == subset and set(subset) <= set(domains) for subset in found)
    assert set.union(*(set(subset) for subset in found if len(subset) == 3)) == set(domains)
    assert len(subsets_of(domains[:5])) == 32


def views_of(graph: StudyPlan, method: str) -> dict:
    own = [n for n in graph.entries if n.kind == "evaluation" and n.method == method]
    return {n.names["profile"]: n.config.view for n in own}


def test_accumulation_varies_the_baseline_too(tmp_path):
    graph = graph_of(accumulation.STUDY, tmp_path, seeds=1)
    for method in ("baseline", "gram", "ft_lora"):
        for kind in ("uniform", "heterogeneous"):
            assert {
                run.routing.accumulation for run in runs_of(graph, method=method, variant=kind)
            } == {kind}


def test_partial_labels_hide_half_of_every_domain(tmp_path):
    graph = graph_of(partial_labels.STUDY, tmp_path, seeds=1)
    assert len(runs_of(graph, method="baseline")) == 2
    # Labels mean nothing to it.
    assert len({run.run_id for run in runs_of(graph, method="baseline")}) == 1
    assert not runs_of(graph, method="gram", variant="1")
    (routed,) = runs_of(graph, method="gram", variant="0.5")
    (dense,) = runs_of(graph, method="filtering", variant="0.5")
    assert routed.model.d_mlp == round(0.95 * dense.model.d_mlp)
    assert {module.width for module in routed.model.modules} == {round(0.0125 * dense.model.d_mlp)}
    assert routed.eval_points.num_probes == graph.preset.num_eval_points
    assert record_of(graph).probed == (routed.run_id,)
    pools = {d.name: {part.domain for part in d.pool} for d in dense.data.domains}
    # Filtering takes what is unlabelled as core.
    assert pools == {CORE: {CORE, "airport", "attic", "bakery", "beach"}}


def test_the_cost_table_is_of_the_variants_that_a_method_has(tmp_path):
    graph = graph_of(partial_labels.STUDY, tmp_path, seeds=1)
    costs = {(row["method"], row["variant"]): row for row in record_of(graph).costs}
    assert set(costs) == {
        ("baseline", "1, 0.5"),
        ("filtering", "1"),
        *((m, "0.5") for m in graph.methods[1:]),
    }
    (routed,) = runs_of(graph, method="gram", variant="0.5")
    expected = method_costs(partly_labelled(PAPER_WIDTHS).changed(graph.settings[0]), ("gram",))[0]
    assert costs["gram", "0.5"]["total_mlp_all"] == expected["total_mlp_all"] < 1.1
    assert len(routed.model.modules) == 4
    # filtering is planned at another variant, for the profiles that GRAM serves at this one
    assert {cost["of_profiles"] for cost in costs.values()} == {5}
    assert costs["filtering", "1"]["runs"] == (5, 0)
    turned = record_of(graph_of(titration.STUDY, tmp_path, seeds=1)).costs
    assert len(turned) == 3  # a weight costs nothing
    assert all(
        "variant" not in row for row in record_of(graph_of(dual_use.STUDY, tmp_path, seeds=1)).costs
    )


def test_domains_are_nested_by_name_and_hold_a_fifth_of_the_tokens(tmp_path):
    graph = graph_of(aux_scaling.STUDY, tmp_path, seeds=1)
    assert len(graph.corpora) == 2
    sets = {}
    for number in ("2", "4"):
        (run,) = runs_of(graph, method="gram", variant=number)
        (base,) = runs_of(graph, method="baseline", variant=number)
        sets[number] = run.model.module_domains
        shares = {d.name: d.num_draws for d in base.data.domains}
        assert shares[CORE] / sum(shares.values()) == pytest.approx(0.8, abs=0.02)
    assert sets == {"2": ("airport", "attic"), "4": ("airport", "attic", "bakery", "beach")}
    attacked = {n.names["profile"] for n in graph.entries if n.is_attack}
    assert attacked == {CORE}


def test_a_corpus_with_too_few_labels_is_refused(tmp_path):
    study = dataclasses.replace(
        aux_scaling.STUDY,
        presets={
            "smoke": dataclasses.replace(
                aux_scaling.STUDY.presets["smoke"], variants=(Variant("60", num_auxiliary=60),)
            )
        },
    )
    with refused("corpus", "stories-smoke"):
        graph_of(study, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("studies", "scalling"), ("sizes", "tiny"), ("seeds", "-1")]
)
def test_bad_input_of_all_studies_starts_nothing(tmp_path, field, value):
    words = ["--preset", "smoke", "--storage", str(tmp_path / "s"), f"--{field}", value]
    with refused(field):
        execute_campaign((scaling.STUDY,), (), words)
    assert not (tmp_path / "s").exists()


def test_too_little_text_is_repeated_where_the_number_of_domains_varies(tmp_path):
    preset = aux_scaling.STUDY.presets["smoke"]
    # 100,000 for two domains of 32,000 each.
    size = dataclasses.replace(preset.sizes["tiny"], core_tokens=400_000)
    study = dataclasses.replace(
        aux_scaling.STUDY, presets={"smoke": dataclasses.replace(preset, sizes={"tiny": size})}
    )
    (run,) = runs_of(graph_of(study, tmp_path, seeds=1), method="baseline", variant="2")
    budgets = {d.name: d for d in run.data.domains}
    assert budgets["attic"].num_draws > budgets["attic"].num_sequences
    assert budgets[CORE].num_draws / run.data.num_draws == pytest.approx(0.8, abs=0.02)
