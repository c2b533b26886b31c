"""Measures on planted studies how often intervals hold the true compute ratio, and how often claims are judged right.

    python -m benchmarks.coverage --storage DIR --num-studies 1000

`benchmarks.planted` says how studies are planted from a finished one. Ratios are planted where they were measured, and
claims at their boundaries, where left - right is the end of the range. Prints a table of coverages for each shape of
the true curves, then one of verdicts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np
import pandas as pd
import tyro

from benchmarks.planted import METHODS, POWER_LAW, SHAPES, Planted, Row, Seeds, measured, of_domains
from gram_platform.analysis.compute_ratio import fit_learning_curve
from gram_platform.analysis.intervals import Interval, percentile_interval, t_interval
from gram_platform.analysis.ratios import ALL, BASELINE, Reference
from gram_platform.analysis.tables import frame_text
from gram_platform.config import CORE
from gram_platform.config.endings import exit_with
from gram_platform.config.terminal import say
from gram_platform.pages.results.record import load_record
from gram_platform.pages.results.results import read_results
from gram_platform.paper.claims import CLAIMS, LAST, Claim, Side
from gram_platform.paper.verdicts import AGREE, Judgement, judge
from gram_platform.store import Store

NUM_SEEDS = (3, 5)
Run = tuple[str, str, str]  # method, variant and size of a claim's side


@dataclass(frozen=True)
class CoverageFlags:
    """Plants studies of 3 and of 5 seeds."""

    storage: str  # with the finished study
    study: str = "scaling"
    profile: str = "core+airport"  # of core and one domain
    num_studies: int = 1000  # of each kind
    shapes: tuple[str, ...] = tuple(SHAPES)
    bootstrap: Annotated[bool, tyro.conf.arg(help="with the percentile bootstrap on core, which is slow")] = False
    rng_seed: int = 0


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables."""
    exit_with(lambda: _print_all(tyro.cli(CoverageFlags, args=arguments)))


def _print_all(flags: CoverageFlags) -> int:
    store = Store(flags.storage)
    record = load_record(store, flags.study)
    results = read_results(record, store)
    source = measured(results.curves, results.analysis.ratios, flags.profile)
    forgotten = source.domains["gram", flags.profile, "forget"][0]
    for shape, num_seeds in product(flags.shapes, NUM_SEEDS):
        part = source if shape == POWER_LAW else of_domains(source, (CORE, forgotten))
        planted = Planted(part, SHAPES[shape], flags.num_studies, num_seeds, flags.rng_seed)
        say(f"{shape}, {num_seeds} seeds, {flags.num_studies} studies")
        say(frame_text(coverage(planted, flags.bootstrap and shape == POWER_LAW)) + "\n")
        if shape == POWER_LAW:
            say(frame_text(verdicts(planted, flags.profile)) + "\n")
    return 0


# -------------------------------------------------------------------------------------------------------- coverage


def coverage(planted: Planted, with_bootstrap: bool = False) -> pd.DataFrame:
    """Returns a row per row of the table and per difference: the share of intervals that hold the planted ratio."""
    rows = [row for row in planted.source.domains if row[0] != BASELINE]
    truths = {row: planted.measured_ratios(row) for row in rows}
    found = {row: planted.row(row, truths[row], planted.noise) for row in rows}
    quantities = {" ".join(row): (found[row], truths[row]) for row in rows}
    for left, right in product(rows, rows):
        is_methods = left[1:] == right[1:] and (left[0], right[0]) == METHODS[::-1]
        is_classes = left[:2] == right[:2] and (left[2], right[2]) == ("retain", "forget")
        if is_methods or is_classes:
            name = f"{' '.join(left)} - {' '.join(right)}"
            quantities[name] = (found[left] - found[right], truths[left] - truths[right])
    table = []
    for name, (seeds, truth) in quantities.items():
        fixed = [t_interval(values) for values in seeds.values]
        ours = [t_interval(*both) for both in zip(seeds.values, seeds.pseudo, strict=True)]
        moved = [t_interval(pseudo) for pseudo in seeds.pseudo]
        line = {"quantity": name, "jackknife": held(ours, truth), "around the pseudo-values": held(moved, truth)}
        line |= {"curve fixed": held(fixed, truth)}
        line |= {"half-width": float(np.mean([i.high - i.low for i in ours]) / 2.0)}
        line |= {"bias": float((seeds.values.mean(axis=1) - truth).mean())}
        table.append(line)
    if with_bootstrap:
        row = next(row for row in rows if row[0] == "gram" and row[2] == CORE and row[1] != ALL)
        shares = {" ".join(row): held(bootstrapped(planted, row, truths[row]), truths[row])}
        table = [line | {"bootstrap": shares.get(line["quantity"], math.nan)} for line in table]
    return pd.DataFrame(table)


