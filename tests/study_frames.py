"""Frames of a study's shape with planted curves and compute ratios, so that every number in a table
is known."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.tables import Analysis, StudyLosses, analyse
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.paper.verdicts import claims_frame

DOMAINS = ("core", "biology", "chemistry")
SIZES = {"tiny": 1.0e6, "small": 4.0e6, "medium": 16.0e6}  # parameters
SEEDS = ("0", "1", "2")
NUM_STEPS = 500.0
PROFILES = {
    "core": "",
    "core+biology": "biology",
    "core+chemistry": "chemistry",
    "all": "biology,chemistry",
}


def curve_of(size: str, domain: str) -> tuple[float, float, float]:
    """A, alpha, s0 of the planted learning curve."""
    i, j = list(SIZES).index(size), DOMAINS.index(domain)
    return 6.0 - 0.5 * i + 0.2 * j, 0.15 + 0.02 * i + 0.03 * j, 15.0 + 5.0 * j


def loss_at(size: str, domain: str, step):
    scale, alpha, s0 = curve_of(size, domain)
    return scale * (np.asarray(step, float) + s0) ** -alpha


def planted_ratio(method: str, size: str, seed: str, profile: str, domain: str) -> float:
    """The compute ratio of a view on a domain; the baseline's mean over seeds is 1."""
    jitter = 0.02 * (int(seed) - 1)
    if method == "baseline":
        return 1.0 + jitter
    own = domain == "core" or domain in PROFILES[profile].split(",")
    forget = 0.75 - 0.1 * list(SIZES).index(size)
    return (0.94 if own else forget) + (0.03 if method == "filtering" else 0.0) + jitter


def evaluation(method: str, size: str, seed: str, profile: str) -> dict:
    ratios = {d: planted_ratio(method, size, seed, profile, d) for d in DOMAINS}
    losses = {
        f"loss/{d}": float(loss_at(size, d, NUM_STEPS * ratio)) for d, ratio in ratios.items()
    }
    view = {
        "method": method,
        "size": size,
        "seed": seed,
        "profile": profile,
        "retained": PROFILES[profile],
    }
    return {**view, "run_id": f"run-{method}-{size}-{seed}", **losses}


def evaluations(sizes=tuple(SIZES), seeds=SEEDS) -> pd.DataFrame:
    """Baseline on all, GRAM on every profile, filtering on core+biology."""
    views = [("baseline", "all"), *(("gram", p) for p in PROFILES), ("filtering", "core+biology")]
    return pd.DataFrame(
        [evaluation(m, size, seed, p) for m, p in views for size in sizes for seed in seeds]
    )


def curves(sizes=tuple(SIZES), seeds=SEEDS) -> pd.DataFrame:
    """25 equally spaced points for each domain of each baseline."""
    steps = np.linspace(NUM_STEPS / 25, NUM_STEPS, 25)
    frames = []
    for size in sizes:
        for seed in seeds:
            run = {
                "run_id": f"run-baseline-{size}-{seed}",
                "method": "baseline",
                "size": size,
                "seed": seed,
            }
            for domain in DOMAINS:
                points = {"step": steps, "domain": domain, "loss": loss_at(size, domain, steps)}
                frames.append(pd.DataFrame({**run, **points}))
    return pd.concat(frames, ignore_index=True)


@cache
def analysed() -> Analysis:
    """The analysis of these frames, made once a process: nobody may change it."""
    return analyse(StudyLosses(evaluations(), curves()), tuple(SIZES))


def jackknife(ratios: Sequence[float], baseline: Sequence[float]) -> tuple[float, float, float]:
    """Mean and interval of planted ratios [n] whose mean over the baselines' [n] is taken without
    each seed in turn."""
    num, both = len(ratios), (np.array(ratios), np.array(baseline))
    left_out = [
        np.divide(*(np.delete(values, seed).mean() for values in both)) for seed in range(num)
    ]
    pseudo = num * np.mean(ratios) / np.mean(baseline) - (num - 1) * np.array(left_out)
    mean, half = (
        float(np.mean(ratios)),
        stats.t.ppf(0.95, num - 1) * pseudo.std(ddof=1) / np.sqrt(num),
    )
    return mean, mean - half, mean + half


def study_of(
    analysis: Analysis,
    curves: pd.DataFrame,
    runs: pd.DataFrame,
    claims=None,
    absorption=None,
    **about,
) -> Results:
    """The results of a study of these frames; `about`: fields of its record."""
    own = {
        "name": "planted",
        "title": "T",
        "question": "",
        "facts": (),
        "params": {},
        "sizes": (),
        "profile": "",
    }
    record = StudyRecord(**{**own, "parameters": SIZES, "entries": (), **about})
    claims = claims_frame([]) if claims is None else claims
    return Results(record, analysis, curves, runs, claims, "these frames", absorption)
