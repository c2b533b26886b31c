"""Search spaces: the ranges of a search's parameters, and how a command line changes them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gram_platform.identity import invalid, require_choice, require_name, require_real

FORM = "name=low:high, name=log:low:high, or name=value to hold it"


@dataclass(frozen=True)
class Parameter:
    """One axis: values from `low` to `high`, both included, evenly in the value or in its logarithm."""

    name: str
    low: float
    high: float
    log: bool = False
    is_integer: bool = False

    def __post_init__(self) -> None:
        require_name("space", self.name)
        for end in (self.low, self.high):
            require_real(f"space.{self.name}", end, float("-inf"))
        if self.high < self.low:
            raise invalid(f"space.{self.name}", (self.low, self.high), "a range from low to high")
        if self.log and self.low <= 0:
            raise invalid(f"space.{self.name}", (self.low, self.high), "positive ends for a logarithmic range")
        if self.is_integer and (self.low != int(self.low) or self.high != int(self.high)):
            raise invalid(f"space.{self.name}", (self.low, self.high), "whole numbers")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Space:
    """The parameters of a search and, with them, what values make sense at all."""

    parameters: tuple[Parameter, ...]
    limits: tuple[Parameter, ...] = ()  # the widest range of single parameters, by name

    def __post_init__(self) -> None:
        names = [p.name for p in self.parameters]
        if not names or len(set(names)) != len(names):
            raise invalid("space", names, "one or more parameters, each once")
        widest = {limit.name: limit for limit in self.limits}
        for parameter in self.parameters:
            limit = widest.get(parameter.name, parameter)
            if parameter.low not in limit or parameter.high not in limit:
                ends = (parameter.low, parameter.high)
                raise invalid(f"space.{parameter.name}", ends, f"within {limit.low:g} and {limit.high:g}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    def with_overrides(self, texts: Iterable[str]) -> "Space":
        """The space with single ranges replaced; ValueError for an unknown parameter or a text of another form."""
        ranges = {p.name: p for p in self.parameters}
        for text in texts:
            name, separator, rest = text.partition("=")
            if not separator:
                raise invalid("space", text, FORM)
            require_choice("space", name, self.names)
            ranges[name] = _range(ranges[name], text, rest)
        return Space(tuple(ranges.values()), self.limits)


def _range(parameter: Parameter, text: str, rest: str) -> Parameter:
    scale, separator, ends = rest.partition(":")
    is_log = scale == "log"
    parts = (ends if is_log else rest).split(":") if separator else [rest, rest]
    try:
        low, high = (float(part) for part in parts)
    except ValueError as error:
        raise invalid("space", text, FORM) from error
    return replace(parameter, low=low, high=high, log=is_log or (parameter.log and low > 0 and not separator))
