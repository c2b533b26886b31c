"""Sweeps of single hyperparameters: one knob moves, the others stay where the preset has them.

A trial is one value of one knob at one size and seed: the whole method with its evaluations and attacks. Knobs of one
method share the run at the preset's own values, and that run is the studies' too.

Source: the paper's "Hyperparameter Appendix" (`app:hyperparams`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from gram_platform.analysis.paper_sweeps import SWEEP_CLASSES
from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.sweeps import SweepAnalysis, analyse_sweeps
from gram_platform.engine.trials import Point
from gram_platform.identity import invalid, require_choice, require_real, short_hash
from gram_platform.methods import Setting
from gram_platform.nodes import Node, method_nodes, unique
from gram_platform.searches.definition import GridSearch, Scene, Written
from gram_platform.searches.flags import SearchFlags
from gram_platform.searches.frames import attack_frame, baseline_frames, result_frame, view_frame
from gram_platform.store import Store
from gram_platform.study.flags import split_list
from gram_platform.tracking import Tracker

Values = Mapping[str, tuple[float, ...]]  # of each knob, ascending

KNOB_FORM = "p_cr, p_as or p_ca, or one with its values: p_cr=0:0.5:1"


@dataclass(frozen=True)
class Knob:
    """A number of a setting that one method depends on, and where it may lie."""

    method: str
    read: Callable[[Setting], float]
    turned: Callable[[Setting, float], Setting]
    high: float = math.inf
    open_low: bool = False


def _with_routing(setting: Setting, **parts: float) -> Setting:
    return replace(setting, routing=replace(setting.routing, **parts))


def _with_ratio(setting: Setting, value: float) -> Setting:
    branching = replace(setting.options.branch_module, core_ratio=value)
    return replace(setting, options=replace(setting.options, branch_module=branching))


KNOBS = {
    "p_cr": Knob("gram", lambda s: s.routing.p_core_robust, lambda s, v: _with_routing(s, p_core_robust=v), 1.0),
    "p_as": Knob("gram", lambda s: s.routing.p_aux_spread, lambda s, v: _with_routing(s, p_aux_spread=v), 1.0),
    "p_ca": Knob("ft_lora", lambda s: s.options.branch_module.core_ratio, _with_ratio, open_low=True),
}


@dataclass(frozen=True)
class SweepFlags(SearchFlags):
    """Of sweeps."""

    knobs: tuple[str, ...] = ()
    """knobs to sweep (default: all of the preset): p_cr, p_as, p_ca, or one with its values as p_cr=0:0.5:1"""


@dataclass(frozen=True)
class SweepProblem:
    """The nodes of a point, and its compute ratios; the frames of the baselines may be empty for `nodes`."""

    settings: tuple[Setting, ...]
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)  # of the baselines, all seeds
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)

    def nodes(self, point: Point) -> list[Node]:
        """The method's runs, evaluations and attacks, tagged with all knobs of the method."""
        knob = KNOBS[point["knob"]]
        setting = knob.turned(self._setting(point), float(point["value"]))
        own = {name: f"{k.read(setting):g}" for name, k in KNOBS.items() if k.method == knob.method}
        nodes = method_nodes(knob.method, setting)
        return [Node(node.config, tuple(sorted((dict(node.tags) | own).items()))) for node in nodes]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """The compute ratios of this seed as in the table, over profiles; ValueError where core has none."""
        nodes = self.nodes(point)
        at = {"knob": point["knob"], "value": point["value"]}
        frame = result_frame(nodes, results)
        evaluations = pd.concat([self.evaluations, view_frame(nodes, frame).assign(**at)])
        sweep = analyse_sweeps(evaluations, self.curves, attacks=attack_frame(nodes, frame).assign(**at))
        metrics = seed_metrics(sweep, point)
        if "core" not in metrics:
            why = "; ".join(f"{row['what']}: {row['why']}" for row in sweep.missing.to_dict("records"))
            raise invalid("core", None, f"a compute ratio, which there is not ({why})")
        return metrics

    def _setting(self, point: Point) -> Setting:
        key = (point["size"], point["seed"])
        return next(s for s in self.settings if (s.size.name, s.seed) == key)


