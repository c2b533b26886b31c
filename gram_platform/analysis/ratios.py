"""Computes the compute ratio of each view and domain from stored losses and baselines' curves.

The curves are fitted to the baselines of all seeds. The jackknife measures the error of a mean over
seeds, including the curve's error. It leaves out the losses and the baseline of one seed at a time.
Source: Tukey's pseudo-values, whose t-interval over n seeds has n - 1 degrees of freedom.

A value that cannot be computed yields a note (what, why) instead of a number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from gram_platform.analysis.compute_ratio import LearningCurve, compute_ratio, fit_learning_curve
from gram_platform.analysis.recovery import ATTACK_CURVE, RECOVERY, recover_row
from gram_platform.config import CORE, core_first
from gram_platform.config.identity import differing_fields, invalid
from gram_platform.methods import method_key, seed_key, size_key
from gram_platform.methods.nodes import BASELINE

ALL = "all"
MEAN = "mean"
ELICITED = "elicited"
ROW = ["method", "size", "profile"]
VIEW = ["method", "size", "seed", "profile"]
PSEUDO = "pseudo_value"
PER_NAT = "ratio_per_nat"
PREFIX = "loss/"
# `elicited` is the attacked domain. `loss` is NaN without a result.
ATTACK_COLUMNS = [*VIEW, ELICITED, "loss"]
CURVE_FIELDS = ["A", "alpha", "s0", "rms", "step_rms", "at_bound", "poor"]
CURVE_FIELDS += ["first_step", "first_loss", "last_step", "num_points"]
FIT_COLUMNS = ["size", "domain", *CURVE_FIELDS, "num_seeds", "reference_steps"]
NO_BASELINE = "no baseline of this size is complete"
# Larger ratios are treated as infinite, since their squares may overflow.
LARGEST = 1e100
# Pairs (what is missing, why).
Notes = list[tuple[str, str]]


@dataclass(frozen=True)
class Reference:
    """The baselines of one size on one domain, against which compute ratios are measured."""

    # All baseline seeds, pooled.
    curve: LearningCurve
    # The final losses (nats per token), one per baseline seed.
    baseline_losses: tuple[float, ...]
    # {seed: the reference without the seed, None if no curve fits}. Empty with one seed.
    without: Mapping[str, "Reference | None"] = field(default_factory=dict)

    def ratio(self, loss: float) -> float:
        """Returns the compute ratio of a loss. NaN if the loss is not finite and positive.

        Infinite if the curve is too flat to convert the loss.
        """
        if not (np.isfinite(loss) and loss > 0.0):
            return math.nan
        ratio = compute_ratio(self.curve, loss, self.baseline_losses)
        return ratio if abs(ratio) < LARGEST else math.copysign(math.inf, ratio)

    def ratios(self, losses: np.ndarray) -> np.ndarray:
        """Returns the compute ratios of losses [N] > 0. NaN where `ratio` returns infinity."""
        values = compute_ratio(self.curve, losses, self.baseline_losses)
        return np.where(np.abs(values) < LARGEST, values, math.nan)


def baseline_references(
    evaluations: pd.DataFrame, curves: pd.DataFrame, leave_out: bool = False, only_seed: str = ""
) -> tuple[dict, Notes]:
    """Returns ({(size, domain): Reference}, notes) for the sizes with a finished baseline.

    A baseline is used if it has a curve and final losses. With `leave_out`, each curve is also
    fitted without each seed in turn, for the jackknife. If the frames have only one seed,
    `only_seed` names it for the notes.
    """
    references, notes, of_seed = {}, [], f", seed {only_seed}" if only_seed else ""
    baselines = evaluations[(evaluations["method"] == BASELINE) & (evaluations["profile"] == ALL)]
    for size in dict.fromkeys([*evaluations["size"], *curves["size"]]):
        finals = baselines[baselines["size"] == size].set_index("seed").sort_index()
        points = curves[curves["size"] == size]
        for seed in sorted(set(finals.index) ^ set(points["seed"])):
            lost = "learning curve" if seed in finals.index else "final losses"
            why = f"it has no {lost}, so it is not part of the reference"
            notes.append((f"{BASELINE} {size} seed {seed}", why))
        finals = finals[finals.index.isin(points["seed"])]
        if finals.empty:
            notes.append((f"all rows of size {size}{of_seed}", NO_BASELINE))
            continue
        for domain in domains_of(evaluations[evaluations["size"] == size]):
            try:
                reference = _reference(domain, finals[PREFIX + domain], points)
            except ValueError as error:
                what = f"size {size}, domain {domain}{of_seed}"
                notes.append((what, f"the baseline's curve could not be fitted: {error}"))
                continue
            without: dict[str, Reference | None] = {}
            for seed in finals.index if leave_out and len(finals) > 1 else ():
                try:
                    without[seed] = _reference(domain, finals[PREFIX + domain].drop(seed), points)
                except ValueError as error:
                    without[seed] = None
                    why = f"the baseline's curve could not be fitted without seed {seed}: {error}"
                    notes.append((f"intervals of size {size}, domain {domain}{of_seed}", why))
            references[size, domain] = replace(reference, without=without)
    return references, notes


def _reference(domain: str, finals: pd.Series, points: pd.DataFrame) -> Reference:
    unknown = ", ".join(finals.index[finals.isna()])
    if unknown:
        allowed = "a final loss of every baseline"
        raise invalid(PREFIX + domain, f"nothing for seed {unknown}", allowed)
    mine = points[(points["domain"] == domain) & points["seed"].isin(finals.index)]
    if mine.empty:
        raise ValueError("it has no points")
    curve = _fit(mine)
    reference = Reference(curve, tuple(float(loss) for loss in finals))
    # This raises if there are no ratios.
    compute_ratio(curve, reference.baseline_losses[0], reference.baseline_losses)
    return reference


# Variants, points of a sweep and pages of a study share a curve's fit.
_fitted = lru_cache(maxsize=1024)(fit_learning_curve)


def _fit(points: pd.DataFrame) -> LearningCurve:
    return _fitted(tuple(points["step"].astype(float)), tuple(points["loss"].astype(float)))


def fit_pooled_curve(
    curves: pd.DataFrame, configs: Mapping[str, Mapping], domain: str = CORE
) -> LearningCurve:
    """Fits a domain's learning curve to all points of runs that differ only in the seed.

    `curves` comes from `load_curves` and `configs` from `load_configs`. Raises ValueError if the
    configs differ in anything else, if a run has no points, or if `fit_learning_curve` raises it.
    """
    fields = differing_fields(configs.values())
    fields.pop("seed", None)
    if fields:
        raise invalid("configs", fields, "configs that differ only in the seed")
    points = curves[(curves["domain"] == domain) & curves["run_id"].isin(configs)]
    if lacking := configs.keys() - set(points["run_id"]):
        allowed = f"points of {domain} for run {', '.join(sorted(lacking))}"
        raise invalid("curves", sorted(set(curves["domain"])), allowed)
    return _fit(points)


def fits_frame(references: dict) -> pd.DataFrame:
    """Returns the fitted curves as FIT_COLUMNS, one row per size and domain."""
    rows = []
    for (size, domain), reference in references.items():
        curve, finals = reference.curve, np.array(reference.baseline_losses)
        fields = (getattr(curve, name) for name in CURVE_FIELDS)
        rows.append((size, domain, *fields, len(finals), float(curve.step(finals).mean())))
    return pd.DataFrame(rows, columns=FIT_COLUMNS)


def compute_ratio_frame(evaluations: pd.DataFrame, references: dict) -> tuple[pd.DataFrame, Notes]:
    """Returns (rows, notes), with one row per view and domain. Skips sizes without a reference.

    The columns are those of `evaluations` except the losses, and `domain`, `class`, `loss` and
    `compute_ratio` (`Reference.ratio`). The class is core for the core domain, retain for auxiliary
    domains that the view retains, and forget for all others.
    """
    carried = [c for c in evaluations.columns if not c.startswith(PREFIX)]
    complete = evaluations[evaluations["size"].isin([size for size, _ in references])]
    domains = {size: domains_of(group) for size, group in complete.groupby("size")}
    rows, notes = [], []
    for view in complete.to_dict("records"):
        names = [view[c] for c in carried]
        for domain in domains[view["size"]]:
            reference, loss = references.get((view["size"], domain)), float(view[PREFIX + domain])
            ratio = reference.ratio(loss) if reference else np.nan
            if reference and not math.isfinite(ratio):
                name = f"{view['method']} {view['size']} {view['profile']} seed {view['seed']}"
                flat = f"the baseline's curve (alpha {reference.curve.alpha:.3g}) is too flat to"
                flat += f" convert its loss, {loss:.6g}"
                why = f"its loss is {loss}" if math.isnan(ratio) else flat
                notes.append((f"{name}, domain {domain}", why))
            is_kept = domain in view["retained"].split(",")
            kind = "core" if domain == CORE else "retain" if is_kept else "forget"
            rows.append((*names, domain, kind, loss, ratio))
    return pd.DataFrame(rows, columns=[*carried, "domain", "class", "loss", "compute_ratio"]), notes


def rate_attacks(
    attacks: pd.DataFrame, ratios: pd.DataFrame, references: dict
) -> tuple[pd.DataFrame, Notes]:
    """Returns (rows, notes). The rows have compute ratios after attacks, with class `elicited`.

    Each row of class forget in `ratios` whose profile was attacked yields one row, with ratio NaN
    if the attack has no result. The columns are those of `ratios`, and also RECOVERY if `attacks`
    has ATTACK_CURVE and `num_tokens`.
    """
    columns, target = list(ratios.columns), [*VIEW, "domain"]
    attacked = set(attacks[ROW].itertuples(index=False, name=None))
    keys = ratios[ROW].itertuples(index=False, name=None)
    is_target = (ratios["class"] == "forget") & np.array([key in attacked for key in keys], bool)
    other, start = ["class", "compute_ratio", "run_id", "num_tokens"], {"loss": "start"}
    targets = ratios[is_target].drop(columns=other, errors="ignore").rename(columns=start)
    values = attacks.rename(columns={ELICITED: "domain"})
    values = values.filter([*target, "loss", "run_id", ATTACK_CURVE, "num_tokens"])
    rows = targets.merge(values, on=target, how="left")
    losses = rows["loss"].astype(float)
    known, ends = np.full(len(rows), np.nan), np.zeros(len(rows))
    for at, key in enumerate(zip(rows["size"], rows["domain"], strict=True)):
        if key in references:
            known[at] = references[key].ratio(losses[at])
            ends[at] = np.mean(references[key].baseline_losses)
    rows = rows.assign(**{"loss": losses, "class": ELICITED, "compute_ratio": known, "end": ends})
    if ATTACK_CURVE in rows and len(rows):
        columns, names = [*columns, *RECOVERY], [ATTACK_CURVE, "num_tokens", "start", "end"]
        rows[RECOVERY] = [recover_row(*row) for row in rows[names].itertuples(index=False)]
    flat = "the baseline's curve is too flat to convert the loss after the attack on"
    notes = [
        *_unknown(rows[losses.isna()], "no result of the attack on"),
        *_unknown(rows[np.isinf(known)], flat),
    ]
    return rows.reindex(columns=columns), notes


def _unknown(rows: pd.DataFrame, why: str) -> Notes:
    notes = []
    for key, group in rows.groupby(ROW, sort=False):
        of_seeds = group.groupby("seed")["domain"]
        seeds = (f"seed {seed}: {', '.join(domains)}" for seed, domains in of_seeds)
        notes.append((f"{' '.join(key)}, elicited", f"{why} {'; '.join(seeds)}"))
    return notes


def slopes(ratios: pd.DataFrame, references: dict) -> np.ndarray:
    """Returns how far each compute ratio falls per nat of loss, [N] > 0. NaN if unknown."""
    values, losses = np.full(len(ratios), np.nan), ratios["loss"].to_numpy(float)
    losses = np.where(ratios["compute_ratio"].isna(), np.nan, losses)
    for key, rows in ratios.groupby(["size", "domain"]).indices.items():
        if reference := references.get(key):
            curve, finals = reference.curve, np.array(reference.baseline_losses)
            # -d step / d loss is (step + s0) / (alpha loss).
            growth = np.exp((curve.log_loss_first - np.log(losses[rows])) / curve.alpha)
            steps = curve.offset * growth / (curve.alpha * losses[rows])
            values[rows] = steps / curve.step(finals).mean()
    return values


def pseudo_values(ratios: pd.DataFrame, references: dict) -> np.ndarray:
    """Returns the jackknife's pseudo-values [N] of the compute ratios in `ratios`.

    A table averages the ratios x of n seeds. The pseudo-value of seed i is

        x_i + (n - 1) mean over j != i of (x_j - y_j),

    where y_j is the ratio of seed j against the reference without seed i. The pseudo-value is x_i
    if the reference is fixed or lacks seed i. If the reference has m != n seeds, n - 1 is replaced
    by sqrt((m - 1) (max(m, n) - 1) n / m), to keep the reference's part of the variance unbiased.
    The pseudo-value is NaN if x_i is NaN or the reference without seed i yields no ratio.
    Pseudo-values can be averaged and subtracted like ratios.
    """
    values, losses = (ratios[name].to_numpy(float) for name in ("compute_ratio", "loss"))
    names = dict.fromkeys(seed for reference in references.values() for seed in reference.without)
    places = {seed: place for place, seed in enumerate(names)}
    # How each ratio changes when its reference lacks a seed.
    changes = np.zeros((len(ratios), len(names)))
    num_baselines = np.ones(len(ratios))
    for key, rows in ratios.reset_index(drop=True).groupby(["size", "domain"]).groups.items():
        reference, known = references.get(key), rows[~np.isnan(values[rows])].to_numpy()
        for seed, left in reference.without.items() if reference else ():
            others = left.ratios(losses[known]) if left else math.nan
            changes[known, places[seed]] = values[known] - others
            num_baselines[known] = len(reference.without)
    group = ratios.groupby([*ROW, "domain", "class"], sort=False).ngroup().to_numpy()
    own = np.array([places.get(seed, -1) for seed in ratios["seed"]], int)
    return values + _of_the_others(values, changes, group, own, num_baselines)


def _of_the_others(
    values: np.ndarray,
    changes: np.ndarray,
    group: np.ndarray,
    own: np.ndarray,
    num_baselines: np.ndarray,
) -> np.ndarray:
    is_known = ~np.isnan(values)
    num = np.bincount(group, is_known)[group] if len(group) else np.zeros(0)
    is_left_out = is_known & (own >= 0) & (num_baselines > 1) & (num > 1)
    added = np.zeros(len(values))
    for place in range(changes.shape[1]):
        total = np.bincount(group, np.where(is_known, changes[:, place], 0.0))
        mine = np.flatnonzero(is_left_out & (own == place))
        n, m = num[mine], num_baselines[mine]
        weight = np.sqrt((m - 1.0) * (np.maximum(m, n) - 1.0) * n / m)
        added[mine] = weight * (total[group[mine]] - changes[mine, place]) / (n - 1.0)
    return added


def require_once(field: str, frame: pd.DataFrame, key: list[str]) -> None:
    repeated = frame[frame.duplicated(key)]
    if len(repeated):
        raise invalid(field, repeated[key].iloc[0].to_dict(), f"each {', '.join(key)} once")


def domains_of(evaluations: pd.DataFrame) -> tuple[str, ...]:
    known = (c for c in evaluations.dropna(axis="columns", how="all") if c.startswith(PREFIX))
    return core_first(tuple(c.removeprefix(PREFIX) for c in known))


def sort_rows(
    frame: pd.DataFrame,
    sizes: Sequence[str],
    names: Sequence[str] = ("method", "size", "profile", "seed", "domain"),
) -> pd.DataFrame:
    """Sorts rows by those columns in `names` that the frame has. Sizes in `sizes` come first."""
    keys = {
        "method": method_key,
        "size": lambda s: (list(sizes).index(s) if s in sizes else len(sizes), size_key(s)),
        "profile": profile_key,
        "seed": seed_key,
        "domain": lambda d: (d != CORE, d),
    }
    columns = [frame[name].map(keys.get(name, str)) for name in names if name in frame]
    ranks = list(zip(*columns, strict=True))
    return frame.iloc[sorted(range(len(frame)), key=ranks.__getitem__)].reset_index(drop=True)


def profile_key(profile: str) -> tuple:
    """Returns a key that sorts profiles as core, core+a, core+a+b, all, mean."""
    last = {ALL: 1, MEAN: 2}.get(profile, 0)
    return last, str(profile).count("+"), str(profile)
