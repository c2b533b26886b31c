"""Checks values by the number of active modules, on planted ratios: means over subsets and seeds,
and the drops."""

import dataclasses
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.tables import CLASSES, Analysis, StudyLosses, analyse, over_seeds
from gram_platform.analysis.variants import MODULES_CELL, by_number, drop_table
from gram_platform.pages.report.sections import study_page
from gram_platform.pages.results.record import Results, StudyRecord
from tests.study_frames import NUM_STEPS, loss_at

SIZE, SEEDS = "tiny", ("0", "1", "2")
MODULES = ("biology", "chemistry", "law")
SUBSETS = tuple(subset for number in range(4) for subset in combinations(MODULES, number))
# The loss of core and retain by every module beyond the first.
LOSS = {"gram": 0.02, "gram_subsets": 0.0, "ft_lora": 0.1}
# The domains of study_frames whose curves these have.
CURVE = {"core": "core", "biology": "biology", "chemistry": "chemistry", "law": "biology"}


def name_of(subset) -> str:
    return "all" if subset == MODULES else "+".join(("core", *subset))


def ratio(method: str, seed: str, subset, domain: str) -> float:
    """Chemistry's module costs a little more on its domain than the others, so that subsets
    differ."""
    if method == "baseline":
        return 1.0
    level = 0.9 - LOSS[method] * max(len(subset) - 1, 0) * (1 + 0.1 * int(seed)) + 0.01 * int(seed)
    level -= 0.03 * ("chemistry" in subset)
    return level if domain == "core" or domain in subset else 0.5


def view(method: str, seed: str, subset) -> dict:
    losses = {
        f"loss/{d}": float(loss_at(SIZE, CURVE[d], NUM_STEPS * ratio(method, seed, subset, d)))
        for d in CURVE
    }
    names = {
        "method": method,
        "size": SIZE,
        "seed": seed,
        "profile": name_of(subset),
        "retained": ",".join(subset),
    }
    return {**names, "run_id": f"{method}-{seed}", **losses}


def evaluations() -> pd.DataFrame:
    rows = [view("baseline", seed, MODULES) for seed in SEEDS]
    rows += [view(method, seed, subset) for method in LOSS for seed in SEEDS for subset in SUBSETS]
    return pd.DataFrame(rows)


def curves() -> pd.DataFrame:
    steps = np.linspace(NUM_STEPS / 25, NUM_STEPS, 25)
    own = {"method": "baseline", "size": SIZE, "step": steps}
    parts = [
        pd.DataFrame(
            {
                **own,
                "run_id": f"baseline-{seed}",
                "seed": seed,
                "domain": d,
                "loss": loss_at(SIZE, c, steps),
            }
        )
        for seed in SEEDS
        for d, c in CURVE.items()
    ]
    return pd.concat(parts, ignore_index=True)


@cache
def analysed() -> Analysis:
    return analyse(StudyLosses(evaluations(), curves()))


@pytest.fixture
def per_seed() -> pd.DataFrame:
    return analysed().per_seed


def test_means_over_subsets_of_a_number_then_over_seeds(per_seed):
    numbers = by_number(per_seed)
    assert "baseline" not in set(numbers["method"])
    assert numbers.groupby("modules")["num_profiles"].max().tolist() == [1, 3, 3, 1]
    table = over_seeds(numbers, MODULES_CELL).set_index(["method", "modules"])
    assert list(table.loc["gram"].index) == [0, 1, 2, 3]
    for method, number in ((m, n) for m in LOSS for n in range(4)):
        subsets = [subset for subset in SUBSETS if len(subset) == number]
        seeds = [
            np.mean([ratio(method, seed, subset, "core") for subset in subsets]) for seed in SEEDS
        ]
        row = table.loc[(method, number)]
        assert [row[f"core{end}"] for end in ("", "_low", "_high")] == pytest.approx(
            t_interval(seeds), abs=1e-4
        )
        # Every kept domain is planted at core's level.
        retain = t_interval(seeds) if number else (np.nan,) * 3
        found = [row[f"retain{end}"] for end in ("", "_low", "_high")]
        assert found == pytest.approx(retain, abs=1e-4, nan_ok=True)


def test_drops_from_one_to_all_are_paired_over_seeds(per_seed):
    drops = drop_table(by_number(per_seed), per_seed).set_index(["method", "class"])
    for method, loss in LOSS.items():
        # Two more modules, and chemistry in all of one subset instead of in one of three.
        planted = [2 * loss * (1 + 0.1 * int(seed)) + 0.02 for seed in SEEDS]
        gram = [2 * LOSS["gram"] * (1 + 0.1 * int(seed)) + 0.02 for seed in SEEDS]
        row = drops.loc[(method, "core")]
        assert [row["drop"], row["drop_low"], row["drop_high"]] == pytest.approx(
            t_interval(planted), abs=1e-4
        )
        assert row["one"] - row["all"] == pytest.approx(row["drop"])
        less = [row[f"less_than_gram{end}"] for end in ("", "_low", "_high")]
        saved = t_interval(np.subtract(gram, planted))
        assert less == pytest.approx(
            (np.nan,) * 3 if method == "gram" else saved, abs=1e-4, nan_ok=True
        )
        assert row["num_seeds"] == 3


