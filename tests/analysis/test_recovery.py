"""Steps to recover: known answers on curves made by hand, censored times, and whole studies."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gram_platform.analysis.recovery import EVERY, RECOVERY, recover, write_median
from gram_platform.analysis.tables import StudyLosses, analyse
from gram_platform.analysis.variants import analyse_variants
from tests.refused import refused
from tests.stories_frames import AUXILIARY, SEEDS, attacks, curves, evaluations

FALLING = [(10, 3.0), (20, 2.0), (40, 1.0)]
KEY = ["method", "size", "seed", "profile"]


@pytest.mark.parametrize(
    ("curve", "start", "end", "mark", "steps", "is_reached"),
    [
        (FALLING, 4.0, 1.0, 50, 15.0, True),  # at 2.5
        (FALLING, 4.0, 1.0, 90, 34.0, True),  # at 1.3
        (FALLING, 4.0, 1.0, 100, 40.0, True),
        (FALLING, 4.0, 2.0, 50, 10.0, True),  # just at an evaluation
        (FALLING, 4.0, 3.0, 50, 5.0, True),  # before the first evaluation
        (FALLING, 4.0, 0.5, 90, 40, False),  # 0.85 is below the last loss
        ([(10, 2.0), (20, 3.0), (30, 1.0)], 4.0, 1.0, 50, 7.5, True),  # rises again
        ([(10, 5.0), (20, 3.0), (30, 1.0)], 4.0, 1.0, 50, 22.5, True),  # rises first
        ([(10, 5.0), (20, 6.0)], 4.0, 1.0, 50, 20, False),
        ([(10, 4.0), (20, 4.0)], 4.0, 1.0, 50, 20, False),
        (FALLING, 4.0, 4.0, 90, 0.0, True),  # equal losses
        ([(10, 5.0)], 4.0, 4.5, 90, 0.0, True),  # below the baseline
    ],
)
def test_known_answers(curve, start, end, mark, steps, is_reached):
    assert recover(curve, start, end, mark) == (pytest.approx(steps), is_reached)


@pytest.mark.parametrize(
    ("field", "curve", "start", "end", "mark"),
    [
        ("steps", [], 4.0, 1.0, 50),
        ("steps", [(10, 2.0), (10, 1.0)], 4.0, 1.0, 50),
        ("steps", [(0, 2.0)], 4.0, 1.0, 50),
        ("losses", [(10, float("nan"))], 4.0, 1.0, 50),
        ("losses", FALLING, float("inf"), 1.0, 50),
        ("losses", FALLING, 4.0, 0.0, 50),
        ("mark", FALLING, 4.0, 1.0, 0),
        ("mark", FALLING, 4.0, 1.0, 101),
    ],
)
def test_bad_input_is_named(field, curve, start, end, mark):
    with refused(field):
        recover(curve, start, end, mark)


losses = st.floats(0.1, 10.0)


@settings(deadline=None, database=None, derandomize=True)
@given(st.lists(losses, min_size=1, max_size=8), losses, losses, st.floats(1.0, 99.0))
def test_properties_of_any_curve(values, start, end, mark):
    curve = [(3.0 * (i + 1), loss) for i, loss in enumerate(values)]
    steps, is_reached = recover(curve, start, end, mark)
    length, level = curve[-1][0], start + mark / 100.0 * (end - start)
    assert 0.0 <= steps <= length
    assert is_reached == (min(start, *values) <= level)
    assert (steps == 0.0) == (start <= level)
    assert is_reached or steps == length
    if 0.0 < steps < length:
        at = np.interp(steps, [0.0, *(s for s, _ in curve)], [start, *values])
        assert at == pytest.approx(level, abs=1e-6)
    # A higher mark is not earlier, a longer attack changes no time that was reached, and steps of
    # another length change the time alike.
    assert recover(curve, start, end, min(mark + 1.0, 100.0))[0] >= steps - 1e-9
    longer = recover([*curve, (length + 1.0, 0.05)], start, end, mark)
    assert longer == (steps, True) if is_reached else longer[0] > steps
    scaled = recover([(7.0 * s, loss) for s, loss in curve], start, end, mark)
    assert scaled == (pytest.approx(7.0 * steps), is_reached)


@pytest.mark.parametrize(
    ("times", "is_reached", "text"),
    [
        ([5, 7, 90], [True, True, False], "7.0"),
        ([5, 75, 75], [True, False, False], "> 75.0"),
        ([5, 75], [True, False], "> 40.0"),  # half is not more than half
        ([5, 7, 9, 75], [True, True, True, False], "8.0"),
        # A short attack that did not reach the mark is no fast one.
        ([20, 5, 30], [True, False, True], "30.0"),
        ([6], [False], "> 6.0"),
        ([0], [True], "0.0"),
    ],
)
def test_the_median_of_censored_times(times, is_reached, text):
    assert write_median(times, is_reached) == text


def study(reach: dict[str, float]) -> StudyLosses:
    """Attacks of 20 steps whose loss falls on a line, which meets the baseline's at step `reach` of
    the method; at twice this step on the first domain."""
    known, losses = attacks(tuple(reach)), evaluations(tuple(reach))
    views = losses.set_index(KEY)
    ends = losses[losses["method"] == "baseline"].filter(like="loss/").mean()
    found = []
    for row in known.to_dict("records"):
        name = f"loss/{row['elicited']}"
        start, end = views.loc[tuple(row[k] for k in KEY), name], ends[name]
        at = reach[row["method"]] * (1 + (row["elicited"] == AUXILIARY[0]))
        found.append([(s, start + s / at * (end - start)) for s in (5, 10, 15, 20)])
    known = known.assign(curve=found, num_tokens=1000.0)
    return StudyLosses(losses, curves(), attacks=known)


def test_the_table_has_medians_of_means_over_attacks():
    losses = study({"gram": 16.0, "maxent": 4.0})
    analysis = analyse(losses)
    rows = analysis.table.set_index(["method", "profile"])[list(RECOVERY)]
    # GRAM's attacks end before 90% of the first domain, at step 28.8.
    within = f"core+{AUXILIARY[0]}"
    assert rows.loc[("gram", within)].tolist() == [
        "8.0", "400.0", "3 of 3", "14.4", "720.0", "3 of 3", 5.0,
    ]  # fmt: skip
    assert rows.loc[("gram", "core"), "steps_to_50"] == f"{(16 + 3 * 8) / 4:.1f}"
    assert rows.loc[("gram", "core"), "steps_to_90"] == f"> {(20 + 3 * 14.4) / 4:.1f}"
    assert rows.loc[("gram", "core"), "reached_90"] == "0 of 3"
    # `mean`: over all pairs of a profile and a domain, 4 of 16 of the first domain.
    assert rows.loc[("maxent", "mean"), "steps_to_50"] == f"{(4 * 4 + 12 * 2) / 16:.1f}"
    assert rows.loc[("baseline", "all")].isna().all()
    of_attacks = analysis.ratios[analysis.ratios["class"] == "elicited"]
    assert of_attacks[list(RECOVERY)].notna().all(axis=None)
    others = analysis.ratios[analysis.ratios["class"] != "elicited"]
    assert others[list(RECOVERY)].isna().all(axis=None)


def test_other_columns_are_as_without_curves():
    losses = study({"gram": 16.0})
    plain = StudyLosses(losses.evaluations, losses.curves, attacks(("gram",)))
    before, after = analyse(plain), analyse(losses)
    assert after.table.columns.tolist() == [*before.table, *RECOVERY]
    pd.testing.assert_frame_equal(after.table[list(before.table)], before.table, check_exact=True)
    shared = after.per_seed[list(before.per_seed)]
    pd.testing.assert_frame_equal(shared, before.per_seed, check_exact=True)


def test_some_seeds_reach_the_mark():
    losses = study({"gram": 16.0})
    slow = losses.attacks["seed"] == SEEDS[0]
    flat = [curve[:1] if slow[i] else curve for i, curve in losses.attacks["curve"].items()]
    table = analyse(StudyLosses(**vars(losses) | {"attacks": losses.attacks.assign(curve=flat)}))
    row = table.table.set_index(["method", "profile"]).loc[("gram", f"core+{AUXILIARY[0]}")]
    # The first seed's attacks end after 5 steps.
    assert (row["steps_to_50"], row["reached_50"]) == ("8.0", "2 of 3")
    assert table.per_seed.set_index(["seed", "profile"]).loc[(SEEDS[0], "core"), "reached_50"] == 0


def test_a_seed_of_its_own_is_compared_with_its_own_baseline():
    losses = study({"gram": 16.0})
    pooled, own = analyse(losses), analyse(losses, own_baseline=True)
    column = [frame.per_seed["steps_to_50"].dropna().to_numpy() for frame in (pooled, own)]
    assert np.ptp(column[0]) > 0.0  # by the number of attacks of the first domain alone
    assert not np.allclose(*column)
    middle = [f.per_seed.query("seed == '1'")["steps_to_50"].dropna() for f in (pooled, own)]
    assert np.allclose(*middle, rtol=0.02)  # the middle seed is near the mean


def test_without_curve_result_or_baseline_there_is_no_time():
    losses = study({"gram": 16.0})
    no_curve = losses.attacks.assign(curve=[()] * len(losses.attacks))
    table = analyse(StudyLosses(losses.evaluations, losses.curves, no_curve)).table
    assert table[list(RECOVERY)].isna().all(axis=None)
    no_result = losses.attacks.assign(loss=np.nan, num_tokens=np.nan)
    table = analyse(StudyLosses(losses.evaluations, losses.curves, no_result)).table
    assert table[list(RECOVERY)].isna().all(axis=None)
    domain = losses.curves["domain"] == AUXILIARY[1]
    analysis = analyse(StudyLosses(losses.evaluations, losses.curves[~domain], losses.attacks))
    per_seed = analysis.per_seed.set_index(["profile", "seed"])
    # Like elicited, the mean over attacks is not known if one is not.
    assert np.isnan(per_seed.loc[("core", "0"), "steps_to_50"])
    assert per_seed.loc[(f"core+{AUXILIARY[1]}", "0"), EVERY] == 5.0


def test_variants_without_attacks_have_empty_cells():
    losses = study({"gram": 16.0})
    views, points = (
        pd.concat([frame.assign(variant=name) for name in ("a", "b")], ignore_index=True)
        for frame in (losses.evaluations, losses.curves)
    )
    attacked = losses.attacks.assign(variant="a")
    table = analyse_variants(StudyLosses(views, points, attacked), ("a", "b")).table
    assert table.loc[table["variant"] == "a", EVERY].notna().any()
    assert table.loc[table["variant"] == "b", list(RECOVERY)].isna().all(axis=None)
