"""Loads the paper's three sweeps on Simple Stories, and tests the paper's claims on our sweeps.

`sweeps.csv` has the coordinates of the figures in the paper's "Hyperparameter Appendix"
(`app:hyperparams`): compute ratios with 90% intervals, averaged within each seed, then over three
seeds. In the p_cr figure, core-partial is the mean core ratio of the four profiles with one module,
and core-full is the core ratio with no module. The other two figures show the mean core ratio of
all five profiles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import pseudo_frame
from gram_platform.analysis.ratios import MEAN
from gram_platform.analysis.sweeps import CORES, SWEEP_CLASSES
from gram_platform.analysis.tables import interval_cell, interval_text
from gram_platform.paper.claims import MARGINS, POSITIVE, alike
from gram_platform.paper.paper import STORIES_SIZE
from gram_platform.paper.verdicts import JUDGEMENT_COLUMNS, PROFILE, judge

SWEEP_SEEDS = 3
SWEEPS_FILE = Path(__file__).with_name("sweeps.csv")


@dataclass(frozen=True)
class PaperSweep:
    """A hyperparameter (knob) of a method, and the paper's figure that varies it."""

    knob: str
    method: str
    title: str
    source: str
    is_log: bool = False

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """The figure's curves as {class: frame}. A frame has a row `mean, low, high` per value."""
        rows = pd.read_csv(SWEEPS_FILE, comment="#", float_precision="round_trip")
        groups = rows[rows["knob"] == self.knob].set_index("value").groupby("class", sort=False)
        return {str(name): curve[["mean", "low", "high"]] for name, curve in groups}

    @property
    def means(self) -> pd.DataFrame:
        """The mean ratios, with a column per class and a row per value of the knob."""
        return pd.DataFrame({name: curve["mean"] for name, curve in self.curves.items()})

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self.means.index)


SWEEPS = (
    # At p_as 0.3.
    PaperSweep("p_cr", "gram", "GRAM: core robustness p_cr", "fig:hyperparam_robust"),
    # At p_cr 0.5.
    PaperSweep("p_as", "gram", "GRAM: auxiliary spread p_as", "fig:hyperparam_auxroute"),
    PaperSweep(
        "p_ca",
        "ft_lora",
        "FT-LoRA: core to auxiliary batches p_ca",
        "fig:hyperparam_lora",
        is_log=True,
    ),
)
PAPER_SWEEPS = {sweep.knob: sweep for sweep in SWEEPS}


def beside_paper_sweeps(table: pd.DataFrame) -> pd.DataFrame:
    """Returns our rows of a sweep's table, each followed by the paper's row for the knob's value.

    Columns: `knob, value, method, size, from` ("ours" or "paper"), the classes as `mean [low,
    high]`, `num_seeds, run_ids`.
    """
    rows = []
    for record in table.to_dict("records"):
        key = {name: record[name] for name in ("knob", "value", "method", "size")}
        ours = {name: interval_cell(record, name) for name in SWEEP_CLASSES}
        about = {"num_seeds": record["num_seeds"], "run_ids": record["runs"]}
        rows.append({**key, "from": "ours", **ours, **about})
        sweep = PAPER_SWEEPS[record["knob"]]
        if record["method"] == sweep.method and record["value"] in sweep.values:
            at = ((name, curve.loc[record["value"]]) for name, curve in sweep.curves.items())
            theirs = {name: interval_text(*row) for name, row in at}
            about = {"from": "paper", "size": STORIES_SIZE, "num_seeds": SWEEP_SEEDS}
            rows.append(key | theirs | about)
    columns = ["knob", "value", "method", "size", "from", *SWEEP_CLASSES, "num_seeds", "run_ids"]
    frame = pd.DataFrame(rows, columns=columns).fillna("")
    return frame.drop(columns=[name for name in SWEEP_CLASSES if (frame[name] == "").all()])


CLAIM_COLUMNS = [*JUDGEMENT_COLUMNS, PROFILE, "paper", "source"]

# A curve of one seed or of the paper: a column per class, by ascending knob value.
Curve = pd.DataFrame


@dataclass(frozen=True)
class SweepClaim:
    """States that the mean of `difference(curve)` over the seeds' curves lies in `within`."""

    knob: str
    # {first}, {middle} and {last} are values of the knob.
    text: str
    # The classes of the difference.
    names: tuple[str, ...]
    # NaN if the sweep lacks a needed value.
    difference: Callable[[Curve], float]
    within: pd.Interval = POSITIVE


def _rise(name: str) -> Callable[[Curve], float]:
    return lambda curve: curve[name].iloc[-1] - curve[name].iloc[0]


