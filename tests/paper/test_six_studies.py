"""Checks the six published studies that ship in the format of `gram replicate`: every class mean by
a second fit, and the means that the paper prints."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

from gram_platform.analysis.tables import CLASSES, over_seeds
from gram_platform.methods.nodes import VARIANT
from gram_platform.paper.paper import load_published, read_printed, tabulate_published
from tests.published import FOLDER, NEEDS_FOLDER, REPLICATED, replicated_analysis

# The class means of each study's views, without baselines and means over profiles.
NUM_CELLS = {
    "composability": 168,
    "titration": 240,
    "partial_labels": 240,
    "architecture": 228,
    "accumulation": 56,
    "aux_scaling": 765,
}
CELL = [VARIANT, "method", "seed", "retained"]


def class_of(domain: str, retained: str, is_elicited: int) -> str:
    if domain == "core":
        return "core"
    return "retain" if domain in retained.split("+") else "elicited" if is_elicited else "forget"


def second_ratios(study: str) -> pd.DataFrame:
    """Class means from the losses by the paper's appendix alone: a bounded least-squares fit of
    log A - alpha log(s + s0) on the pooled points of a domain, over the mean of the baselines'
    steps."""
    folder = FOLDER / "replicate" / study
    losses = pd.read_csv(folder / "losses.csv", dtype={"variant": str, "seed": str})
    losses = losses.fillna({"variant": ""})
    curves = [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]
    is_baseline = losses["method"] == "baseline"
    rows = losses[(losses["study"] == study) & ~is_baseline]
    found = []
    for variant, views in rows.groupby("variant"):
        unit = {"accumulation": "heterogeneous", "aux_scaling": variant}.get(study, "")
        baselines = losses[is_baseline & (losses["variant"] == unit)]
        for domain, of_domain in views.groupby("domain"):
            own = [c for c in curves if c["domain"] == domain and c.get("variant", "") == unit]
            steps = np.concatenate([c["steps"] for c in own])
            logs = np.log(np.concatenate([c["losses"] for c in own]))

            def residual(p, steps=steps, logs=logs):
                return p[0] - p[1] * np.log(steps + p[2]) - logs

            start, tight = [2.0, 0.3, 100.0], dict.fromkeys(("ftol", "xtol", "gtol"), 1e-14)
            bounds = ([-20.0, 1e-3, -steps.min() + 1e-6], [20.0, 5.0, 2.0 * steps.max()])
            fit = least_squares(residual, start, bounds=bounds, x_scale=[1, 0.1, 100], **tight)
            scale, alpha, shift = fit.x

            def step(loss, scale=scale, alpha=alpha, shift=shift):
                return np.exp((scale - np.log(loss)) / alpha) - shift

            whole = step(baselines.loc[baselines["domain"] == domain, "loss"]).mean()
            found.append(of_domain.assign(variant=variant, ratio=step(of_domain["loss"]) / whole))
    ratios = pd.concat(found)
    named = zip(ratios["domain"], ratios["retained"], ratios["elicited"], strict=True)
    kept = [",".join(sorted(set(text.split("+")) - {"core"})) for text in ratios["retained"]]
    ratios = ratios.assign(name=[class_of(*one) for one in named], retained=kept)
    return ratios.pivot_table("ratio", CELL, "name").reset_index()


@NEEDS_FOLDER
@pytest.mark.parametrize("study", REPLICATED)
def test_every_class_mean_comes_back(study):
    """Those that ship have six decimals. Titration's baselines are pooled."""
    theirs = second_ratios(study)
    for per_seed in (replicated_analysis(study).per_seed, load_published(study)):
        rows = per_seed if VARIANT in per_seed else per_seed.assign(**{VARIANT: ""})
        rows = rows[~rows["profile"].isin(["mean"]) & (rows["method"] != "baseline")]
        both = rows.merge(theirs, on=CELL, suffixes=("", "_theirs"), validate="one_to_one")
        assert len(both) == len(rows) == len(theirs)
        names = [name for name in CLASSES if name in theirs]
        assert int(rows[list(CLASSES)].count().sum()) == NUM_CELLS[study]
        ours, others = (both[[n + end for n in names]].to_numpy() for end in ("", "_theirs"))
        assert ours == pytest.approx(others, abs=6e-7, nan_ok=True)


@pytest.mark.parametrize("study", [name for name in REPLICATED if len(read_printed(name))])
def test_the_printed_means_come_back(study):
    """Within one of the last digit: means over profiles; of partial labels, of core alone.

    Accumulation has two digits.
    """
    table, places = tabulate_published(study), 5.1e-3 if study == "accumulation" else 1e-3
    table = table.assign(**{VARIANT: table.get(VARIANT, "")})
    shown = table[table["profile"] == ("core" if study == "partial_labels" else "mean")]
    means = shown.set_index([VARIANT, "method"])
    for row in read_printed(study).to_dict("records"):
        ours = means.loc[(row[VARIANT], row["method"])]
        for name in CLASSES:
            if not np.isnan(row[name]):
                assert ours[name] == pytest.approx(row[name], abs=places), (row["method"], name)
            if not np.isnan(row[f"{name}_error"]):
                half = (ours[f"{name}_high"] - ours[f"{name}_low"]) / 2.0
                assert half == pytest.approx(row[f"{name}_error"], abs=1.1e-3)


def test_a_table_with_variants_names_them():
    rows = tabulate_published("titration")
    assert set(rows[VARIANT]) == {"0", "0.25", "0.5", "0.75", "1"}
    again = over_seeds(load_published("architecture"))
    pd.testing.assert_frame_equal(again, tabulate_published("architecture"), check_exact=True)
