"""Draws the small picture of a study or a search on its card: marks in a frame, and two lines that explain them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gram_platform.analysis.tables import CLASSES
from gram_platform.config import State
from gram_platform.pages.figures.study import HIDDEN
from gram_platform.pages.figures.style import DOMAIN_COLOURS, DOMAIN_SYMBOLS, method_style

WIDTH, LEFT, RIGHT, TOP, ROW, STEP = 380.0, 64.0, 368.0, 8.0, 12.0, 11.0
FRAME_HEIGHT = 150.0  # of the frame of a search
SHAPES = {  # around the middle of a mark
    "circle": "M-4.5,0a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0z",
    "square": "M-4,-4h8v8h-8z",
    "diamond": "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
    "triangle": "M0,-5.5L5,4H-5z",
    "cross": "M-5,-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
}
Row = Mapping[str, str]


class Mark(NamedTuple):
    """One value: its place, its shape and colour, and from where to where a horizontal line shows its interval."""

    x: float
    y: float
    shape: str
    colour: str
    line: tuple[float, float] | None = None


class Text(NamedTuple):
    """A label at a place of the picture; `anchor` as in SVG."""

    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True)
class Picture:
    """Marks, labels and a guide across all rows, in pixels; the legend has (shape, colour, name) of each series."""

    title: str
    height: float
    marks: Sequence[Mark]
    texts: Sequence[Text]
    guide: float | None
    legend: Sequence[tuple[str, str, str]]
    axes: str  # the second line: what the axes are, and where they end
    width: float = WIDTH
    left: float = LEFT
    right: float = RIGHT
    top: float = TOP


def study_picture(chosen: Sequence[Row], place: str) -> Picture | None:
    """Draws the classes of each method, of `shown_rows`; None if they have none of them."""
    names = [name for name in CLASSES if any(math.isfinite(number(row, name)) for row in chosen)]
    if not names:
        return None
    highest = max(number(row, name) for row in chosen for name in names if math.isfinite(number(row, name)))
    end = 0.2 * math.ceil(max(highest, 1.0) / 0.2 + 0.25)
    across = lambda value: LEFT + (RIGHT - LEFT) * min(max(value, 0.0), end) / end  # noqa: E731
    band = STEP * len(chosen) + ROW
    marks, legend = [], []
    for index, row in enumerate(chosen):
        style = method_style(row["method"])
        legend.append((_shape(style.symbol), style.colour, style.label))
        for line, name in enumerate(names):
            value, low, high = (number(row, f"{name}{end_of}") for end_of in ("", "_low", "_high"))
            if math.isfinite(value):
                y = TOP + band * line + (ROW + STEP) / 2 + STEP * index
                ends = (across(low), across(high)) if math.isfinite(high - low) else None
                marks.append(Mark(across(value), y, *legend[-1][:2], ends))
    bottom = TOP + band * len(names)
    texts = [Text(LEFT - 8, TOP + band * (line + 0.5) + 4, "end", name) for line, name in enumerate(names)]
    texts += [Text(across(x), bottom + 16, "middle", f"{x:.2g}") for x in (0.0, 1.0, end)]
    axes = f"Compute ratio from 0 to {end:.2g} at {place}; dotted: the baseline, 1; lines: 90% intervals over seeds"
    return Picture("Compute ratios by class and method", bottom + 22, marks, texts, across(1.0), legend, axes)


def shown_rows(rows: Sequence[Row], sizes: Sequence[str], profile: str, varies: str) -> tuple[list[Row], str]:
    """Returns the last variant's rows of the record's profile, else mean, at the largest size, and says which."""
    for where in (profile, "mean"):
        for size in reversed(sizes):
            found = [row for row in rows if row.get("profile") == where and row.get("size") == size]
            found = [row for row in found if row.get("method", "") not in (*HIDDEN, "")]
            last = found[-1].get(varies, "") if found else ""
            found = [row for row in found if row.get(varies, "") == last]
            if found:
                place = f"{size}, profile {where}"
                return found, f"{place}, {varies.replace('_', ' ')} {last}" if last else place
    return [], ""


def search_picture(rows: Sequence[Row], varied: Sequence[str], objectives: Sequence[str]) -> Picture | None:
    """Draws the complete trials: two objectives, or one against what is varied first; None without such numbers."""
    x_name, y_name = [*(objectives[:2] if len(objectives) > 1 else (*varied[:1], *objectives[:1])), "", ""][:2]
    done = complete_trials(rows, (x_name, y_name))
    if not done:
        return None
    xs, ys = ([number(row, name) for row in done] for name in (x_name, y_name))
    is_log = min(xs) > 0 and max(xs) / min(xs) >= 10
    bottom = TOP + FRAME_HEIGHT
    right = _places([math.log(x) for x in xs] if is_log else xs, LEFT + 10, RIGHT - 10)
    up = _places(ys, bottom - 10, TOP + 10)
    sizes = list(dict.fromkeys(row.get("size", "") for row in done))
    looks = [(_shape(DOMAIN_SYMBOLS[i % 7]), DOMAIN_COLOURS[(i + 1) % 7]) for i in range(len(sizes))]
    marks = [Mark(x, y, *looks[sizes.index(row.get("size", ""))]) for x, y, row in zip(right, up, done, strict=True)]
    texts = [Text(LEFT - 8, TOP + 14, "end", f"{max(ys):.3g}"), Text(LEFT - 8, bottom - 6, "end", f"{min(ys):.3g}")]
    texts += [
        Text(LEFT + 10, bottom + 16, "start", f"{min(xs):.3g}"),
        Text(RIGHT, bottom + 16, "end", f"{max(xs):.3g}"),
    ]
    legend = [(*look, f"a trial{f' of {size}' if size else ''}") for look, size in zip(looks, sizes, strict=True)]
    x_text, y_text = x_name.replace("_", " "), y_name.replace("_", " ")
    axes = f"Across: {x_text} from {min(xs):.3g} to {max(xs):.3g}{', on a log scale' if is_log else ''}; "
    axes += f"up: {y_text} from {min(ys):.3g} to {max(ys):.3g}"
    return Picture(f"{y_text} against {x_text}", bottom + 22, marks, texts, None, legend, axes)


def complete_trials(rows: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """Returns the trials that are complete and have all these numbers."""
    done = [row for row in rows if row.get("state") == State.COMPLETE]
    return [row for row in done if all(math.isfinite(number(row, name)) for name in names)]


def number(row: Row, name: str) -> float:
    """Reads a number of a stored row; NaN for none."""
    try:
        return float(row.get(name) or "nan")
    except ValueError:
        return math.nan


def _places(values: Sequence[float], first: float, last: float) -> list[float]:
    low, span = min(values), max(values) - min(values)
    return [first + (last - first) * ((value - low) / span if span else 0.5) for value in values]


def _shape(symbol: str) -> str:
    name = symbol.partition("-")[0]
    return SHAPES[{"x": "cross", "star": "diamond"}.get(name, name)]