def held(intervals: Sequence[Interval], truth: np.ndarray) -> float:
    """Returns the share of intervals that hold the truth [studies]."""
    return float(np.mean([i.low <= true <= i.high for i, true in zip(intervals, truth, strict=True)]))


def bootstrapped(planted: Planted, row: Row, ratios: np.ndarray) -> list[Interval]:
    """Returns the percentile bootstrap's intervals of a row on core, from every resample of the seeds."""
    end = planted.end(CORE)
    means = [planted.log_losses(CORE, which, of) for which, of in ((row, ratios), (end, np.ones(len(ratios))))]
    both = [
        mean[:, None] + planted.noise[:, :, planted.column(CORE, w)] for mean, w in zip(means, (row, end), strict=True)
    ]
    draws, intervals = list(product(range(planted.num_seeds), repeat=planted.num_seeds)), []
    points = planted.curves[planted.curves["domain"] == CORE].groupby("size")
    for number in range(len(planted.sizes)):
        of_seeds = points.get_group(str(number)).pivot(index="step", columns="seed", values="loss")
        logs, steps = np.log(of_seeds.to_numpy()), of_seeds.index.to_numpy(float)  # logs: [T, seeds]
        losses, finals = (np.exp(of_rows[number]) for of_rows in both)
        known: dict[tuple[int, ...], float] = {}
        for chosen in {tuple(sorted(draw)) for draw in draws}:
            # At equal steps the least-squares curve of pooled seeds is that of their mean log loss, and sooner fitted.
            curve = fit_learning_curve(steps, np.exp(logs[:, chosen].mean(axis=1)))
            reference = Reference(curve, tuple(finals[list(chosen)]))
            known[chosen] = float(reference.ratios(losses[list(chosen)]).mean())
        intervals.append(percentile_interval([known[tuple(sorted(draw))] for draw in draws], math.nan))
    return intervals


# ---------------------------------------------------------------------------------------------------------- claims


def verdicts(planted: Planted, profile: str) -> pd.DataFrame:
    """Returns a row per form of claim and end of its range: shares of "agree" among the planted studies.

    A form is what a claim compares: classes, methods, variants or sizes. GRAM's losses are planted as GRAM's were
    measured, all other methods' as filtering's. `at the boundary`: left - right is the end; `with the curve fixed`: the
    same judged by the t over seeds. `where equal`: left - right is 0. `where measured`: it is the finished study's
    difference, for contrasts of its own rows. `detectable`: the median of the claims' column.
    """
    forms: dict[tuple, list[Claim]] = {}
    for claim in (claim for claims in CLAIMS.values() for claim in claims):
        if not {_row(side, profile) for side in claim.terms} <= planted.source.domains.keys():
            continue  # the finished study has no such row
        forms.setdefault(_form(claim, profile), []).append(claim)
    table = []
    for alike in forms.values():
        claim = alike[0]
        for end in (end for end in (claim.within.left, claim.within.right) if math.isfinite(end)):
            trial = ClaimTrial(planted, claim, profile)
            at_end, gap = trial.judged(end), trial.difference
            line = {"claim": claim.text, "alike": len(alike), "at": end}
            line |= {"boundary": agreed(at_end), "fixed": agreed(trial.judged(end, curve_fixed=True))}
            line |= {"equal": agreed(trial.judged(0.0)) if end else math.nan}
            line |= {"difference": gap, "measured": agreed(trial.judged(gap))}
            table.append(line | {"detectable": float(np.median([found.detectable for found in at_end]))})
    return pd.DataFrame(table)


