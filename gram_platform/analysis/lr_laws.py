"""Fits power laws in model size to optimal learning rates and batches, with intervals over seeds.

Source: the paper's appendix "Learning Rate and Batch Size Scaling". `as_published` follows the
authors' code where it differs from their text. Our addition is that an optimum is weak if it is at
the edge of its grid, or if its surface's curvature may be noise. Weak optima are left out if at
least three others remain. Otherwise the fit uses all optima but predicts nothing, and `no_law`
explains why.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from gram_platform.analysis.intervals import CONFIDENCE, TAIL, Interval, positive
from gram_platform.analysis.lr_grid import (
    POOLED,
    cells,
    is_flat,
    optima_table,
    select_trials,
    surface_table,
)
from gram_platform.analysis.surface import OUR_FIT, Fit, fit_surface
from gram_platform.analysis.trends import PowerLaw, fit_power_law
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid
from gram_platform.config.ladder import FEWEST_SIZES, PAPER_LAW, Law, Size

QUANTITIES = ("lr", "batch")
WINDOWS = (None, 0.2, 0.1, 0.05, 0.02, 0.01)
LAW_NUMBERS = ["coefficient", "exponent", "r2", "t_low", "t_high"]
LAW_NUMBERS += ["bootstrap_low", "bootstrap_high"]
LAW_COLUMNS = ["quantity", *LAW_NUMBERS, "num_resamples", "num_failed"]
OF_BOTH = ["num_sizes", "sizes", "smallest", "largest", "left_out", "no_law"]
LAW_COLUMNS += OF_BOTH
LAW_POINTS = 40


@dataclass(frozen=True)
class GridAnalysis:
    """The result of `analyse_grid`."""

    cells: pd.DataFrame
    optima: pd.DataFrame
    surfaces: pd.DataFrame
    laws: pd.DataFrame
    windows: pd.DataFrame
    # `quantity, parameters, value, low, high, paper` over the span of the sizes. `value` is our law
    # with its 90% bootstrap band, and NaN is no prediction. Batches are in the trials' sequences.
    lines: pd.DataFrame


def analyse_grid(
    trials: pd.DataFrame,
    seq_len: int,
    window: float | None = None,
    num_resamples: int = 200,
    as_published: bool = False,
) -> GridAnalysis:
    """Fits surfaces and laws to trials with the columns of `lr_grid`.

    Batches consist of sequences of `seq_len` tokens. `window` and `as_published` are fields of
    `surface.Fit`. With `as_published`, trials that were loaded with `named_sizes` reproduce the
    authors' laws to the last digit.
    """
    fit = Fit(window, as_published)
    optima = optima_table(trials, fit)
    laws, rows = _fit(trials, optima, fit, num_resamples)
    return GridAnalysis(
        cells=cells(trials, as_published),
        optima=optima,
        surfaces=surface_table(trials, fit),
        laws=rows,
        windows=window_table(trials, (window, *WINDOWS), fit),
        lines=_line_rows(optima, laws, make_law(rows, "", seq_len, ""), seq_len),
    )


def laws_table(trials: pd.DataFrame, fit: Fit = OUR_FIT, num_resamples: int = 200) -> pd.DataFrame:
    """Returns a table with LAW_COLUMNS: a row for the law of `lr` and one for the law of `batch`.

    - `sizes`: the sizes whose optima are fitted
    - `smallest, largest`: their smallest and largest parameter counts
    - `left_out`: all other sizes, with reasons
    - `no_law`: the reason why the fit is rejected, or "" if it is accepted

    LAW_NUMBERS are NaN with fewer than two fitted sizes, or if a coefficient under- or overflows.
    The bootstrap needs two seeds at every size.
    """
    return _fit(trials, optima_table(trials, fit), fit, num_resamples)[1]


def window_table(
    trials: pd.DataFrame,
    windows: Iterable[float | None] = WINDOWS,
    fit: Fit = OUR_FIT,
) -> pd.DataFrame:
    """Fits the laws of `lr` and `batch` with each window (see `Fit`). Returns one row per window.

    The widest window is first. The window None, shown as NaN, uses all cells.
    """
    rows, names = [], {"exponent": "exponent", "t_low": "low", "t_high": "high", "r2": "r2"}
    for window in sorted(set(windows), key=lambda w: -math.inf if w is None else -w):
        laws = laws_table(trials, dataclasses.replace(fit, window=window), 1).set_index("quantity")
        row = {"window": math.nan if window is None else window}
        for quantity in QUANTITIES:
            row |= {f"{quantity}_{to}": laws.loc[quantity, name] for name, to in names.items()}
        rows.append(row | {name: laws.loc["lr", name] for name in OF_BOTH})
    return pd.DataFrame(rows)


def _fit(
    trials: pd.DataFrame,
    optima: pd.DataFrame,
    fit: Fit,
    num_resamples: int,
) -> tuple["LawBootstrap | None", pd.DataFrame]:
    pooled = optima[optima["seed"] == POOLED].set_index("size")
    refused = {size: _why_no_optimum(row) for size, row in pooled.iterrows()}
    usable = [size for size, why in refused.items() if not why]
    weak = {size: why for size in usable if (why := _why_weak(pooled.loc[size]))}
    sure = [size for size in usable if size not in weak]
    entered = sure if len(sure) >= FEWEST_SIZES else usable
    used = select_trials(trials, fit.as_published)
    used = used[used["size"].isin(entered)]
    left_out = "; ".join(f"{s}: {why or weak[s]}" for s, why in refused.items() if s not in entered)
    laws = bootstrap_laws(used, fit, num_resamples) if len(entered) > 1 else None
    is_number = laws is None or all(0.0 < law.coefficient < math.inf for law in laws.laws.values())
    few = f"sizes with an optimum: {len(entered)}, at least {FEWEST_SIZES} are needed"
    no_law = [few, left_out] if len(entered) < FEWEST_SIZES else []
    no_law += [f"{size}: {weak[size]}" for size in entered if size in weak]
    no_law += [] if is_number else ["its coefficients lie beyond all numbers"]
    laws, parameters, rows = laws if is_number else None, used["parameters"], []
    shared = len(entered), " ".join(entered), parameters.min(), parameters.max(), left_out
    for quantity in QUANTITIES:
        numbers = [math.nan] * len(LAW_NUMBERS) + [0, 0]
        if laws is not None:
            law, (_, low, high) = laws.laws[quantity], laws.exponents[quantity]
            numbers = [law.coefficient, law.exponent, law.r2, *law.exponent_interval, low, high]
            numbers += [laws.num_resamples, laws.num_failed]
        rows.append((quantity, *numbers, *shared, "; ".join(filter(None, no_law))))
    return laws, pd.DataFrame(rows, columns=LAW_COLUMNS)


def _why_weak(row: pd.Series) -> str:
    edge = f"at the edge ({row['edges']})" if row["edges"] else "outside the cells used"
    reasons = [edge] if row["on_edge"] else []
    if is_flat(row["curvature_t"]):
        reasons.append("curvature within the noise")
    return ", ".join(reasons)


def _why_no_optimum(row: pd.Series) -> str:
    if row["reason"]:
        return f"no fit ({row['reason']})"
    if not row["convex"]:
        return "not convex"
    is_place = all(math.isfinite(row[name]) and row[name] > 0.0 for name in QUANTITIES)
    return "" if is_place else "its minimum lies beyond all numbers"


def _line_rows(
    optima: pd.DataFrame, laws: "LawBootstrap | None", fitted: Law | None, seq_len: int
) -> pd.DataFrame:
    parameters = optima["parameters"].astype(float)
    along = np.geomspace(parameters.min(), parameters.max(), LAW_POINTS) if len(optima) else []
    rows = []
    for place, quantity in enumerate(QUANTITIES):
        for n in along:
            is_known = fitted and fitted.predicts(n)
            ours = laws.predict(quantity, n) if is_known else (math.nan,) * 3
            rows.append((quantity, float(n), *ours, float(_predict(PAPER_LAW, n, seq_len)[place])))
    return pd.DataFrame(rows, columns=["quantity", "parameters", "value", "low", "high", "paper"])


def _predict(law: Law | None, parameters: float, seq_len: int) -> tuple[float, float]:
    if law is None or not law.predicts(parameters):
        return math.nan, math.nan
    return law.lr(parameters), law.batch(parameters, seq_len)


def spread_interval(
    deviations: np.ndarray, freedoms: np.ndarray, weights: np.ndarray, centre: float
) -> Interval:
    """Returns `centre` and its 90% interval from resamples of the seeds.

    `centre` is the sum of J sizes' log optima times `weights` [J]. `deviations` [R, J] are the log
    optima of R resamples of the seeds minus the log optima of all seeds, or NaN where a resample
    failed. Resampling n seeds understates their spread by the factor sqrt((n-1)/n), so the caller
    must divide `deviations` by this factor. `freedoms` [J] are the numbers of seeds minus 1.

    The spread of few seeds is itself uncertain, so the interval is widened by the ratio of the t
    quantile to the normal quantile. The degrees of freedom of t follow Welch and Satterthwaite,
    with each size weighted by its share of the variance. The ends are NaN with fewer than two
    resamples.
    """
    known = deviations[np.isfinite(deviations).all(axis=1)]
    if len(known) < 2 or not math.isfinite(centre):
        return Interval(centre, math.nan, math.nan)
    variances = weights**2 * known.var(axis=0)
    total = variances.sum()
    shares = variances / total if total > 0.0 else np.full(len(variances), 1.0 / len(variances))
    freedom = 1.0 / np.sum(shares**2 / freedoms)
    factor = stats.t.ppf(TAIL, freedom) / stats.norm.ppf(TAIL)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(centre + factor * (known @ weights), [tail, 100.0 - tail])
    return Interval(centre, float(low), float(high))


@dataclass(frozen=True)
class LawBootstrap:
    """The laws of learning rate and batch, with 90% intervals from resampling the seeds."""

    # By QUANTITIES.
    laws: Mapping[str, PowerLaw]
    exponents: Mapping[str, Interval]
    # 0 if a size has only one seed. Then the intervals are NaN.
    num_resamples: int
    # Resamples without a convex surface at every size, which the intervals leave out.
    num_failed: int
    sizes: tuple[float, ...]
    spreads: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(compare=False)

    def predict(self, quantity: str, size: float) -> Interval:
        """Predicts `lr` or `batch` for `size` parameters, with the 90% interval over seeds."""
        weights = 1.0 / len(self.sizes) + _from_mean(self.sizes, size) * _slope_weights(self.sizes)
        value = float(self.laws[quantity].predict(size))
        with np.errstate(divide="ignore", over="ignore"):
            _, low, high = spread_interval(*self.spreads[quantity], weights, np.log(value))
            return Interval(value, float(np.exp(low)), float(np.exp(high)))


def bootstrap_laws(
    trials: pd.DataFrame, fit: Fit = OUR_FIT, num_resamples: int = 200
) -> LawBootstrap:
    """Fits laws of learning rate and batch to all trials, and to resamples of each size's seeds.

    `trials` has `parameters, seed, lr, batch, loss`. Raises ValueError like `fit_surface`, or if
    the surface of all seeds of a size is not convex.
    """
    sizes, groups = [], []
    for parameters, of_size in trials.groupby("parameters", sort=True):
        sizes.append(float(parameters))
        seeds = of_size.groupby("seed")[["lr", "batch", "loss"]]
        groups.append([of_seed.to_numpy(float) for _, of_seed in seeds])
    pooled = _optima(sizes, groups, fit)
    num_seeds = np.array([len(seeds) for seeds in groups])
    laws = {q: fit_power_law(sizes, values) for q, values in zip(QUANTITIES, pooled, strict=True)}
    num_resamples = num_resamples if num_seeds.min() > 1 else 0
    samples, rng = np.full((num_resamples, *pooled.shape), np.nan), np.random.default_rng(0)
    for sample in samples:
        redrawn = [[seeds[i] for i in rng.integers(0, len(seeds), len(seeds))] for seeds in groups]
        with suppress(ValueError):
            sample[:] = _optima(sizes, redrawn, fit)
    moved = np.log(samples / pooled) * np.sqrt(num_seeds / np.maximum(num_seeds - 1, 1))
    spreads = {q: (moved[:, i], num_seeds - 1) for i, q in enumerate(QUANTITIES)}
    weights = _slope_weights(sizes)
    exponents = {q: spread_interval(*spreads[q], weights, laws[q].exponent) for q in QUANTITIES}
    num_failed = int(np.isnan(samples[:, 0, 0]).sum())
    return LawBootstrap(laws, exponents, num_resamples, num_failed, tuple(sizes), spreads)


def _optima(sizes: list[float], groups: list[list[np.ndarray]], fit: Fit) -> np.ndarray:
    """Returns the learning rates and batches [2, J] at the minima of J sizes' surfaces.

    `groups` has a list per size, with an array [n, 3] of lr, batch and loss per seed.
    """
    optima = []
    for seeds in groups:
        names = np.repeat(np.arange(len(seeds)), [len(seed) for seed in seeds])
        lr, batch, loss = np.concatenate(seeds).T
        optima.append(fit_surface(lr, batch, loss, names, fit).optimum())
    flat = [size for size, optimum in zip(sizes, optima, strict=True) if not optimum.convex]
    if flat:
        allowed = "a convex surface at every size: widen the grid or the window"
        raise invalid("trials", flat, allowed)
    places = {name: [getattr(optimum, name) for optimum in optima] for name in QUANTITIES}
    return np.stack([positive(name, values) for name, values in places.items()])


def _from_mean(sizes: Sequence[float], size: float | Sequence[float]) -> np.ndarray:
    return np.log(size) - np.log(sizes).mean()


def _slope_weights(sizes: Sequence[float]) -> np.ndarray:
    centred = _from_mean(sizes, sizes)
    return centred / (centred @ centred)


def make_law(laws: pd.DataFrame, name: str, seq_len: int, source: str) -> Law | None:
    """Converts a `laws_table` to a `Law`. Returns None if nothing was fitted."""
    rows, fitted = laws.set_index("quantity"), ["coefficient", "exponent"]
    if rows[fitted].isna().any(axis=None):
        return None
    numbers = (number for quantity in QUANTITIES for number in rows.loc[quantity, fitted])
    shared = rows.loc["lr", ["num_sizes", "smallest", "largest", "no_law"]].to_dict()
    return Law(name, *numbers, seq_len, source, **shared)


def law_json(law: Law | None, laws: pd.DataFrame) -> dict:
    """Returns the content of a law file for `ladder.load_law`, including the rows of `laws_table`.

    NaN becomes null. `load_law` rejects the file if no law was fitted.
    """
    evidence = laws.astype(object).where(laws.notna(), None).to_dict("records")
    known = {"no_law": evidence[0]["no_law"]} if law is None else dataclasses.asdict(law)
    return {**known, "evidence": evidence}


def predictions(law: Law | None, sizes: Sequence[Size]) -> pd.DataFrame:
    """Returns each size's learning rate and batch by our law, by the paper's and in the ladder.

    A law's values are NaN if it is missing, rejected or fitted too far from the size.
    `times_beyond` is the factor by which the size lies beyond our law's range. Batches are in
    sequences of the size's `seq_len`, not the law's.
    """
    rows = []
    for size in sizes:
        n = total_parameters(size.dense())
        row = {"size": size.name, "parameters": n, "seq_len": size.seq_len}
        for name, source in (("", law), ("paper_", PAPER_LAW)):
            row[f"{name}lr"], row[f"{name}batch"] = _predict(source, n, size.seq_len)
        row["times_beyond"] = math.nan if law is None or law.flaw else law.times_beyond(n)
        rows.append({**row, "ladder_lr": size.peak_lr, "ladder_batch": size.batch_size})
    return pd.DataFrame(rows)
