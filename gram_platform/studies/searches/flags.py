"""Declares the flags of each kind of search, and converts them into the fields of the kind's class.

Imports only modules that load fast, so that help and flag errors appear quickly.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gram_platform.analysis.lr_extension import Grid
from gram_platform.config.identity import invalid, one_of, require_choice, require_int, require_real
from gram_platform.config.ladder import Size
from gram_platform.config.layout import MACHINE_RANKS
from gram_platform.config.space import Parameter, Space
from gram_platform.methods import Setting
from gram_platform.planner.ranks import AUTO, Ranks
from gram_platform.studies.definition import Preset
from gram_platform.studies.flags import Amount, Number, Texts, split_list
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.searches.definition import Search, TrialFlags

AUTO_AXIS = "auto"


@dataclass(frozen=True)
class OptunaFlags(TrialFlags):
    """Flags that only searches with Optuna have.

    Args:
        trials: trials to complete in each Optuna study of the search (default: the preset's)
        space: ranges that replace the preset's: name=low:high, name=log:low:high, or name=value
    """

    trials: Number = 0
    space: Texts = ()


@dataclass(frozen=True)
class SweepFlags(TrialFlags):
    """Flags that only sweeps have.

    Args:
        knobs: p_cr, p_as or p_ca, or one with its values: p_cr=0:0.5:1 (default: the preset's)
    """

    knobs: Texts = ()


@dataclass(frozen=True)
class GridFlags(TrialFlags):
    """Flags that only grids have.

    Args:
        lrs: peak learning rates for every size; auto: those of the preset's grid
        batches: batch sizes in sequences for every size; auto: those of the preset's grid
        window: fit only cells within this fraction of the lowest loss (0.05 is 5%; default: all)
        max_extensions: the most rows or columns to add to each side of a grid while the minimum is
            on that side (default: the preset's)
    """

    lrs: tuple[str, ...] = (AUTO_AXIS,)
    batches: tuple[str, ...] = (AUTO_AXIS,)
    window: Amount = 0.0
    max_extensions: Number = -1


@dataclass(frozen=True)
class Grids:
    """A preset's grids, given for each size or as factors of every size's peak rate and batch."""

    # Rows or columns by which each side may grow.
    max_extensions: int
    lr_factors: tuple[float, ...] = ()
    batch_factors: tuple[float, ...] = ()
    # Grids by the size's name, which assume no law.
    of_size: Mapping[str, Grid] | None = None

    def of(self, size: Size) -> Grid:
        if self.of_size is None:
            batches = [size.batch_size * factor for factor in self.batch_factors]
            return Grid(
                tuple(size.peak_lr * factor for factor in self.lr_factors), to_integers(batches)
            )
        if size.name not in self.of_size:
            expected = one_of(size.name, self.of_size, "those with a grid in this preset: ")
            raise invalid("sizes", size.name, expected)
        return self.of_size[size.name]


def read_grids(search: Search, flags: GridFlags, part: StudyPlan) -> dict[str, Any]:
    """Reads the flags into the fields of `LrBatchGrid`.

    Raises ValueError for grids that are too small, and for batches that cannot be trained.
    """
    require_real("window", flags.window, 0.0)
    require_int("max_extensions", flags.max_extensions, -1)
    lrs, batches = _numbers("lrs", flags.lrs), to_integers(_numbers("batches", flags.batches))
    of_preset, grids = search.points[part.preset_name], {}
    for name in part.choice.sizes:
        size = part.preset.sizes[name]
        grid = of_preset.of(size)
        grids[name] = Grid(lrs or grid.lrs, batches or grid.batches)
        for batch in grids[name].batches:
            if reason := why_not(part.ranks, part.preset, size, batch):
                raise invalid("batches", batch, reason)
    most = of_preset.max_extensions if flags.max_extensions < 0 else flags.max_extensions
    return {"grids": grids, "window": flags.window or None, "max_extensions": most}


def _numbers(field: str, texts: tuple[str, ...]) -> tuple[float, ...]:
    if texts == (AUTO_AXIS,):
        return ()
    allowed = f"positive numbers, or {AUTO_AXIS}"
    numbers = _sort_numbers(field, split_list(texts), allowed)
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise invalid(field, texts, allowed)
    return numbers


def _sort_numbers(field: str, texts: Sequence[str], allowed: str) -> tuple[float, ...]:
    try:
        numbers = tuple(sorted(map(float, texts)))
    except ValueError as error:
        raise invalid(field, texts, allowed) from error
    if len(set(numbers)) != len(numbers):
        raise invalid(field, texts, "each value once")
    return numbers


def why_not(ranks: Ranks, preset: Preset, size: Size, batch: int) -> str:
    """Returns why a size cannot train with this batch. If it can, returns ""."""
    micro_batch, wanted = micro_batch_at(size, batch), ranks.number_of(size.name)
    if wanted != AUTO and micro_batch % wanted:
        return (
            f"its micro-batch at {size.name} would be {micro_batch}, which {wanted} ranks cannot"
            " divide"
        )
    available = round(size.core_tokens // size.seq_len * (1.0 + preset.aux_share))
    if batch > available:
        return f"{size.name} trains on {available} sequences in all"
    return ""


def micro_batch_at(size: Size, batch: int) -> int:
    """Returns the size's micro-batch if it divides `batch`, otherwise a smaller one that does.

    Prefers the largest multiple of 8, which the 8 GPUs of a machine can share. For 200M, whose
    micro-batch is 72, a batch of 264 gets 24, not 66.
    """
    if batch % size.micro_batch == 0:
        return size.micro_batch
    divisors = [part for part in range(1, size.micro_batch) if batch % part == 0]
    return max(divisors, key=lambda part: (part % MACHINE_RANKS == 0, part))


def to_integers(batches: Iterable[float]) -> tuple[int, ...]:
    numbers = tuple(int(batch) if batch == int(batch) else batch for batch in batches)
    for batch in numbers:
        require_int("batches", batch, 1)
    return numbers


# The values of each knob, ascending.
Values = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Knob:
    """A hyperparameter of one method, with values from 0 to `high`."""

    method: str
    read: Callable[[Setting], float]
    turned: Callable[[Setting, float], Setting]
    high: float = math.inf
    open_low: bool = False


def _with_ratio(setting: Setting, value: float) -> Setting:
    """Sets p_ca. If `constant_branches`, sets p_af so that branches stay as long as at p_ca 1."""
    branching = replace(setting.options.branch_module, core_ratio=value)
    if setting.conventions.constant_branches:
        branching = replace(branching, aux_factor=2.0 / (1.0 + value))
    return replace(setting, options=replace(setting.options, branch_module=branching))


def _routing_knob(name: str) -> Knob:
    def turn(setting: Setting, value: float) -> Setting:
        return replace(setting, routing=replace(setting.routing, **{name: value}))

    return Knob("gram", lambda setting: getattr(setting.routing, name), turn, 1.0)


KNOB = {
    "p_cr": _routing_knob("p_core_robust"),
    "p_as": _routing_knob("p_aux_spread"),
    "p_ca": Knob(
        "ft_lora", lambda s: s.options.branch_module.core_ratio, _with_ratio, open_low=True
    ),
}


def read_knobs(search: Search, flags: SweepFlags, part: StudyPlan) -> dict[str, Values]:
    """Returns the fields of `HyperparameterSweep`. Knobs and values default to the preset's."""
    preset, chosen = search.points[part.preset_name], {}
    for text in split_list(flags.knobs) or tuple(preset):
        knob, separator, rest = text.partition("=")
        require_choice("knobs", knob, KNOB)
        if not separator and knob not in preset:
            raise invalid("knobs", text, f"values, as {knob}=0.25:1, because the preset has none")
        chosen[knob] = preset.get(knob, ())
        if separator:
            allowed = "p_cr, p_as or p_ca, or one with its values: p_cr=0:0.5:1"
            chosen[knob] = _sort_numbers("knobs", rest.split(":"), allowed)
        for value in chosen[knob]:
            require_real(f"knobs.{knob}", value, 0.0, KNOB[knob].high, KNOB[knob].open_low)
    return {"values": {knob: chosen[knob] for knob in KNOB if knob in chosen}}


def read_ranges(search: Search, flags: OptunaFlags, part: StudyPlan) -> dict[str, Any]:
    """Returns the fields of `MaxEntSearch`. Raises ValueError for several sizes or bad ranges."""
    require_int("trials", flags.trials, 0)
    if len(sizes := part.choice.sizes) != 1:
        raise invalid("sizes", sizes, "one size: each size has its own best parameters")
    ranges = part.preset.maxent_search
    space = space_of(ranges.peak_lr, ranges.retain_weight).with_overrides(split_list(flags.space))
    return {"name": ranges.search, "space": space, "target": flags.trials or ranges.num_trials}


def space_of(peak_lr: tuple[float, float], retain_weight: tuple[float, float]) -> Space:
    ranges = {"peak_lr": peak_lr, "retain_weight": retain_weight}
    axes = (Parameter(name, low, high, log=True) for name, (low, high) in ranges.items())
    limits = Parameter("peak_lr", 1e-8, 1.0), Parameter("retain_weight", 0.0, 1e6)
    return Space(tuple(axes), limits)
