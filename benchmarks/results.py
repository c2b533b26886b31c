"""Formats a benchmark's result as a line of JSON and a table row."""

import json
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gram_platform.config.identity import require_choice

COMPARISONS = {"at least": operator.ge, "at most": operator.le}


@dataclass(frozen=True)
class BenchmarkSettings:
    """Holds the arguments of every benchmark. `full`: the long form."""

    # A new, empty folder.
    storage: str
    full: bool = False
    # An empty database; by default SQLite in the storage.
    tracking_uri: str = ""


@dataclass(frozen=True)
class Aim:
    """Bounds a result's ratio, or its value in its unit."""

    # One of COMPARISONS.
    comparison: str
    bound: float
    # This is `ratio` or `value`.
    of: str = "ratio"

    def __post_init__(self) -> None:
        require_choice("aim.comparison", self.comparison, tuple(COMPARISONS))
        require_choice("aim.of", self.of, ("ratio", "value"))

    def words(self, unit: str) -> str:
        return f"{self.of} {self.comparison} {self.bound:g}" + (
            f" {unit}" if self.of == "value" else ""
        )

    def holds(self, number: float) -> bool:
        return COMPARISONS[self.comparison](number, self.bound)


@dataclass(frozen=True)
class BenchmarkResult:
    """Holds a value and its reference in the same unit, each in one or more rounds of the same
    process.

    `value` and `reference` are medians. `ratio` is the median of the rounds' value / reference,
    because the machine's speed changes between rounds; `spread` is the lowest and the highest of
    these.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    # This is () without a reference.
    references: tuple[float, ...]
    # These words describe the reference.
    against: str
    aim: Aim | None = None
    # More numbers, only in the line of JSON.
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def reference(self) -> float | None:
        return statistics.median(self.references) if self.references else None

    @property
    def ratios(self) -> tuple[float, ...]:
        return (
            tuple(v / r for v, r in zip(self.values, self.references, strict=True))
            if self.references
            else ()
        )

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Returns the range of the ratios, or of the values without a reference; None for a single
        round."""
        numbers = self.ratios or self.values
        return (min(numbers), max(numbers)) if len(numbers) > 1 else None

    @property
    def holds(self) -> bool | None:
        """Tells whether the aim is met; None without an aim."""
        if self.aim is None:
            return None
        return self.aim.holds(self.ratio if self.aim.of == "ratio" else self.value)

    def line(self) -> str:
        """Formats one JSON object: name, value, unit, reference, ratio, and their explanation."""
        numbers = {
            "value": self.value,
            "unit": self.unit,
            "reference": self.reference,
            "ratio": self.ratio,
        }
        aim = self.aim.words(self.unit) if self.aim else None
        explained = {
            "spread": self.spread,
            "against": self.against,
            "aim": aim,
            "holds": self.holds,
        }
        return json.dumps({"name": self.name, **numbers, **explained, **self.details})


def table(measurements: Sequence[BenchmarkResult]) -> str:
    """Formats aligned columns for a terminal."""
    rows = [("benchmark", "value", "against", "ratio", "spread", "aim", "")]
    verdicts = {None: "measured", True: "holds", False: "missed"}
    for m in measurements:
        against = m.against if m.reference is None else f"{m.reference:.4g} {m.unit} ({m.against})"
        ratio = "" if m.ratio is None else f"{m.ratio:.3g}"
        spread = f"{m.spread[0]:.3g} to {m.spread[1]:.3g}" if m.spread else ""
        aim = m.aim.words(m.unit) if m.aim else ""
        rows.append(
            (m.name, f"{m.value:.4g} {m.unit}", against, ratio, spread, aim, verdicts[m.holds])
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
