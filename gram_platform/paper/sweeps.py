"""Holds the paper's three hyperparameter sweeps on Simple Stories, and judges the paper's claims on ours.

Source: the coordinates of the figures in the paper's "Hyperparameter Appendix" (`app:hyperparams`). Every number is a
compute ratio, averaged within each of three seeds and then over them, with the ends of the 90% interval. Core-partial
averages core over the four profiles of core and one module; core-full is core without modules. The p_cr figure has
these two, the other figures core over all five profiles.

At p_ca 2 the FT-LoRA of the main table (`tab:synthetic`: .841 .928 .692 .774) lies below this sweep's (.899 .969 .739
.826); the paper does not say why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gram_platform.analysis.sweeps import SWEEP_CLASSES
from gram_platform.analysis.tables import interval_cell, interval_text
from gram_platform.paper.paper import STORIES_SIZE
from gram_platform.paper.verdicts import COLUMNS, MARGINS, POSITIVE, Range, alike, judge

Point = tuple[float, float, float]  # (mean, low, high)

SWEEP_SEEDS = 3


@dataclass(frozen=True)
class PaperSweep:
    """One knob of one method, and the paper's figure: a point per class at each value of the knob."""

    method: str
    title: str
    fixed: Mapping[str, float]  # the other knobs
    source: str  # label in the paper
    values: tuple[float, ...]
    is_log: bool  # the figure's axis is logarithmic
    classes: Mapping[str, tuple[Point, ...]]  # the figure's classes, in the order of SWEEP_CLASSES


PAPER_SWEEPS = {
    "p_cr": PaperSweep(
        method="gram",
        title="GRAM: core robustness p_cr",
        fixed={"p_as": 0.3},
        source="fig:hyperparam_robust",
        values=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        is_log=False,
        classes={
            "core_partial": (
                (0.865480380134408, 0.857844490080138, 0.873116270188678),
                (0.948779694300747, 0.923073972398174, 0.97448541620332),
                (0.926198436100937, 0.904555999072229, 0.947840873129645),
                (0.93029584395641, 0.892874178134876, 0.967717509777944),
                (0.924863776313856, 0.902143013099316, 0.947584539528395),
                (0.925080041052258, 0.899379079207784, 0.950781002896733),
            ),
            "core_full": (
                (0.978096359615534, 0.968871664092531, 0.987321055138536),
                (0.961111800364375, 0.935760654508155, 0.986462946220595),
                (0.930119589207962, 0.908293060920301, 0.951946117495623),
                (0.932509430943718, 0.89544041549291, 0.969578446394525),
                (0.924640343789207, 0.902273004735759, 0.947007682842655),
                (0.785210696229158, 0.745112761850905, 0.825308630607411),
            ),
            "retain": (
                (1.05332272014185, 1.04448377052018, 1.06216166976352),
                (1.00549879377843, 0.978670459922949, 1.03232712763391),
                (0.944215920047757, 0.920825404524627, 0.967606435570888),
                (0.94290086691564, 0.901258112171169, 0.984543621660111),
                (0.922548535661355, 0.899374260217656, 0.945722811105054),
                (0.915443783171946, 0.888357656378789, 0.942529909965103),
            ),
            "forget": (
                (0.771453379656345, 0.763707029548179, 0.779199729764511),
                (0.790137317406239, 0.769547984305231, 0.810726650507246),
                (0.7627826322992, 0.742011085214635, 0.783554179383765),
                (0.757673435818259, 0.726277669640135, 0.789069201996383),
                (0.745003989094107, 0.730514915526055, 0.759493062662159),
                (0.705451989690399, 0.692047359257674, 0.718856620123125),
            ),
            "elicited": (
                (0.904214460856164, 0.894921583751458, 0.91350733796087),
                (0.881302304266502, 0.856464545063614, 0.906140063469389),
                (0.849445905956412, 0.830626286409983, 0.868265525502841),
                (0.848648197859944, 0.815748362760845, 0.881548032959044),
                (0.837455468435842, 0.817440900546089, 0.857470036325594),
                (0.831929017037227, 0.808735350199541, 0.855122683874913),
            ),
        },
    ),
    "p_as": PaperSweep(
        method="gram",
        title="GRAM: auxiliary spread p_as",
        fixed={"p_cr": 0.5},
        source="fig:hyperparam_auxroute",
        values=(0.0, 0.25, 0.5, 0.75, 1.0),
        is_log=False,
        classes={
            "core": (
                (0.897227748307668, 0.878573235539218, 0.915882261076119),
                (0.936201740826718, 0.916336878824608, 0.956066602828828),
                (0.943782738928664, 0.927569800010048, 0.95999567784728),
                (0.950144568604007, 0.943386936507252, 0.956902200700762),
                (0.970255986782786, 0.944419841008663, 0.996092132556909),
            ),
            "retain": (
                (0.878079379291118, 0.856083809171292, 0.900074949410945),
                (0.945291482618651, 0.92180792258735, 0.968775042649953),
                (0.974012076250811, 0.952378648619009, 0.995645503882613),
                (0.999170057048658, 0.987560188924968, 1.01077992517235),
                (1.03944719807588, 1.01369319507826, 1.06520120107349),
            ),
            "forget": (
                (0.68613207457495, 0.667533866438095, 0.704730282711806),
                (0.753557507534023, 0.73677581676676, 0.770339198301287),
                (0.797077424895903, 0.781128884966609, 0.813025964825197),
                (0.837430471267199, 0.828094772665725, 0.846766169868674),
                (0.889691833716366, 0.86888679090552, 0.910496876527211),
            ),
            "elicited": (
                (0.777984894683137, 0.760641498636672, 0.795328290729602),
                (0.844922110049516, 0.826734151507826, 0.863110068591205),
                (0.885081746827833, 0.870137853708036, 0.90002563994763),
                (0.923529628303152, 0.914479856492001, 0.932579400114303),
                (0.973308438726218, 0.953056889400817, 0.993559988051619),
            ),
        },
    ),
    "p_ca": PaperSweep(
        method="ft_lora",
        title="FT-LoRA: core to auxiliary batches p_ca",
        fixed={},
        source="fig:hyperparam_lora",
        values=(0.25, 0.5, 1.0, 2.0, 4.0),
        is_log=True,
        classes={
            "core": (
                (0.815464626118325, 0.785482461893829, 0.845446790342822),
                (0.860202405437941, 0.823111833677897, 0.897292977197986),
                (0.892748533570466, 0.860380588403276, 0.925116478737656),
                (0.898810014887881, 0.880845042291259, 0.916774987484503),
                (0.89967833334219, 0.887809671507268, 0.911546995177113),
            ),
            "retain": (
                (1.06243198823966, 1.02264382939665, 1.10222014708266),
                (1.06596231100094, 1.01270906331275, 1.11921555868914),
                (1.0356502554851, 0.999607950606987, 1.07169256036321),
                (0.968972049889054, 0.947768330300142, 0.990175769477967),
                (0.900883659308399, 0.893511725660989, 0.908255592955808),
            ),
            "forget": (
                (0.684632298855674, 0.658968315776058, 0.710296281935289),
                (0.716695552880022, 0.68624556206436, 0.747145543695684),
                (0.736981122886743, 0.712004125402182, 0.761958120371304),
                (0.738844740879258, 0.72020051131627, 0.757488970442246),
                (0.736153448828106, 0.721535513619889, 0.750771384036322),
            ),
            "elicited": (
                (0.784562321288928, 0.755252248640436, 0.81387239393742),
                (0.812847553636631, 0.778570206925379, 0.847124900347882),
                (0.830252370912197, 0.804545900626848, 0.855958841197546),
                (0.825948324661514, 0.807392996336518, 0.84450365298651),
                (0.820790434723775, 0.808706242483053, 0.832874626964497),
            ),
        },
    ),
}