def test_a_seed_without_a_subset_counts_only_at_other_numbers():
    views = evaluations()
    is_lost = (
        (views["method"] == "gram")
        & (views["seed"] == "1")
        & (views["profile"] == "core+biology+law")
    )
    kept = analyse(StudyLosses(views[~is_lost], curves())).per_seed
    numbers = by_number(kept, views)
    of_gram = numbers[(numbers["method"] == "gram") & (numbers["modules"] == 2)]
    assert set(of_gram["seed"]) == {"0", "2"}
    assert len(numbers[(numbers["method"] == "gram") & (numbers["modules"] == 3)]) == 3
    everywhere = (views["method"] == "gram") & (views["profile"] == "core+biology+law")
    none = by_number(analyse(StudyLosses(views[~everywhere], curves())).per_seed, views)
    # The profile is declared, so it counts as missing.
    assert none[(none["method"] == "gram") & (none["modules"] == 2)].empty


def test_methods_are_compared_on_the_profiles_that_they_share(per_seed):
    """FT-LoRA with the branches of --retain biology chemistry, and filtering, which has no view of
    two modules."""
    few = per_seed[(per_seed["method"] != "ft_lora") | ~per_seed["retained"].str.contains("law")]
    dense = per_seed[
        (per_seed["method"] == "gram") & per_seed["profile"].isin(["core", "core+biology"])
    ]
    numbers = by_number(pd.concat([few, dense.assign(method="filtering")]))
    shared = numbers.groupby("modules")["num_profiles"].agg(["min", "max"])
    assert shared.loc[[1, 2]].to_numpy().tolist() == [[1, 1], [1, 1]]
    drops = drop_table(numbers, per_seed)
    assert set(drops["method"]) == {"gram", "gram_subsets"}  # the others never have all on


def results_of(analysis: Analysis, by_modules: bool) -> Results:
    own = {
        "name": "composing",
        "title": "",
        "question": "",
        "facts": (),
        "params": {},
        "sizes": (SIZE,),
    }
    record = StudyRecord(
        **own, parameters={SIZE: 1e6}, profile="mean", entries=(), by_modules=by_modules
    )
    runs, claims = pd.DataFrame({"id": []}), pd.DataFrame({"claim": [], "verdict": []})
    return Results(record, analysis, curves(), runs, claims, "")


def test_the_page_leads_with_both_classes_against_the_number():
    study = results_of(analysed(), by_modules=True)
    page = study_page(study.record, study, None)
    html, figures = page.html(), page.figures
    assert (
        html.index('id="by-the-number')
        < html.index('id="from-one-module')
        < html.index('id="methods"')
    )
    assert [name for name in figures if name.startswith("modules-")] == [
        "modules-core-tiny",
        "modules-retain-tiny",
    ]
    assert [list(line.x) for line in figures["modules-core-tiny"].data] == [
        [0.0, 1.0, 2.0, 3.0]
    ] * 3
    assert all(len(line.x) == 3 for line in figures["modules-retain-tiny"].data)
    assert (
        figures["modules-core-tiny"].layout.yaxis.range
        == figures["modules-retain-tiny"].layout.yaxis.range
    )
    bars = {name for trace in figures["profiles-gram-tiny"].data for name in trace.x}
    assert bars - {None} == {"core", *(f"core+{name}" for name in MODULES), "all"}
    assert set(study.table["profile"]) == {*map(name_of, SUBSETS), "mean"}
    assert set(CLASSES) < set(study.table)


def test_core_alone_gives_no_panel_of_retain(per_seed):
    alone = per_seed[(per_seed["retained"] == "") | (per_seed["method"] == "baseline")]
    study = results_of(dataclasses.replace(analysed(), per_seed=alone), by_modules=True)
    page = study_page(study.record, study, None)
    assert [name for name in page.figures if name.startswith("modules-")] == ["modules-core-tiny"]
    assert 'id="from-one-module' not in page.html()


def test_other_studies_have_no_such_section():
    study = results_of(analysed(), by_modules=False)
    assert study.by_number is None
    page = study_page(study.record, study, None)
    assert 'id="by-the-number' not in page.html()
    assert not [name for name in page.figures if name.startswith("modules-")]
