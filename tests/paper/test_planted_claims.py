"""Judges every claim on a planted success, a planted failure, and a null: no difference, seeds far
apart."""

import math

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.localization import CONTROL, FORGET, RETAIN
from gram_platform.analysis.ratios import MEAN
from gram_platform.analysis.recovery import RECOVERY
from gram_platform.analysis.sweeps import SWEEP_CLASSES
from gram_platform.analysis.tables import CLASSES, NUM_DOMAINS
from gram_platform.paper.claims import CLAIMS, COMPARED, FIRST, LAST, POSITIVE, Claim, Side
from gram_platform.paper.sweeps import PAPER_SWEEPS, SWEEP_CLAIMS, SweepClaim, sweep_claims
from gram_platform.paper.verdicts import (
    AGREE,
    CANNOT_TELL,
    DISAGREE,
    NO_INTERVAL,
    localization_claims,
    paper_claims,
    separation_claims,
)

NOISE = {"1": -1.0, "2": 0.0, "3": 1.0}  # of the seeds, its mean is 0
SPREAD = {AGREE: 0.001, DISAGREE: 0.001, CANNOT_TELL: 0.3}
VERDICTS = tuple(SPREAD)
CASES = [(study, claim) for study, claims in CLAIMS.items() for claim in claims]
NAMES = [f"{study}: {claim.text}" for study, claim in CASES]


def target(within: pd.Interval, verdict: str) -> float:
    """A difference a little inside the range, a little outside, or none."""
    if verdict == CANNOT_TELL:
        return 0.0
    edge, outwards = (within.left, -1.0) if math.isfinite(within.left) else (within.right, 1.0)
    return edge + (0.03 if verdict == DISAGREE else -0.03) * outwards


def cell(side: Side, claim: Claim, study: str) -> tuple:
    """The row of a side: method, size, variant and profile; FIRST and LAST are two sizes or
    variants."""
    ends = {FIRST: "50M", LAST: "800M"}
    variants = {FIRST: "4", LAST: "20"}
    averaged = MEAN if side.method == "baseline" else "core+x"
    profile = side.profile or {COMPARED: "core+x", MEAN: averaged}.get(claim.profile, claim.profile)
    variant = variants.get(side.variant, side.variant) or ("4" if study == "aux_scaling" else "")
    return side.method, ends.get(side.size, "50M"), variant, profile


def planted(study: str, claim: Claim, difference: float, spread: float) -> pd.DataFrame:
    """A `per_seed` frame of ones, except for the left side, which is planted above 1 with a spread
    over seeds."""
    rows = []
    for seed, noise in NOISE.items():
        values = {}
        for side in claim.terms:
            values.setdefault(cell(side, claim, study), {})[side.name] = 1.0
        values[cell(claim.left, claim, study)][claim.left.name] += difference + spread * noise
        for value in values.values():
            value |= dict.fromkeys(("reached_50", "reached_90"), 1.0)
        own = [
            dict(zip(("method", "size", "variant", "profile"), key, strict=True)) | v
            for key, v in values.items()
        ]
        rows += [row | {"seed": seed} for row in own]
    frame = pd.DataFrame(rows).reindex(
        columns=["method", "size", "variant", "profile", "seed", *CLASSES, *RECOVERY]
    )
    counts = {NUM_DOMAINS[name]: frame[name].notna().astype(int) for name in CLASSES}
    counts["num_elicited"] |= frame["steps_to_90"].notna().astype(int)
    return frame.sort_values("variant", key=lambda v: v.str.len()).assign(retained="x", **counts)


def verdict_on(study: str, claim: Claim, per_seed: pd.DataFrame) -> str:
    found = paper_claims(per_seed, study).set_index("claim")
    return found.loc[claim.text, "verdict"]


# Each claim on both of its sides; that each has a middle is a slow test.
SIDES_FIRST = [pytest.param(v, marks=pytest.mark.slow) if v == CANNOT_TELL else v for v in VERDICTS]


