"""Claims about steps to recover: decided by intervals, by censored times that lie above, or not."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from gram_platform.paper import verdicts
from gram_platform.paper.claims import POSITIVE, Claim, Side
from gram_platform.paper.verdicts import (
    AGREE,
    CANNOT_TELL,
    DISAGREE,
    NO_INTERVAL,
    conclude,
    judge_times,
    paper_claims,
)

# A time with a plus was not reached.
SLOW, FAST = ["100", "110", "120"], ["10", "12", "14"]
LONGER = {
    "all reached": (SLOW, FAST, AGREE),
    "all reached, the other way": (FAST, SLOW, DISAGREE),
    "all reached, no difference": (SLOW, ["120", "100", "110"], CANNOT_TELL),
    "all of one side above": (["75+", "75+", "75+"], FAST, AGREE),
    "all of the other side above": (FAST, ["75+", "75+", "75+"], DISAGREE),
    "censored and reached above": (["80", "75+", "90"], FAST, AGREE),
    "a censored time amid the others": (["80", "11+", "90"], FAST, CANNOT_TELL),
    "a censored time equal to one": (["80", "14+", "90"], FAST, CANNOT_TELL),
    "both censored": (["75+", "75+", "75+"], ["10", "12+", "14"], CANNOT_TELL),
    "both censored and apart": (["175+", "175+", "175+"], ["10", "12", "75+"], CANNOT_TELL),
    # One long time could turn the mean difference.
    "below, but for one that may be longer": (
        ["1", "1", "1", "1", "21+"],
        ["20", "20", "20", "20", "20"],
        CANNOT_TELL,
    ),
    "one seed": (["75+"], ["10"], AGREE + NO_INTERVAL),
    "two seeds": (["10", "12"], ["75+", "75+"], DISAGREE + NO_INTERVAL),
    "one seed below": (["7+"], ["10"], CANNOT_TELL),
}


def sides(*texts: list[str]) -> tuple:
    """{seed: time} of each side, then {seed: share of attacks that reached the mark}."""
    times = [{str(i): float(t.strip("+")) for i, t in enumerate(side)} for side in texts]
    shares = [{str(i): 0.75 if "+" in t else 1.0 for i, t in enumerate(side)} for side in texts]
    return *times, tuple(shares)


@pytest.mark.parametrize("case", LONGER)
def test_more_steps(case):
    left, right, verdict = LONGER[case]
    found = judge_times("", *sides(left, right), POSITIVE)
    assert found.verdict == verdict
    is_open = any("+" in time for time in left + right)
    assert math.isnan(found.low) == (len(left) < 3 or (is_open and verdict == CANNOT_TELL))


def test_a_margin_of_steps_below_counts_only_what_longer_times_leave():
    within = pd.Interval(-math.inf, 20.0, closed="neither")
    assert judge_times("", *sides(SLOW, ["105+", "125+", "135+"]), within).verdict == CANNOT_TELL
    assert judge_times("", *sides(SLOW, ["125+", "125+", "135+"]), within).verdict == AGREE
    assert judge_times("", *sides(["125+", "125+", "135+"], SLOW), within).verdict == CANNOT_TELL
    assert judge_times("", *sides(["175+", "185+", "195+"], SLOW), within).verdict == DISAGREE


def planted(slow: list[str], fast: list[str]) -> pd.DataFrame:
    """A `per_seed` frame whose profile mean is over two profiles with two and one attacks."""
    rows = []
    for method, texts in (("gram", slow), ("maxent", fast)):
        for seed, text in enumerate(texts):
            for profile, number in (("core+x", 2), ("core+y", 1)):
                row = {"method": method, "size": "50M", "profile": profile, "seed": str(seed)}
                row |= {"retained": profile[5:], "variant": "", "num_elicited": number}
                row |= {"steps_to_90": float(text.strip("+")), "reached_90": float("+" not in text)}
                rows.append(row | {"elicited": 0.5, "retain": 0.9})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("slow", "verdict", "holm"),
    [
        (SLOW, AGREE, AGREE),
        (["75+", "80+", "85+"], AGREE, AGREE),
        (["9+", "80", "85"], CANNOT_TELL, CANNOT_TELL),
    ],
)
def test_a_study_declares_such_a_claim(monkeypatch, slow, verdict, holm):
    sides = (Side("gram", "steps_to_90"), Side("maxent", "steps_to_90"))
    claim = Claim("GRAM takes more steps to recover than MaxEnt", *sides)
    monkeypatch.setitem(verdicts.CLAIMS, "planted", (claim,))
    per_seed = planted(slow, FAST)
    # The unit's error is of compute ratios.
    for errors in (None, {}):
        (row,) = conclude(paper_claims(per_seed, "planted", unit_error=errors), "").to_dict(
            "records"
        )
        assert (row["verdict"], row["holm_verdict"], row["unit"]) == (verdict, holm, "steps_to_90")
        assert (row["num_seeds"], row["nats_verdict"]) == (3, "")
    assert math.isclose(row["difference"], sum(float(t.strip("+")) for t in slow) / 3 - 12.0)
    without = per_seed.drop(columns=["steps_to_90", "reached_90"])
    assert paper_claims(without, "planted").empty
    # Another mark is not reached.
    later = replace(claim, left=Side("gram", "steps_to_50"), right=Side("maxent", "steps_to_50"))
    monkeypatch.setitem(verdicts.CLAIMS, "planted", (later,))
    both = per_seed.assign(steps_to_50=per_seed["steps_to_90"], reached_50=0.0)
    assert paper_claims(both, "planted")["verdict"].tolist() == [CANNOT_TELL]