def _form(claim: Claim, profile: str) -> tuple:
    runs = list(dict.fromkeys(_run(side) for side in claim.terms))
    sides = [side if side is None else (_row(side, profile), runs.index(_run(side))) for side, _ in _signed(claim)]
    return (tuple(sides), claim.left.size, claim.within.left, claim.within.right)


def _run(side: Side) -> Run:
    return side.method, side.variant, side.size


def _row(side: Side, profile: str) -> Row:
    if side.method == BASELINE and not side.variant:
        return (BASELINE, ALL, side.name)
    if side.profile == ALL and side.name in (CORE, "retain"):
        return ("gram", ALL, side.name)
    return ("gram" if side.method.startswith("gram") else "filtering", profile, side.name)


def _signed(claim: Claim) -> list[tuple[Side | None, float]]:
    left, right = claim.left, claim.right
    return [(left, 1.0), (left.less, -1.0), (right, -1.0), (right.less, 1.0)]


class ClaimTrial:
    """A claim about planted studies at any true difference; every run on its sides has losses of its own."""

    def __init__(self, planted: Planted, claim: Claim, profile: str):
        self.planted, self.claim = planted, claim
        self.sides = [(side, sign, _row(side, profile)) for side, sign in _signed(claim) if side is not None]
        runs = list(dict.fromkeys(_run(side) for side, _, row in self.sides if row[0] != BASELINE))
        used = [next(row[0] for side, _, row in self.sides if _run(side) == run) for run in runs]
        self.noise = {
            run: planted.noise if used.index(method) == place else planted.draw()
            for place, (run, method) in enumerate(zip(runs, used, strict=True))
        }
        self.ratios = [planted.measured_ratios(row) for *_, row in self.sides]
        signed = zip(self.sides, self.ratios, strict=True)
        self.difference = float(np.mean(sum(sign * ratios for (_, sign, _), ratios in signed)))  # as it was measured
        self.others = [self._seeds(place) for place in range(1, len(self.sides))]

    def _seeds(self, place: int) -> Seeds:
        side, _, row = self.sides[place]
        noise = self.noise.get(_run(side), self.planted.noise)
        return self.planted.row(row, self.ratios[place], noise, int(side.size == LAST))

    def judged(self, difference: float, curve_fixed: bool = False) -> list[Judgement]:
        """Judges every study, with a left side whose ratio makes left - right the difference."""
        rest = sum(s * r for (_, s, _), r in zip(self.sides[1:], self.ratios[1:], strict=True))
        self.ratios[0] = difference - rest
        total = self._seeds(0)
        for (_, sign, _), seeds in zip(self.sides[1:], self.others, strict=True):
            total = Seeds(total.values + sign * seeds.values, total.pseudo + sign * seeds.pseudo)
        found, zero = [], dict.fromkeys(self.planted.seeds, 0.0)
        for values, pseudo in zip(total.values, total.values if curve_fixed else total.pseudo, strict=True):
            left, spread = (dict(zip(self.planted.seeds, v, strict=True)) for v in (values, pseudo))
            found.append(judge(self.claim.text, left, zero, self.claim.within, pseudo=(spread, zero)))
        return found


def agreed(judgements: Sequence[Judgement]) -> float:
    """Returns the share of studies in which a claim is agreed."""
    return float(np.mean([found.verdict == AGREE for found in judgements]))


if __name__ == "__main__":
    main()