def _fall(name: str) -> Callable[[Curve], float]:
    return lambda curve: curve[name].iloc[0] - curve[name].iloc[-1]


def _gap(curve: Curve, value: float) -> float:
    return curve["core_full"].get(value, np.nan) - curve["core_partial"].get(value, np.nan)


def _middle(curve: Curve) -> float:
    return min(curve.index[1:-1], key=lambda value: (abs(value - 0.5), value), default=np.nan)


def _ends(knob: str, verb: str, names: Sequence[str], trend: Callable) -> tuple[SweepClaim, ...]:
    text = f"{knob} from {{first}} to {{last}} {verb} "
    return tuple(SweepClaim(knob, text + name, (name,), trend(name)) for name in names)


SWEEP_CLAIMS = (
    SweepClaim(
        "p_cr", "at p_cr 0 core-full is above core-partial", CORES, lambda curve: _gap(curve, 0.0)
    ),
    SweepClaim(
        "p_cr",
        "core-full and core-partial converge: they are closer at p_cr {middle} than at 0",
        CORES,
        lambda curve: abs(_gap(curve, 0.0)) - abs(_gap(curve, _middle(curve))),
    ),
    SweepClaim(
        "p_cr", "at p_cr 1 core-full is below core-partial", CORES, lambda curve: -_gap(curve, 1.0)
    ),
    *_ends("p_cr", "lowers", ("retain", "forget", "elicited"), _fall),
    *_ends("p_as", "raises", ("core", "retain", "forget", "elicited"), _rise),
    SweepClaim(
        "p_as",
        "retain is above forget at every p_as from {first} to {last}",
        ("retain", "forget"),
        lambda curve: (curve["retain"] - curve["forget"]).min(),
    ),
    *_ends("p_ca", "raises", ("core",), _rise),
    *_ends("p_ca", "lowers", ("retain",), _fall),
    *(
        SweepClaim(
            "p_ca",
            f"p_ca {{first}} and {{last}} have the same {name} within {MARGINS[name]:.2f}",
            (name,),
            _rise(name),
            alike(name),
        )
        for name in ("forget", "elicited")
    ),
)


def sweep_claims(per_seed: pd.DataFrame) -> pd.DataFrame:
    """Judges the paper's claims on our sweeps, over the seeds that have every value of the knob.

    Returns CLAIM_COLUMNS, with one row per claim, method and size. There is no row if no seed has
    every value. `paper` is the difference in the paper's figure, or NaN if a value is missing.
    """
    rows, names = [], ["knob", "method", "size"]
    is_plain = per_seed.drop_duplicates(names).groupby("knob").size().max() == 1
    for (knob, method, size), group in per_seed.groupby(names, sort=False):
        seeds = _curves(group)
        for claim in (c for c in SWEEP_CLAIMS if c.knob == knob and seeds):
            suffix = "" if is_plain else f" ({method}, {size})"
            rows += _judge(claim, seeds, suffix, method)
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)


def _curves(group: pd.DataFrame) -> dict[str, Curve]:
    values = pd.Index(sorted(set(group["value"])), name="value")
    return {
        seed: rows.set_index("value").reindex(values)
        for seed, rows in group.groupby("seed", sort=False)
    }


def _judge(claim: SweepClaim, seeds: dict[str, Curve], suffix: str, method: str) -> list[dict]:
    values, names = next(iter(seeds.values())).index, list(claim.names)
    whole = {seed: curve[names].astype(float) for seed, curve in seeds.items()}
    spread = {seed: pseudo_frame(curve, names)[names] for seed, curve in seeds.items()}
    differences, pseudo = _differences(claim, whole), _differences(claim, spread)
    if len(values) < 2 or not differences:
        return []
    named = {"first": values[0], "middle": _middle(next(iter(whole.values()))), "last": values[-1]}
    text = claim.text.format(**{name: f"{value:g}" for name, value in named.items()}) + suffix
    sweep, zero = PAPER_SWEEPS[claim.knob], dict.fromkeys(differences, 0.0)
    judgement = judge(text, differences, zero, claim.within, pseudo=(pseudo, zero))
    in_paper = claim.difference(sweep.means.reindex(values)) if method == sweep.method else np.nan
    return [{**vars(judgement), PROFILE: MEAN, "paper": in_paper, "source": sweep.source}]


def _differences(claim: SweepClaim, seeds: Mapping[str, Curve]) -> dict[str, float]:
    whole = {seed: curve for seed, curve in seeds.items() if curve.notna().all(axis=None)}
    differences = {seed: float(claim.difference(curve)) for seed, curve in whole.items()}
    return {seed: number for seed, number in differences.items() if np.isfinite(number)}
