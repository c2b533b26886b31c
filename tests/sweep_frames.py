"""Frames of the three sweeps with the paper's own means planted: five profiles, three seeds, every
view attacked."""

from functools import cache

import pandas as pd

from gram_platform.analysis.sweeps import SweepAnalysis, analyse_sweeps
from gram_platform.analysis.tables import StudyLosses
from gram_platform.paper.sweeps import PAPER_SWEEPS
from tests.stories_frames import (
    AUXILIARY,
    DOMAINS,
    NUM_STEPS,
    PROFILES,
    SEEDS,
    SIZE,
    curves,
    loss_at,
)
from tests.stories_frames import evaluations as stories

KNOBS = tuple(PAPER_SWEEPS)
POINTS = tuple((knob, value) for knob, sweep in PAPER_SWEEPS.items() for value in sweep.values)


def planted(knob: str, value: float) -> dict[str, float]:
    """The paper's mean of each class; core-partial and core-full are the core where its figure has
    only that."""
    means = PAPER_SWEEPS[knob].means.loc[value].to_dict()
    core = means.get("core", float("nan"))
    return {"core_partial": core, "core_full": core, **means}


def jitter(seed: str) -> float:
    """Of every class of a seed alike: its mean over seeds is 0."""
    return 0.004 * (int(seed) - 1)


def view(knob: str, value: float, seed: str, profile: str) -> dict:
    method = PAPER_SWEEPS[knob].method
    own = {
        "method": method,
        "size": SIZE,
        "seed": seed,
        "profile": profile,
        "retained": PROFILES[profile],
    }
    return {"knob": knob, "value": value, **own}


def evaluations(points=POINTS, seeds=SEEDS) -> pd.DataFrame:
    """The baselines, without a knob, and every profile of every point."""
    baselines = stories(methods=(), seeds=seeds).assign(knob=None, value=float("nan"))
    rows = [
        _evaluation(*point, seed, profile)
        for point in points
        for seed in seeds
        for profile in PROFILES
    ]
    return pd.concat([baselines, pd.DataFrame(rows)], ignore_index=True) if rows else baselines


def _evaluation(knob: str, value: float, seed: str, profile: str) -> dict:
    means, kept = planted(knob, value), PROFILES[profile]
    ratios = {d: means["retain" if d == kept else "forget"] for d in AUXILIARY}
    ratios["core"] = means["core_partial" if kept else "core_full"]
    losses = {
        f"loss/{d}": float(loss_at(d, NUM_STEPS * (ratios[d] + jitter(seed)))) for d in DOMAINS
    }
    return {**view(knob, value, seed, profile), "run_id": f"run-{knob}-{value:g}-{seed}", **losses}


def attacks(points=POINTS, seeds=SEEDS) -> pd.DataFrame:
    rows = []
    for knob, value in points:
        ratio = planted(knob, value)["elicited"]
        for seed, profile in ((seed, profile) for seed in seeds for profile in PROFILES):
            for domain in (d for d in AUXILIARY if d != PROFILES[profile]):
                loss = float(loss_at(domain, NUM_STEPS * (ratio + jitter(seed))))
                rows.append({**view(knob, value, seed, profile), "elicited": domain, "loss": loss})
    return pd.DataFrame(rows)


@cache
def analysed() -> SweepAnalysis:
    """The analysis of all points, made once a process: nobody may change it."""
    return analyse_sweeps(StudyLosses(evaluations(), curves(), attacks=attacks()))
