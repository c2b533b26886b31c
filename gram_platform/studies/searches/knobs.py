"""The knobs of a hyperparameter sweep: numbers on which one method depends, with their values."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gram_platform.config.identity import invalid, require_choice, require_real
from gram_platform.methods import Setting
from gram_platform.studies.flags import split_list
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import SweepFlags

# The values of each knob, ascending.
Values = Mapping[str, tuple[float, ...]]

KNOB_FORM = "p_cr, p_as or p_ca, or one with its values: p_cr=0:0.5:1"


@dataclass(frozen=True)
class Knob:
    """A number of a setting on which one method depends, and its range."""

    method: str
    read: Callable[[Setting], float]
    turned: Callable[[Setting, float], Setting]
    high: float = math.inf
    open_low: bool = False


def _with_routing(setting: Setting, **changes: float) -> Setting:
    return replace(setting, routing=replace(setting.routing, **changes))


def _with_ratio(setting: Setting, value: float) -> Setting:
    """Sets p_ca; with `constant_branches` also p_af = 2 / (1 + p_ca), which keeps branches as long
    as at p_ca 1."""
    branching = replace(setting.options.branch_module, core_ratio=value)
    if setting.conventions.constant_branches:
        branching = replace(branching, aux_factor=2.0 / (1.0 + value))
    return replace(setting, options=replace(setting.options, branch_module=branching))


KNOB = {
    "p_cr": Knob(
        "gram",
        lambda s: s.routing.p_core_robust,
        lambda s, v: _with_routing(s, p_core_robust=v),
        1.0,
    ),
    "p_as": Knob(
        "gram", lambda s: s.routing.p_aux_spread, lambda s, v: _with_routing(s, p_aux_spread=v), 1.0
    ),
    "p_ca": Knob(
        "ft_lora", lambda s: s.options.branch_module.core_ratio, _with_ratio, open_low=True
    ),
}


def read_knobs(search: Search, flags: SweepFlags, part: StudyPlan) -> dict[str, Values]:
    """Reads the fields of `HyperparameterSweep`: the knobs of the flag with their values, by
    default the preset's.

    ValueError naming `knobs`.
    """
    preset, chosen = search.points[part.preset_name], {}
    for text in split_list(flags.knobs) or tuple(preset):
        knob, separator, rest = text.partition("=")
        require_choice("knobs", knob, tuple(KNOB))
        if not separator and knob not in preset:
            raise invalid("knobs", text, f"values, as {knob}=0.25:1, because the preset has none")
        chosen[knob] = _checked_values(knob, text, rest.split(":")) if separator else preset[knob]
    return {"values": {knob: chosen[knob] for knob in KNOB if knob in chosen}}


def _checked_values(knob: str, text: str, numbers: Sequence[str]) -> tuple[float, ...]:
    try:
        values = tuple(sorted(float(number) for number in numbers))
    except ValueError as error:
        raise invalid("knobs", text, KNOB_FORM) from error
    for value in values:
        require_real(f"knobs.{knob}", value, 0.0, KNOB[knob].high, KNOB[knob].open_low)
    if len(set(values)) != len(values):
        raise invalid("knobs", text, "each value once")
    return values