def paper_curve(knob: str, name: str) -> pd.DataFrame:
    """Returns the paper's curve of one class: `value, mean, low, high`; empty if it has none."""
    sweep = PAPER_SWEEPS.get(knob)
    points = sweep.classes.get(name, ()) if sweep else ()
    rows = [(value, *point) for value, point in zip(sweep.values, points, strict=True)] if points else []
    return pd.DataFrame(rows, columns=["value", "mean", "low", "high"])


def paper_means(knob: str) -> pd.DataFrame:
    """Returns the paper's means of a knob: a column per class in the figure, indexed by the knob's value."""
    sweep = PAPER_SWEEPS[knob]
    means = {name: [mean for mean, _, _ in points] for name, points in sweep.classes.items()}
    return pd.DataFrame(means, index=pd.Index(sweep.values, name="value"))


def beside_paper_sweeps(table: pd.DataFrame) -> pd.DataFrame:
    """Returns our rows of a sweep's table, each followed by the paper's row of that value, if there is one.

    Columns: `knob, value, method, size, from` ("ours" or "paper"), the classes that either has as `mean [low, high]`,
    `num_seeds, run_ids`.
    """
    rows, of_method = [], {(knob, sweep.method): sweep for knob, sweep in PAPER_SWEEPS.items()}
    for record in table.to_dict("records"):
        key = {name: record[name] for name in ("knob", "value", "method", "size")}
        ours = {name: interval_cell(record, name) for name in SWEEP_CLASSES}
        rows.append({**key, "from": "ours", **ours, "num_seeds": record["num_seeds"], "run_ids": record["runs"]})
        sweep = of_method.get((record["knob"], record["method"]))
        if sweep and record["value"] in sweep.values:
            at = sweep.values.index(record["value"])
            theirs = {name: interval_text(*points[at]) for name, points in sweep.classes.items()}
            rows.append({**key, "size": STORIES_SIZE, "from": "paper", **theirs, "num_seeds": SWEEP_SEEDS})
    columns = ["knob", "value", "method", "size", "from", *SWEEP_CLASSES, "num_seeds", "run_ids"]
    frame = pd.DataFrame(rows, columns=columns).fillna("")
    return frame.drop(columns=[name for name in SWEEP_CLASSES if (frame[name] == "").all()])