@pytest.mark.parametrize("verdict", SIDES_FIRST)
@pytest.mark.parametrize(("study", "claim"), CASES, ids=NAMES)
def test_every_claim_of_every_study(study, claim, verdict):
    per_seed = planted(study, claim, target(claim.within, verdict), SPREAD[verdict])
    assert verdict_on(study, claim, per_seed) == verdict
    if verdict != CANNOT_TELL:
        assert verdict_on(study, claim, per_seed[per_seed["seed"] == "2"]) == verdict + NO_INTERVAL


def test_no_claim_is_there_twice():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_claim_of_other_studies(verdict):
    claim = Claim(
        "", Side("gram", "retain", profile="mean"), Side("gram", "forget", profile="mean")
    )
    per_seed = planted("", claim, target(claim.within, verdict), SPREAD[verdict])
    assert [judgement.verdict for judgement in separation_claims(per_seed)] == [verdict]


def curves(claim: SweepClaim, verdict: str) -> dict[str, pd.DataFrame]:
    """A curve a seed over the paper's values: the paper's own trend, its opposite, or flat with
    noise at its ends."""
    values = PAPER_SWEEPS[claim.knob].values
    flat = pd.DataFrame(0.9, index=pd.Index(values), columns=list(SWEEP_CLASSES))
    if not math.isinf(claim.within.right):  # claims of "the same"
        rise, base = target(claim.within, verdict), flat
        return {
            seed: moved(base, claim.names[0], -1, rise + SPREAD[verdict] * n)
            for seed, n in NOISE.items()
        }
    if verdict == CANNOT_TELL:
        return {seed: with_noise(flat, claim, noise) for seed, noise in NOISE.items()}
    up = np.linspace(0.0, 0.2, len(values))
    for change in (up, -up, 0.2 - up, np.full_like(up, 0.2), np.full_like(up, -0.2)):
        planted = flat.assign(**{claim.names[0]: 0.9 + change})
        difference = claim.difference(planted)
        if abs(difference) > 0.05 and (difference > 0.0) == (verdict == AGREE):
            return {seed: planted + 0.001 * noise for seed, noise in NOISE.items()}
    raise AssertionError(f"no change of {claim.names[0]} makes it {verdict}: {claim.text}")


def moved(curve: pd.DataFrame, name: str, at: int, by: float) -> pd.DataFrame:
    changed = curve.copy()
    changed.iloc[at, changed.columns.get_loc(name)] += by
    return changed


def with_noise(flat: pd.DataFrame, claim: SweepClaim, noise: float) -> pd.DataFrame:
    """Seeds of which some have the first value higher, others the last one."""
    return moved(flat, claim.names[0], 0 if noise > 0 else -1, 0.1 * abs(noise))


def sweep_verdict(claim: SweepClaim, by_seed: dict[str, pd.DataFrame]) -> str:
    method = PAPER_SWEEPS[claim.knob].method
    parts = [c.rename_axis("value").reset_index().assign(seed=seed) for seed, c in by_seed.items()]
    found = sweep_claims(pd.concat(parts).assign(knob=claim.knob, method=method, size="26M"))
    at = [c for c in SWEEP_CLAIMS if c.knob == claim.knob].index(claim)
    return found["verdict"].iloc[at]


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("claim", SWEEP_CLAIMS, ids=lambda claim: claim.text)
def test_every_claim_of_every_sweep(claim, verdict):
    assert sweep_verdict(claim, curves(claim, verdict)) == verdict


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_claim_of_token_losses(verdict):
    rows, difference = [], target(POSITIVE, verdict)
    for seed, noise in NOISE.items():
        high = 0.5 + difference + SPREAD[verdict] * noise
        own = {"size": "800M", "profile": "mean", "domain": "mean", "seed": seed}
        rows.append({**own, "method": "gram", "class": FORGET, "increase": high, "gini": high})
        rows.append({**own, "method": "gram", "class": RETAIN, "increase": 0.5, "gini": 0.5})
        rows.append({**own, "method": "baseline", "class": CONTROL, "increase": 0.5, "gini": 0.5})
    claims = localization_claims(pd.DataFrame(rows))
    assert claims["verdict"].tolist() == [verdict] * 2
