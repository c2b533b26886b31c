"""Defines the parameters and objectives of a search, and the columns of its trials."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gram_platform.config.identity import (
    invalid,
    require_choice,
    require_each_once,
    require_name,
    require_real,
)

# The column and metric that rank a trial in its group by the first objective.
RANK = "rank"
FORM = "name=low:high, name=log:low:high, or name=value for a constant"


@dataclass(frozen=True)
class Parameter:
    """A parameter that a search varies from `low` to `high`, on a log scale if `log`."""

    name: str
    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        require_name("space", self.name)
        field, ends = f"space.{self.name}", (self.low, self.high)
        for end in ends:
            require_real(field, end, -math.inf)
        if self.high < self.low:
            raise invalid(field, ends, "low <= high")
        if self.log and self.low <= 0:
            raise invalid(field, ends, "positive ends of a logarithmic range")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def at(self, share: float) -> float:
        """Returns the value at a position in the range. Position 0 is `low`, and 1 is `high`."""
        if self.log:
            return self.low * (self.high / self.low) ** share
        return self.low + share * (self.high - self.low)

    def share_of(self, value: float) -> float:
        """Returns a value's position (0 to 1) in the range. Inverse of `at`."""
        scale = math.log if self.log else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


@dataclass(frozen=True)
class Space:
    """The parameters of a search, and the widest ranges that users can set."""

    parameters: tuple[Parameter, ...]
    # Other parameters have no limit.
    limits: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        require_each_once("space", self.names)
        widest = {limit.name: limit for limit in self.limits}
        for parameter in self.parameters:
            limit = widest.get(parameter.name, parameter)
            if parameter.low not in limit or parameter.high not in limit:
                ends = (parameter.low, parameter.high)
                allowed = f"a range within {limit.low:g} and {limit.high:g}"
                raise invalid(f"space.{parameter.name}", ends, allowed)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    def with_overrides(self, texts: Iterable[str]) -> "Space":
        """Returns this space with the ranges that the strings `texts` set.

        Raises ValueError for an unknown parameter or a string that does not fit `FORM`.
        """
        ranges = {p.name: p for p in self.parameters}
        for text in texts:
            name, separator, rest = text.partition("=")
            if not separator:
                raise invalid("space", text, FORM)
            require_choice("space", name, self.names)
            ranges[name] = _read_range(ranges[name], text, rest)
        return Space(tuple(ranges.values()), self.limits)


@dataclass(frozen=True)
class SearchObjective:
    """A metric to minimise. If a trial diverges, the sampler gets `worst` as its value."""

    metric: str
    worst: float


@dataclass(frozen=True)
class TrialColumns:
    """The columns of `trials.csv` that are used to compare a search's trials."""

    parameters: tuple[str, ...] = ()
    # The first decides which trial is best.
    objectives: tuple[str, ...] = ()
    # Only trials with equal values here are compared.
    groups: tuple[str, ...] = ()
    is_lowest_best: bool = True


def _read_range(parameter: Parameter, text: str, rest: str) -> Parameter:
    scale, separator, ends = rest.partition(":")
    is_log = scale == "log"
    parts = (ends if is_log else rest).split(":") if separator else [rest, rest]
    try:
        low, high = (float(part) for part in parts)
    except ValueError as error:
        raise invalid("space", text, FORM) from error
    log = is_log or (parameter.log and low > 0 and not separator)
    return replace(parameter, low=low, high=high, log=log)
