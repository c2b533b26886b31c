"""Measures on planted studies how often intervals hold the true compute ratio, and how often claims
are judged right.

    python -m benchmarks.coverage --storage DIR --num-studies 1000

Studies are planted from a finished study (default: scaling) of baseline, filtering and GRAM with
attacks. Every domain of every size has a true curve: the power law that was fitted there, or that
curve bent (SHAPES). The seeds' deviations from it, in log loss, are normal with the covariance that
the finished study shows, pooled over its sizes: all points of all curves, the baselines' decayed
ends and every loss of every method together.

Ratios are planted where they were measured, and claims at their boundaries, where left - right is
the end of the range. Prints a table of coverages for each shape of the true curves, then one of
verdicts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import tyro

from gram_platform.analysis.compute_ratio import LearningCurve, fit_learning_curve
from gram_platform.analysis.intervals import Interval, t_interval
from gram_platform.analysis.ratios import ALL, PREFIX, baseline_references
from gram_platform.analysis.tables import frame_text
from gram_platform.config import CORE
from gram_platform.config.endings import exit_with
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.methods.nodes import BASELINE
from gram_platform.pages.results.record import load_record
from gram_platform.pages.results.results import read_results
from gram_platform.paper.claims import CLAIMS, LAST, Claim, Side
from gram_platform.paper.verdicts import AGREE, Judgement, judge
from gram_platform.store import Store

NUM_SEEDS = (3, 5)
# Method, profile and class of a row of the table.
Row = tuple[str, str, str]
# Method, variant and size of a claim's side.
Run = tuple[str, str, str]
POWER_LAW, POINT = "power law", "point "
# The methods whose losses are planted.
METHODS = ("filtering", "gram")


@dataclass(frozen=True)
class Unit:
    """The baselines of one size on one domain, as they were measured."""

    curve: LearningCurve
    # The steps of the curve's points [T].
    steps: np.ndarray
    # The mean residual over seeds, in log loss [T].
    misfit: np.ndarray
    # Mean log loss of the baselines at their end.
    end: float


@dataclass(frozen=True)
class Measured:
    """What planted studies are made from."""

    # By size and domain.
    units: Mapping[tuple[str, str], Unit]
    # The mean compute ratio by size and row of the table.
    ratios: Mapping[tuple[str, Row], float]
    # The domains of each row.
    domains: Mapping[Row, tuple[str, ...]]
    # Log loss minus the mean over seeds: a row per size and seed, a column per point of a curve,
    # `(domain, POINT)` with its number, and per loss, `(domain, name of the row)`.
    deviations: pd.DataFrame
    # Degrees of freedom of the deviations.
    freedom: int


def of_domains(source: Measured, domains: Sequence[str]) -> Measured:
    """Restricts what was measured to some domains, so that fewer curves are fitted."""
    units = {key: unit for key, unit in source.units.items() if key[1] in domains}
    rows = {row: tuple(d for d in found if d in domains) for row, found in source.domains.items()}
    rows = {row: found for row, found in rows.items() if found}
    return replace(source, units=units, domains=rows)


def measured(curves: pd.DataFrame, ratios: pd.DataFrame, profile: str) -> Measured:
    """Measures curves and deviations from the frames of a study: `size, seed, step, domain, loss`;
    `Analysis.ratios`.

    `profile`: of core and one domain, whose rows are planted beside those of `all`. ValueError
    without these rows.
    """
    rows = ratios[
        ratios["method"].isin([*METHODS, BASELINE]) & ratios["profile"].isin([profile, ALL])
    ]
    found = rows[rows["profile"] == profile].groupby("size")["method"].agg(set)
    if any(set(METHODS) - found.get(size, set()) for size in dict.fromkeys(curves["size"])):
        names = ", ".join(sorted(set(ratios["profile"])))
        raise invalid(
            "profile", profile, f"one that {' and '.join(METHODS)} have at every size, of {names}"
        )
    units, parts, domains = {}, {}, {}
    for size in dict.fromkeys(curves["size"]):
        of_size = {}
        for domain, points in curves[curves["size"] == size].groupby("domain"):
            curve = fit_learning_curve(points["step"], points["loss"])
            logs = np.log(points.pivot(index="step", columns="seed", values="loss"))
            residuals = logs.sub(np.log(curve.loss(logs.index.to_numpy(float))), axis=0)
            misfit = residuals.mean(axis=1)
            of_size |= {
                (domain, f"{POINT}{number}"): row
                for number, (_, row) in enumerate(residuals.sub(misfit, 0).iterrows())
            }
            here = rows[(rows["size"] == size) & (rows["domain"] == domain)]
            for key, group in here.groupby(["method", "profile", "class"]):
                losses = np.log(group.set_index("seed")["loss"])
                of_size[domain, " ".join(key)] = losses - losses.mean()
                domains.setdefault(key, {})[domain] = None
                if key[0] == BASELINE:
                    end = float(losses.mean())
            units[size, domain] = Unit(curve, logs.index.to_numpy(float), misfit.to_numpy(), end)
        parts[size] = pd.DataFrame(of_size)
    deviations = pd.concat(parts).dropna(axis="columns")
    means = rows.groupby(["size", "method", "profile", "class"])["compute_ratio"].mean()
    domains = {
        row: tuple(d for d in of if (d, " ".join(row)) in deviations) for row, of in domains.items()
    }
    domains = {row: of for row, of in domains.items() if of}
    known = {
        (size, tuple(row)): float(ratio)
        for (size, *row), ratio in means.items()
        if tuple(row) in domains
    }
    return Measured(units, known, domains, deviations, len(deviations) - len(parts))


# The true log loss at steps.
Shape = Callable[[Unit, np.ndarray], np.ndarray]


def power_law(unit: Unit, steps: np.ndarray) -> np.ndarray:
    return np.log(unit.curve.loss(steps))


def drop(unit: Unit, steps: np.ndarray) -> np.ndarray:
    """Falls by 4% beyond the power law in the last tenth."""
    share = np.clip(steps / unit.curve.last_step * 10.0 - 9.0, 0.0, 1.0)
    return power_law(unit, steps) + np.log(1.0 - 0.04 * share)


def misfit(unit: Unit, steps: np.ndarray) -> np.ndarray:
    """Bends the power law as the measured curves are bent."""
    return power_law(unit, steps) + np.interp(steps, unit.steps, unit.misfit)


SHAPES: Mapping[str, Shape] = {
    POWER_LAW: power_law,
    "4% drop in the last tenth": drop,
    "the measured misfit": misfit,
}


class Planted:
    """Many studies of the same seeds' number, each with a true curve per domain, drawn baselines
    and their fits."""

    def __init__(
        self, source: Measured, shape: Shape, num_studies: int, num_seeds: int, rng_seed: int = 0
    ):
        self.source, self.shape, self.num_seeds = source, shape, num_seeds
        self.rng = np.random.default_rng(rng_seed)
        sizes = list(dict.fromkeys(size for size, _ in source.units))
        self.sizes = [sizes[number % len(sizes)] for number in range(num_studies)]
        self.seeds = [str(seed) for seed in range(num_seeds)]
        self.noise = self.draw()
        evaluations, curves = self._baselines()
        self.curves = curves
        self.references, notes = baseline_references(evaluations, curves, leave_out=True)
        assert not notes, notes
        self.conversions = {
            domain: self._conversions(domain)
            for domain in dict.fromkeys(d for _, d in source.units)
        }

    def draw(self) -> np.ndarray:
        """Draws deviations [studies, seeds, columns of `deviations`]."""
        deviations = self.source.deviations.to_numpy()
        weights = self.rng.standard_normal((len(self.sizes), self.num_seeds, len(deviations)))
        return weights @ deviations / math.sqrt(self.source.freedom)

    def column(self, domain: str, row: Row) -> int:
        """Returns the place of a row's loss among the deviations."""
        return self.source.deviations.columns.get_loc((domain, " ".join(row)))

    def end(self, domain: str) -> Row:
        """Returns the row of the baselines' own losses."""
        return (BASELINE, ALL, CORE if domain == CORE else "retain")

    def log_losses(self, domain: str, row: Row, ratios: np.ndarray) -> np.ndarray:
        """Returns the mean log losses [studies] at which a row's expected steps are `ratios` of the
        baselines'."""
        found, sizes = np.zeros(len(self.sizes)), np.array(self.sizes)
        for size in dict.fromkeys(self.sizes):
            unit, here = self.source.units[size, domain], sizes == size
            growth, of_end = (
                self._growth(unit, domain, which) for which in (row, self.end(domain))
            )
            s0 = unit.curve.s0
            reference = (unit.curve.step(math.exp(unit.end)) + s0) * of_end - s0
            found[here] = self.shape(unit, (ratios[here] * reference + s0) / growth - s0)
        return found

    def _growth(self, unit: Unit, domain: str, row: Row) -> float:
        """Returns by how much the seeds' spread raises the mean of s + s0."""
        variance = (self.source.deviations[domain, " ".join(row)] ** 2).sum() / self.source.freedom
        return math.exp(0.5 * variance / unit.curve.alpha**2)

    def _baselines(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Returns the frames of `baseline_references`: a study is a size, named by its number."""
        numbers = [str(number) for number in range(len(self.sizes))]
        names = pd.MultiIndex.from_product([numbers, self.seeds], names=["size", "seed"])
        losses, curves = pd.DataFrame(index=names), []
        for domain in dict.fromkeys(domain for _, domain in self.source.units):
            end, columns = self.end(domain), self.source.deviations.columns
            mean = self.log_losses(domain, end, np.ones(len(numbers)))[:, None]
            losses[PREFIX + domain] = np.exp(
                mean + self.noise[:, :, self.column(domain, end)]
            ).ravel()
            points = [
                place
                for place, (d, key) in enumerate(columns)
                if d == domain and key.startswith(POINT)
            ]
            units = [self.source.units[size, domain] for size in self.sizes]
            # The shape is [studies, T].
            steps = np.array([unit.steps[: len(points)] for unit in units])
            true = np.array(
                [self.shape(unit, of_unit) for unit, of_unit in zip(units, steps, strict=True)]
            )
            logs = true[:, None, :] + self.noise[:, :, points]
            frame = pd.DataFrame(
                {"step": np.repeat(steps, self.num_seeds, 0).ravel(), "loss": np.exp(logs).ravel()}
            )
            curves.append(
                frame.set_index(names.repeat(len(points))).reset_index().assign(domain=domain)
            )
        evaluations = losses.reset_index().assign(method=BASELINE, profile=ALL)
        return evaluations, pd.concat(curves, ignore_index=True)

    def _conversions(self, domain: str) -> np.ndarray:
        """Returns [5, studies, seeds + 1] numbers that turn log losses into ratios, last by the
        pooled reference."""
        found = []
        for number in range(len(self.sizes)):
            reference = self.references[str(number), domain]
            row = []
            for one in (*(reference.without[seed] for seed in self.seeds), reference):
                curve, finals = one.curve, np.array(one.baseline_losses)
                numbers = (curve.first_step, curve.offset, curve.log_loss_first, curve.alpha)
                row.append((*numbers, float(np.mean(curve.step(finals)))))
            found.append(row)
        return np.moveaxis(np.array(found), -1, 0)

    def row(self, row: Row, ratios: np.ndarray, noise: np.ndarray, shift: int = 0) -> "Seeds":
        """Returns a row's values and pseudo-values at planted ratios [studies]; `shift`: by another
        study's curves.

        This is `ratios.pseudo_values` for studies without gaps, of all at once.
        """
        every = []
        for domain in self.source.domains[row]:
            logs = (
                self.log_losses(domain, row, np.roll(ratios, shift))[:, None]
                + noise[:, :, self.column(domain, row)]
            )
            first, offset, log_first, alpha, reference = self.conversions[domain][:, :, None, :]
            steps = first + offset * np.expm1((log_first - logs[:, :, None]) / alpha)
            # The shape is [studies, seeds, seeds + 1].
            every.append(steps / reference)
        mean = np.mean(every, axis=0)
        values = mean[:, :, -1]
        changes = values[:, :, None] - mean[:, :, :-1]
        pseudo = values + changes.sum(axis=1) - np.einsum("sii->si", changes)
        return Seeds(*(np.roll(v, -shift, axis=0) for v in (values, pseudo)))

    def measured_ratios(self, row: Row) -> np.ndarray:
        return np.array([self.source.ratios[size, row] for size in self.sizes])


@dataclass(frozen=True)
class Seeds:
    """Values and pseudo-values [studies, seeds]."""

    values: np.ndarray
    pseudo: np.ndarray

    def __sub__(self, other: "Seeds") -> "Seeds":
        return Seeds(self.values - other.values, self.pseudo - other.pseudo)


def coverage(planted: Planted) -> pd.DataFrame:
    """Returns a row per row of the table and per difference: the share of intervals that hold the
    planted ratio."""
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
        line = {"quantity": name, "jackknife": held(ours, truth)}
        line |= {"curve fixed": held(fixed, truth)}
        line |= {"half-width": float(np.mean([i.high - i.low for i in ours]) / 2.0)}
        line |= {"bias": float((seeds.values.mean(axis=1) - truth).mean())}
        table.append(line)
    return pd.DataFrame(table)


def held(intervals: Sequence[Interval], truth: np.ndarray) -> float:
    """Returns the share of intervals that hold the truth [studies]."""
    return float(
        np.mean([i.low <= true <= i.high for i, true in zip(intervals, truth, strict=True)])
    )


def verdicts(planted: Planted, profile: str) -> pd.DataFrame:
    """Returns a row per form of claim and end of its range: shares of "agree" among the planted
    studies.

    A form is what a claim compares: classes, methods, variants or sizes. GRAM's losses are planted
    as GRAM's were measured, all other methods' as filtering's. `at the boundary`: left - right is
    the end; `with the curve fixed`: the same judged by the t over seeds. `where equal`: left -
    right is 0. `where measured`: it is the finished study's difference, for contrasts of its own
    rows. `detectable`: the median of the claims' column.
    """
    forms: dict[tuple, list[Claim]] = {}
    for claim in (claim for claims in CLAIMS.values() for claim in claims):
        # The finished study has not every row.
        if {_row(side, profile) for side in claim.terms} <= planted.source.domains.keys():
            forms.setdefault(_form(claim, profile), []).append(claim)
    table = []
    for alike in forms.values():
        claim = alike[0]
        for end in (end for end in (claim.within.left, claim.within.right) if math.isfinite(end)):
            trial = ClaimTrial(planted, claim, profile)
            at_end, gap = trial.judged(end), trial.difference
            line = {"claim": claim.text, "alike": len(alike), "at": end}
            line |= {
                "boundary": agreed(at_end),
                "fixed": agreed(trial.judged(end, curve_fixed=True)),
            }
            line |= {"equal": agreed(trial.judged(0.0)) if end else math.nan}
            line |= {"difference": gap, "measured": agreed(trial.judged(gap))}
            table.append(
                line | {"detectable": float(np.median([found.detectable for found in at_end]))}
            )
    return pd.DataFrame(table)


def _form(claim: Claim, profile: str) -> tuple:
    runs = list(dict.fromkeys(_run(side) for side in claim.terms))
    sides = [
        side if side is None else (_row(side, profile), runs.index(_run(side)))
        for side, _ in _signed(claim)
    ]
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
    """A claim about planted studies at any true difference; every run on its sides has losses of
    its own."""

    def __init__(self, planted: Planted, claim: Claim, profile: str):
        self.planted, self.claim = planted, claim
        self.sides = [
            (side, sign, _row(side, profile)) for side, sign in _signed(claim) if side is not None
        ]
        runs = list(dict.fromkeys(_run(side) for side, _, row in self.sides if row[0] != BASELINE))
        used = [next(row[0] for side, _, row in self.sides if _run(side) == run) for run in runs]
        self.noise = {
            run: planted.noise if used.index(method) == place else planted.draw()
            for place, (run, method) in enumerate(zip(runs, used, strict=True))
        }
        self.ratios = [planted.measured_ratios(row) for *_, row in self.sides]
        signed = zip(self.sides, self.ratios, strict=True)
        # The difference as it was measured.
        self.difference = float(np.mean(sum(sign * ratios for (_, sign, _), ratios in signed)))
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
        for values, pseudo in zip(
            total.values, total.values if curve_fixed else total.pseudo, strict=True
        ):
            left, spread = (dict(zip(self.planted.seeds, v, strict=True)) for v in (values, pseudo))
            found.append(
                judge(self.claim.text, left, zero, self.claim.within, pseudo=(spread, zero))
            )
        return found


def agreed(judgements: Sequence[Judgement]) -> float:
    """Returns the share of studies in which a claim is agreed."""
    return float(np.mean([found.verdict == AGREE for found in judgements]))


@dataclass(frozen=True)
class CoverageFlags:
    """Plants studies of 3 and of 5 seeds."""

    # The storage of the finished study.
    storage: str
    study: str = "scaling"
    # A profile of core and one domain.
    profile: str = "core+airport"
    # Studies of each kind.
    num_studies: int = 1000
    shapes: tuple[str, ...] = tuple(SHAPES)
    rng_seed: int = 0


def main(flags: CoverageFlags) -> int:
    """Prints the tables."""
    store = Store(flags.storage)
    record = load_record(store, flags.study)
    results = read_results(record, store)
    source = measured(results.curves, results.analysis.ratios, flags.profile)
    forgotten = source.domains["gram", flags.profile, "forget"][0]
    for shape, num_seeds in product(flags.shapes, NUM_SEEDS):
        part = source if shape == POWER_LAW else of_domains(source, (CORE, forgotten))
        planted = Planted(part, SHAPES[shape], flags.num_studies, num_seeds, flags.rng_seed)
        say(f"{shape}, {num_seeds} seeds, {flags.num_studies} studies")
        say(frame_text(coverage(planted)) + "\n")
        if shape == POWER_LAW:
            say(frame_text(verdicts(planted, flags.profile)) + "\n")
    return 0


if __name__ == "__main__":
    exit_with(lambda: main(tyro.cli(CoverageFlags)))
