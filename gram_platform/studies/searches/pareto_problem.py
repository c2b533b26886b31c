"""A trial of the search for GRAM's trade-off: GRAM at a point, its views and the attacks on them, as compute ratios."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from gram_platform.analysis.maxent_objective import HIGHEST_RATIO
from gram_platform.analysis.ratios import (
    BASELINE,
    MEAN,
    Reference,
    checked_attacks,
    checked_evaluations,
    compute_ratio_frame,
    elicited_ratios,
)
from gram_platform.analysis.tables import CLASSES, per_seed_frame
from gram_platform.config import RoutingConfig
from gram_platform.config.identity import invalid
from gram_platform.engine.trials import Point
from gram_platform.methods import Setting
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.studies.searches.frames import attack_frame, result_frame, view_frame

METHOD = "gram"
P_AS, P_CR, D_AUX, PEAK_LR = "p_as", "p_cr", "d_aux", "peak_lr"
OBJECTIVES = {"core": "max", "retain": "max", "elicited": "min"}
COMPUTE = "compute"  # of the plans of a trial's training, over the baselines'


@dataclass(frozen=True)
class ParetoProblem:
    """GRAM at a point, a run for each seed, with its views and the attacks on them."""

    settings: tuple[Setting, ...]  # one size, a seed each
    references: Mapping[str, Reference]  # of every domain, from these seeds' baselines; {} is enough for `nodes`

    def nodes(self, point: Point) -> list[Node]:
        return [node for setting in self.settings for node in point_nodes(setting, point)]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """`core, retain, elicited, forget` of the table's mean row, every domain's ratio clipped first; `compute`.

        ValueError for a loss that is no finite number.
        """
        means = self.per_seed(point, results)[list(CLASSES)].mean(skipna=False)
        unknown = sorted(means.index[means.isna()])
        if unknown:
            raise invalid("results", ", ".join(unknown), "finite losses of every view and attack")
        return {**{name: float(means[name]) for name in (*OBJECTIVES, "forget")}, COMPUTE: self.compute(point)}

    def per_seed(self, point: Point, results: Mapping[str, Mapping]) -> pd.DataFrame:
        """One row a seed: the mean over the paper's profiles of each class, as `analysis.tables` takes it.

        Ratios are clipped to [0, HIGHEST_RATIO] before they are averaged, as `analysis.maxent_objective` says why.
        """
        nodes = self.nodes(point)
        frame = result_frame(nodes, results)
        views = checked_evaluations(view_frame(nodes, frame))
        references = {(self.settings[0].size.name, domain): r for domain, r in self.references.items()}
        ratios, _ = compute_ratio_frame(views, references)
        elicited, _ = elicited_ratios(checked_attacks(attack_frame(nodes, frame)), ratios, references)
        ratios = pd.concat([ratios, elicited])
        ratios["compute_ratio"] = ratios["compute_ratio"].clip(0.0, HIGHEST_RATIO)
        per_seed, _ = per_seed_frame(ratios, views)
        return per_seed[per_seed["profile"] == MEAN].reset_index(drop=True)

    def compute(self, point: Point) -> float:
        """Training compute of the point's runs by their plans, over that of the baselines."""
        baselines = [node for setting in self.settings for node in method_nodes(BASELINE, setting)]
        own, base = (
            sum(plan_compute_units(n.config) for n in nodes if n.is_run and not n.is_attack)
            for nodes in (self.nodes(point), baselines)
        )
        return own / base


def point_nodes(setting: Setting, point: Point) -> list[Node]:
    """The nodes of GRAM in the setting at a point; at `default_point` they are those of the setting itself."""
    cell = cell_at(setting, point)
    parameters = {name: f"{point[name]:g}" for name in (P_AS, P_CR, D_AUX, PEAK_LR)}
    nodes = method_nodes(METHOD, cell)
    return [node.tagged(**parameters) for node in nodes]


def cell_at(setting: Setting, point: Point) -> Setting:
    """The setting at a point. The attack keeps its own learning rate: a trial must not choose its attacker."""
    size = replace(setting.size, d_aux=int(point[D_AUX]), peak_lr=float(point[PEAK_LR]))
    routing = RoutingConfig(float(point[P_CR]), float(point[P_AS]), setting.routing.accumulation)
    attack = setting.options.elicitation
    attack = replace(attack, lr_factor=attack.lr_factor * (setting.size.peak_lr / size.peak_lr))
    return replace(setting, size=size, routing=routing, options=replace(setting.options, elicitation=attack))


def default_point(setting: Setting) -> dict[str, float]:
    """What the preset has without a search."""
    routing, size = setting.routing, setting.size
    return {P_AS: routing.p_aux_spread, P_CR: routing.p_core_robust, D_AUX: size.d_aux, PEAK_LR: size.peak_lr}
