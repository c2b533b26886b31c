"""Measures how soon attacks recover a removed domain: steps and tokens to a share of the way.

The way goes from the view's loss before the attack to the baseline's, both on the attacked domain's
validation text. The baseline's is the mean over the seeds that elicited's compute ratio compares
with: all seeds, or the same one if each has its own baseline. Between evaluations the loss follows
a straight line, and its first crossing counts, even if it rises again. A view that is no worse than
the baseline needs 0 steps. An attack that ends before the mark has its length as a censored time.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import positive
from gram_platform.analysis.ratios import ELICITED, ROW, VIEW, Reference
from gram_platform.config.identity import invalid, require_real

# Shares of the way, in percent.
MARKS = (50, 90)
# The columns of a mark; of an attack, REACHED is 1 or 0.
STEPS, TOKENS, REACHED = "steps_to_", "tokens_to_", "reached_"
# The column with an attack's most steps between two evaluations.
EVERY = "steps_between_evaluations"
RECOVERY = (*(f"{name}{mark}" for mark in MARKS for name in (STEPS, TOKENS, REACHED)), EVERY)
# A column of attacks: (step, loss) of each evaluation in order; () if not known.
CURVE = "curve"


class Recovery(NamedTuple):
    """The steps to a mark, or the attack's length if it was not reached."""

    steps: float
    is_reached: bool


def recover(
    curve: Sequence[tuple[float, float]], start: float, end: float, mark: float
) -> Recovery:
    """Returns when an attack has covered `mark` percent of the way from loss `start` to `end`.

    `curve` has (step, loss) of at least one evaluation; losses are in nats a token. ValueError
    unless steps rise from above 0, losses are finite and positive, and 0 < mark <= 100.
    """
    require_real("mark", mark, 0.0, 100.0, open_low=True)
    steps, losses = np.array([(0.0, start), *curve], float).T
    positive("losses", [*losses, end])
    if len(steps) < 2 or not (np.diff(steps) > 0.0).all():
        raise invalid("steps", steps[1:].tolist(), "one step or more, rising from above 0")
    level = start + mark / 100.0 * (end - start)
    at = int(np.argmax(losses <= level))
    if losses[at] > level:
        return Recovery(float(steps[-1]), False)
    # A line through the evaluations before and at the crossing.
    before = max(at - 1, 0)
    return Recovery(float(np.interp(-level, -losses[[before, at]], steps[[before, at]])), True)


def with_recovery(
    ratios: pd.DataFrame, attacks: pd.DataFrame, references: Mapping[tuple[str, str], Reference]
) -> pd.DataFrame:
    """Adds RECOVERY to a frame of ratios, NaN except in rows of attacks with CURVE and reference.

    `attacks` has CURVE and `num_tokens`, the tokens of the whole attack.
    """
    key, found = [*VIEW, "domain"], {}
    starts = ratios[ratios["class"] == "forget"].set_index(key)["loss"].to_dict()
    attacks = attacks.rename(columns={ELICITED: "domain"})[[*key, CURVE, "num_tokens"]]
    for *names, curve, num_tokens in attacks.itertuples(index=False, name=None):
        at, reference = (*names, ELICITED), references.get((names[1], names[-1]))
        start = starts.get((*names,), 0.0)
        if curve and reference and start > 0.0:
            steps, end = [0.0, *(step for step, _ in curve)], np.mean(reference.baseline_losses)
            times = (recover(curve, start, float(end), mark) for mark in MARKS)
            row = [n for t, done in times for n in (t, t * num_tokens / steps[-1], float(done))]
            found[at] = [*row, np.diff(steps).max()]
    rows = ratios[[*key, "class"]].itertuples(index=False, name=None)
    values = np.array([found.get(at, [np.nan] * len(RECOVERY)) for at in rows], float)
    return ratios.assign(**dict(zip(RECOVERY, values.reshape(-1, len(RECOVERY)).T, strict=True)))


def median_text(times: Sequence[float], is_reached: Sequence[bool]) -> str:
    """Returns the median of times [n] if more than half were reached, otherwise `> bound`.

    A time that was not reached counts as longer than all that were; the bound takes it as it is.
    """
    median = np.median(np.where(is_reached, times, np.inf))
    return f"{median:.1f}" if np.isfinite(median) else f"> {np.median(times):.1f}"


def recovery_table(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Returns ROW and RECOVERY over seeds: each `median_text`, `k of n` reached, and EVERY.

    `per_seed` has means over the attacks of a view, which has reached a mark if all of them have.
    """
    rows = []
    for key, group in per_seed[per_seed[EVERY].notna()].groupby(ROW, sort=False):
        row = dict(zip(ROW, key, strict=True)) | {EVERY: group[EVERY].max()}
        for mark in MARKS:
            steps, tokens, reached = (f"{name}{mark}" for name in (STEPS, TOKENS, REACHED))
            is_reached = group[reached] == 1.0
            row |= {name: median_text(group[name], is_reached) for name in (steps, tokens)}
            row[reached] = f"{is_reached.sum()} of {len(group)}"
        rows.append(row)
    return pd.DataFrame(rows, columns=[*ROW, *RECOVERY])