CLAIM_COLUMNS = [*COLUMNS, "paper", "source"]

Curve = pd.DataFrame  # of one seed, or the paper: indexed by the knob's value, ascending; a column for each class


@dataclass(frozen=True)
class SweepClaim:
    """A difference along each seed's curve lies `within` the range."""

    knob: str
    text: str  # {first}, {middle} and {last} are values of the knob
    names: tuple[str, ...]  # the classes that the difference needs
    difference: Callable[[Curve], float]  # NaN if the sweep lacks a value that it needs
    within: Range = POSITIVE


def _rise(name: str) -> Callable[[Curve], float]:
    return lambda curve: curve[name].iloc[-1] - curve[name].iloc[0]


def _fall(name: str) -> Callable[[Curve], float]:
    return lambda curve: curve[name].iloc[0] - curve[name].iloc[-1]


def _gap(curve: Curve, value: float) -> float:
    """Returns core-full - core-partial at a value."""
    return curve["core_full"].get(value, np.nan) - curve["core_partial"].get(value, np.nan)


def _middle(curve: Curve) -> float:
    """Returns the value nearest to 0.5 between the ends, NaN if there is none."""
    return min(curve.index[1:-1], key=lambda value: (abs(value - 0.5), value), default=np.nan)


def _ends(knob: str, verb: str, names: Sequence[str], trend: Callable) -> tuple[SweepClaim, ...]:
    text = f"{knob} from {{first}} to {{last}} {verb} "
    return tuple(SweepClaim(knob, text + name, (name,), trend(name)) for name in names)


CORES = ("core_partial", "core_full")
SWEEP_CLAIMS = (
    SweepClaim("p_cr", "at p_cr 0 core-full is above core-partial", CORES, lambda curve: _gap(curve, 0.0)),
    SweepClaim(
        "p_cr",
        "core-full and core-partial converge: they are closer at p_cr {middle} than at 0",
        CORES,
        lambda curve: abs(_gap(curve, 0.0)) - abs(_gap(curve, _middle(curve))),
    ),
    SweepClaim("p_cr", "at p_cr 1 core-full is below core-partial", CORES, lambda curve: -_gap(curve, 1.0)),
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
    """Judges the paper's claims on the three sweeps, on the seeds that have every value of the knob.

    Returns a row per claim, method and size, as `claims_frame`, with `paper` (the difference in the paper's figure, NaN
    if that lacks a value) and `source`. A claim for which no seed has all values is left out.
    """
    rows, varied = [], per_seed.groupby(["knob", "method", "size"], sort=False)
    is_plain = per_seed.drop_duplicates(["knob", "method", "size"]).groupby("knob").size().max() == 1
    for (knob, method, size), group in varied:
        seeds = _curves(group)
        for claim in (c for c in SWEEP_CLAIMS if c.knob == knob and seeds):
            suffix = "" if is_plain else f" ({method}, {size})"
            rows += _judged(claim, seeds, suffix, PAPER_SWEEPS[knob].method == method)
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)


def _curves(group: pd.DataFrame) -> dict[str, Curve]:
    """Returns `{seed: curve}` over all values of the group, NaN where the seed lacks one."""
    values = pd.Index(sorted(set(group["value"])), name="value")
    return {seed: rows.set_index("value").reindex(values) for seed, rows in group.groupby("seed", sort=False)}


def _judged(claim: SweepClaim, seeds: dict[str, Curve], suffix: str, is_papers_method: bool) -> list[dict]:
    values = next(iter(seeds.values())).index
    whole = {seed: curve[list(claim.names)].astype(float) for seed, curve in seeds.items()}
    found = {seed: float(claim.difference(curve)) for seed, curve in whole.items() if curve.notna().all(axis=None)}
    found = {seed: difference for seed, difference in found.items() if np.isfinite(difference)}
    if len(values) < 2 or not found:
        return []
    named = {"first": values[0], "middle": _middle(next(iter(whole.values()))), "last": values[-1]}
    text = claim.text.format(**{name: f"{value:g}" for name, value in named.items()}) + suffix
    in_paper = claim.difference(paper_means(claim.knob).reindex(values)) if is_papers_method else np.nan
    judgement = judge(text, found, dict.fromkeys(found, 0.0), claim.within)
    return [{**vars(judgement), "paper": in_paper, "source": PAPER_SWEEPS[claim.knob].source}]
