"""Looks for marks that a figure must not have: error bars without an interval, and lines through
too few points."""

import json
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

FEWEST = 3  # points below a fitted line
OPTIMA = "optimum (hollow: at the edge)"


def wrong_marks(figures: Mapping[str, go.Figure]) -> list[str]:
    """Names every figure, trace and fault."""
    return [
        f"{name}: {fault}"
        for name, figure in figures.items()
        for fault in (*_bars(figure), *_lines(figure))
    ]


def _bars(figure: go.Figure) -> list[str]:
    """Finds error bars without a finite end, and lists of ends: of NaN in them JSON makes null,
    drawn as a cap."""
    faults = []
    for trace, plain in zip(figure.data, json.loads(figure.to_json())["data"], strict=True):
        for axis in ("error_x", "error_y"):
            ends = [plain.get(axis, {}).get(name) for name in ("array", "arrayminus")]
            if any(end is not None and "bdata" not in end for end in ends):
                faults.append(f"{trace.name}: {axis} has a list")
            elif (
                ends != [None, None] and not np.isfinite(np.asarray(trace[axis].array, float)).any()
            ):
                faults.append(f"{trace.name}: {axis} without an interval")
    return faults


def _lines(figure: go.Figure) -> list[str]:
    """Finds fitted lines through fewer points of their series than FEWEST."""
    drawn = [trace for trace in figure.data if "markers" in str(getattr(trace, "mode", None))]
    num_points = {trace.legendgroup or trace.name: len(trace.x) for trace in drawn}
    num_sure = sum(
        "open" not in symbol for t in drawn if t.name == OPTIMA for symbol in t.marker.symbol
    )
    faults = []
    for trace in figure.data:
        name, num = str(trace.name), num_points.get(trace.legendgroup or trace.name, 0)
        if name.endswith(", predicted"):
            num -= 1  # the largest size is left out of the fit
        elif name == "our law":
            num = num_sure
        elif " fit" not in name:
            continue
        faults += [f"{name}: a line through {num} points"] * (num < FEWEST)
    return faults
