"""What a benchmark returns, as a line of JSON and as a row for people."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Measurement:
    """A value, and what it is compared with in the same unit; `ratio` is value / reference."""

    name: str
    value: float
    unit: str
    reference: float
    against: str  # what the reference is, in words
    aim: str  # in words

    @property
    def ratio(self) -> float:
        return self.value / self.reference

    def line(self) -> str:
        """One JSON object: name, value, unit, reference, ratio."""
        return json.dumps({**asdict(self), "ratio": self.ratio})


def table(measurements: Sequence[Measurement]) -> str:
    """Aligned columns for a terminal."""
    rows = [("benchmark", "value", "against", "ratio", "aim")]
    for m in measurements:
        against = f"{m.reference:.4g} {m.unit} ({m.against})"
        rows.append((m.name, f"{m.value:.4g} {m.unit}", against, f"{m.ratio:.3g}", m.aim))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
