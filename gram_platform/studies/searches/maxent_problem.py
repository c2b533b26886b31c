"""A trial of the MaxEnt search: unlearning runs of one profile from the baseline of every seed, and their worth."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gram_platform.analysis.maxent_objective import MaxEntObjective, mean_ratios, ratios_of
from gram_platform.analysis.ratios import Reference
from gram_platform.config.identity import invalid
from gram_platform.engine.trials import Point
from gram_platform.methods import Profile, Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.methods.setting import MaxEnt, profile_name

METHOD, METRIC = "maxent", "objective"
PROFILE, PEAK_LR, RETAIN_WEIGHT = "profile", "peak_lr", "retain_weight"


@dataclass(frozen=True)
class MaxEntProblem:
    """A point's unlearning runs from the baseline of every seed, and what they are worth."""

    settings: tuple[Setting, ...]  # one size, a seed each
    objective: MaxEntObjective
    references: Mapping[
        str, Reference
    ]  # of every domain: the pooled baselines of these seeds; {} is enough for `nodes`

    def nodes(self, point: Point) -> list[Node]:
        return [node for setting in self.settings for node in unlearning_nodes(setting, point)]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        """`objective, forget, penalty, core, retain` averaged over seeds; ValueError for a loss that is no number."""
        evaluations = [node.id for node in self.nodes(point) if not node.is_run]
        ratios = mean_ratios([ratios_of(self.references, results[node_id]["losses"]) for node_id in evaluations])
        return self.objective.score(ratios, retained_by(self.settings[0], point[PROFILE]))


def maxent_at(setting: Setting, point: Point) -> MaxEnt:
    """MaxEnt's parameters at a point; those that are not searched are the setting's."""
    own = {name: float(point[name]) for name in (PEAK_LR, RETAIN_WEIGHT)}
    return replace(setting.options.maxent, **own)


def unlearning_nodes(setting: Setting, point: Point) -> list[Node]:
    """The run of a point's profile with its parameters, then its evaluation: without the baseline that it starts from.

    They are the nodes of a study whose options hold these parameters.
    """
    own = maxent_at(setting, point)
    options = replace(setting.options, maxent=own, maxent_profiles=(), elicitation=None)
    cell = replace(setting, profiles=(retained_by(setting, point[PROFILE]),), options=options)
    parameters = {PEAK_LR: f"{own.peak_lr:g}", RETAIN_WEIGHT: f"{own.retain_weight:g}"}
    nodes = [node for node in method_nodes(METHOD, cell) if node.needs]
    return [node.tagged(**parameters) for node in nodes]


def searched_profiles(setting: Setting) -> dict[str, Profile]:
    """Name -> profile of those compared profiles that forget something; ValueError when there is none."""
    found = [p for p in setting.profiles if set(p) != set(setting.auxiliary)]
    if not found:
        raise invalid("retain", setting.profiles, "profiles that leave at least one domain to forget")
    return {profile_name(profile, setting.auxiliary): profile for profile in found}


def retained_by(setting: Setting, name: str) -> Profile:
    return searched_profiles(setting)[name]


def default_values(setting: Setting) -> Point:
    """The parameters that the preset has without a search."""
    return {PEAK_LR: setting.options.maxent.peak_lr, RETAIN_WEIGHT: setting.options.maxent.retain_weight}
