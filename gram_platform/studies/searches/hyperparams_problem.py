"""A point of a hyperparameter sweep: one knob of a method turned, the nodes that follow, and their compute ratios."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from gram_platform.analysis.sweeps import SWEEP_CLASSES, SweepAnalysis, analyse_sweeps
from gram_platform.config.identity import invalid
from gram_platform.engine.trials import Point
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.studies.searches.frames import attack_frame, result_frame, view_frame


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
    """With `constant_branches` p_af 2 / (1 + p_ca), so that branches are as long at every value as at p_ca 1."""
    branching = replace(setting.options.branch_module, core_ratio=value)
    if setting.conventions.constant_branches:
        branching = replace(branching, aux_factor=2.0 / (1.0 + value))
    return replace(setting, options=replace(setting.options, branch_module=branching))


KNOBS = {
    "p_cr": Knob("gram", lambda s: s.routing.p_core_robust, lambda s, v: _with_routing(s, p_core_robust=v), 1.0),
    "p_as": Knob("gram", lambda s: s.routing.p_aux_spread, lambda s, v: _with_routing(s, p_aux_spread=v), 1.0),
    "p_ca": Knob("ft_lora", lambda s: s.options.branch_module.core_ratio, _with_ratio, open_low=True),
}


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
        return [node.tagged(**own) for node in nodes]

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
            raise invalid("core", None, f"a compute ratio, but there is none ({why})")
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