def seed_metrics(sweep: SweepAnalysis, point: Point) -> dict[str, float]:
    """The classes of one trial that have a value; {} while the trial has none."""
    rows = sweep.per_seed
    is_own = (rows["knob"] == point["knob"]) & (rows["value"] == point["value"])
    own = rows[is_own & (rows["size"] == point["size"]) & (rows["seed"] == str(point["seed"]))]
    found = own[list(SWEEP_CLASSES)].to_dict("records")
    return {name: float(v) for name, v in found[0].items() if pd.notna(v)} if found else {}


def trial_name(point: Point) -> str:
    return f"{point['knob']} {point['value']:g} {point['size']} s{point['seed']}"


@dataclass(frozen=True)
class HyperparameterSweep(GridSearch):
    """Every value of every knob, at every size and seed."""

    values: Mapping[str, Values] = field(default_factory=dict)  # of each preset

    flags_type = SweepFlags

    def checked(self, flags: SweepFlags) -> SweepFlags:
        """ValueError for an unknown knob and for values outside its range."""
        chosen_values(flags.knobs, self.values[flags.preset])
        return flags

    def prerequisites(self, scene: Scene) -> list[Node]:
        """The baseline of every size and seed, and its evaluation."""
        return unique(node for setting in scene.settings for node in method_nodes(BASELINE, setting))

    def identity(self, scene: Scene) -> dict:
        """The nodes stand for data, sizes, seeds and all that the preset fixes."""
        ids = [node.id for node in (*self.prerequisites(scene), *self.example(scene))]
        values = {knob: list(own) for knob, own in self.sweep_values(scene).items()}
        return {"data_id": scene.recipe.data_id, "knobs": values, "nodes": short_hash(ids)}

    def sweep_values(self, scene: Scene) -> Values:
        return chosen_values(scene.flags.knobs, self.values[scene.flags.preset])

    def all_points(self, scene: Scene) -> list[Point]:
        """By knob, value, size and seed."""
        return [
            {"knob": knob, "value": value, "size": setting.size.name, "seed": setting.seed}
            for knob, values in self.sweep_values(scene).items()
            for value in values
            for setting in scene.settings
        ]

    def points(self, scene: Scene, store: Store) -> tuple[list[tuple[str, Point]], list[str]]:
        """Every point, those last whose runs another point has: they find them done."""
        problem, seen, first, again = SweepProblem(scene.settings), set(), [], []
        for point in self.all_points(scene):
            run_id = problem.nodes(point)[0].id
            (again if run_id in seen else first).append((trial_name(point), point))
            seen.add(run_id)
        return first + again, []

    def problem(self, scene: Scene, store: Store) -> SweepProblem:
        evaluations, curves = baseline_frames(store, self.prerequisites(scene))
        return SweepProblem(scene.settings, evaluations.assign(knob=None, value=math.nan), curves)

    def example(self, scene: Scene) -> list[Node]:
        problem = SweepProblem(scene.settings)
        return unique(node for point in self.all_points(scene) for node in problem.nodes(point))

    def write(self, scene: Scene, store: Store, tracker: Tracker | None, search_id: str) -> Written | None:
        from gram_platform.searches.hyperparams_report import written  # it needs this file

        return written(self, scene, store, tracker, search_id)


def chosen_values(texts: Sequence[str], preset: Values) -> Values:
    """The knobs of the flag with their values, by default the preset's; ValueError naming `knobs`."""
    chosen = {}
    for text in split_list(tuple(texts)) or tuple(preset):
        knob, separator, rest = text.partition("=")
        require_choice("knobs", knob, tuple(KNOBS))
        if not separator and knob not in preset:
            raise invalid("knobs", text, f"values, as {knob}=0.25:1, because the preset has none")
        chosen[knob] = _checked_values(knob, text, rest.split(":")) if separator else preset[knob]
    return {knob: chosen[knob] for knob in KNOBS if knob in chosen}


def _checked_values(knob: str, text: str, parts: Sequence[str]) -> tuple[float, ...]:
    try:
        values = tuple(sorted(float(part) for part in parts))
    except ValueError as error:
        raise invalid("knobs", text, KNOB_FORM) from error
    for value in values:
        require_real(f"knobs.{knob}", value, 0.0, KNOBS[knob].high, KNOBS[knob].open_low)
    if len(set(values)) != len(values):
        raise invalid("knobs", text, "each value once")
    return values
