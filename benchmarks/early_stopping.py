"""Replays early stopping on a finished learning-rate and batch grid: what it would have kept, saved and missed.

    python -m benchmarks.early_stopping --storage DIR --preset demo --seeds 3 --first-seed 100

The flags are those of the grid's experiment. Prints the rank correlation of early losses with final ones, and a line
for each rule: the share of the compute kept, the best cells, and the exponents of the laws from the cells that remain.
"""

import heapq
import math
from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd

from gram_platform.analysis.lr_grid import POOLED, optima_table
from gram_platform.analysis.lr_laws import QUANTITIES, laws_table
from gram_platform.analysis.tables import frame_text
from gram_platform.config import State
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.engine.trials import Point
from gram_platform.methods.budgets import run_flops
from gram_platform.store import Store
from gram_platform.studies.build import Graph
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.searches.lr_batch import sizes_of
from gram_platform.studies.searches.lr_batch_trials import trial_rows
from gram_platform.studies.searches.report import result_frame
from gram_platform.studies.searches.run import build_search, parse
from gram_platform.studies.searches.stopping import Board, Course, StoppingRule, centre_first, course_of
from gram_platform.studies.session import exit_with

STARTS, MARGINS = (0.25, 0.5, 0.75), ((0.02, 0.05), (0.03, 0.10), (0.05, 0.15), (0.10, 0.20), (0.20, 0.30))
SLOTS = (2, 10_000)  # trials at once: two cores, and all of them


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables of a finished grid."""
    graph = build_search(SEARCH, parse(SEARCH, arguments))
    exit_with(lambda: say(replay_text(graph, Store(graph.flags.storage))) or 0)


def replay_text(graph: Graph, store: Store) -> str:
    """Returns the tables as a text; ValueError unless all trials of the grid, as it has grown, have ended."""
    trials, courses, costs = finished_grid(graph, store)
    order = {name: courses[name] for size in sizes_of(graph) for name in _order(courses, size.name)}
    full = _outcome(trials, set(courses))
    rows = [{"rule": "none", "kept": 1.0, "stopped": 0, **full}]
    for slots, start, margins in product(SLOTS, STARTS, MARGINS):
        ended = replay(order, StoppingRule(start, *margins), slots)
        row = {"rule": f"from {start:g}, {margins[0]:.0%} / {margins[1]:.0%}", "slots": slots if slots < 99 else "all"}
        row |= {"kept": kept_share(ended, costs), "stopped": sum(fraction < 1.0 for fraction in ended.values())}
        rows.append({**row, **_outcome(trials, kept_cells(courses, ended))})
    table = pd.DataFrame(rows)
    for size in sizes_of(graph):
        steps = [
            _steps_apart(trials, size.name, best, full[f"best {size.name}"]) for best in table[f"best {size.name}"]
        ]
        table.insert(table.columns.get_loc(f"best {size.name}") + 1, f"off {size.name}", steps)
    parts = [
        f"{len(courses)} trials",
        "rank correlation with the final losses",
        frame_text(_correlations(courses), ".3g"),
    ]
    parts += [frame_text(table, ".3g"), "off: grid steps between the best cell of the rule and of the full grid"]
    return "\n\n".join(parts)


def finished_grid(graph: Graph, store: Store) -> tuple[pd.DataFrame, dict[str, Course], dict[str, float]]:
    """Returns the trials (as `analysis.lr_grid` takes them), their courses and their FLOPs, by run id.

    Diverged and failed trials are in the trials alone.
    """
    frames, courses, costs = [], {}, {}
    for size in sizes_of(graph):
        nodes = SEARCH.cell_nodes(graph, size, SEARCH.grown(graph, store, size)[0])
        results = {node.id: result for node in nodes.values() if (result := store.run(node.id).result()) is not None}
        frame = result_frame([node for node in nodes.values() if node.id in results], results)
        frames.append(trial_rows(size, nodes, frame, store))
        for ((lr, batch), seed), node in nodes.items():
            if node.id not in results:
                continue
            course, value_of = Course((size.name, seed), (size.name, lr, batch), lr, batch), SEARCH.loss_of
            courses[node.id] = course_of(store.run(node.id), course, node.config.num_steps, value_of)
            costs[node.id] = float(run_flops(node.config))
    trials = pd.concat(frames, ignore_index=True)
    left = trials[trials["state"].isin(("running", "waiting", "absent"))]
    if len(left):
        raise invalid("storage", store.root, f"a finished grid, found {len(left)} trials that have not ended")
    return trials, courses, costs


def _order(courses: Mapping[str, Course], size: str) -> list[str]:
    return centre_first((name, c.lr, c.batch) for name, c in courses.items() if c.group[0] == size)


def _outcome(trials: pd.DataFrame, kept: set[str]) -> dict:
    """Returns the best cell of each size, and the exponents of the laws with the number of sizes that they rest on."""
    left = trials[trials["run_id"].isin(kept) | (trials["state"] != State.COMPLETE)]
    optima = optima_table(left)
    pooled = optima[optima["seed"] == POOLED]
    laws = laws_table(left, num_resamples=1).set_index("quantity")
    row: dict[str, object] = {f"{q}_exponent": laws.loc[q, "exponent"] for q in QUANTITIES}
    row["sizes"] = laws.loc["lr", "sizes"]
    for size in dict.fromkeys(trials["size"]):
        of_size = pooled[pooled["size"] == size]
        best = [(f"{lr:g}", f"{batch:g}") for lr, batch in of_size[["best_lr", "best_batch"]].to_numpy()]
        row[f"best {size}"] = " x ".join(best[0]) if best else ""
        row[f"cells {size}"] = int(of_size["num_cells"].iloc[0]) if best else 0
    return row


def _steps_apart(trials: pd.DataFrame, size: str, one: str, other: str) -> float:
    """Returns the larger of the distances on both axes between two cells, in steps of the grid."""
    if not one or not other:
        return math.nan
    pairs: list[Point] = [dict(zip(("lr", "batch"), cell.split(" x "), strict=True)) for cell in (one, other)]
    of_size = trials[trials["size"] == size]
    places = [[np.abs(sorted(set(of_size[a])) - np.float64(p[a])).argmin() for a in ("lr", "batch")] for p in pairs]
    return float(np.abs(np.subtract(*places)).max())


def _correlations(courses: Mapping[str, Course]) -> pd.DataFrame:
    found = {f"at {fraction:g}": rank_correlations(courses, fraction) for fraction in (0.25, 0.5, 0.75, 0.9)}
    groups = list(dict.fromkeys(course.group for course in courses.values()))
    rows = [{"size": g[0], "seed": g[1], **{at: values[g] for at, values in found.items()}} for g in groups]
    return pd.DataFrame(rows)


def replay(courses: Mapping[str, Course], rule: StoppingRule, num_slots: int) -> dict[str, float]:
    """Returns the fraction at which each trial would have ended: 1, or where it would have been stopped.

    `courses`: finished trials in the order of their start, with all their reports. Trials of one grid cost the same for
    each size, so all are taken to last equally long; `num_slots` of them run at once.
    """
    board, waiting, ended = Board(rule), list(courses), dict.fromkeys(courses, 1.0)
    order = {name: place for place, name in enumerate(courses)}  # of events at one time
    events: list[tuple[float, int, str, int]] = []  # time, order, name, number of the report

    def start(now: float) -> None:
        if waiting:
            name = waiting.pop(0)
            heapq.heappush(events, (now + courses[name].fractions[0], order[name], name, 0))

    for _ in range(num_slots):
        start(0.0)
    while events:
        now, _, name, number = heapq.heappop(events)
        whole = courses[name]
        fraction = whole.fractions[number]
        blank = Course(whole.group, whole.cell, whole.lr, whole.batch)
        if board.report(name, blank, fraction, whole.losses[number]):
            ended[name] = fraction
            start(now)
        elif number + 1 < len(whole.fractions):
            later = now + whole.fractions[number + 1] - fraction
            heapq.heappush(events, (later, order[name], name, number + 1))
        else:
            start(now)
    return ended


def kept_share(ended: Mapping[str, float], costs: Mapping[str, float]) -> float:
    """Returns the share of the compute that is left, from where trials ended and the cost of each whole trial."""
    return sum(costs[name] * fraction for name, fraction in ended.items()) / sum(costs[name] for name in ended)


def kept_cells(courses: Mapping[str, Course], ended: Mapping[str, float]) -> set[str]:
    """Returns the trials of cells of which no seed was stopped."""
    stopped = {courses[name].cell for name, fraction in ended.items() if fraction < 1.0}
    return {name for name, course in courses.items() if course.cell not in stopped}


def rank_correlations(courses: Mapping[str, Course], fraction: float) -> dict[tuple, float]:
    """Returns Spearman's correlation of the losses at a fraction with the final ones, for each group."""
    groups: dict[tuple, list[Course]] = {}
    for course in courses.values():
        groups.setdefault(course.group, []).append(course)
    early = {group: pd.Series([course.at(fraction) for course in of]) for group, of in groups.items()}
    final = {group: pd.Series([course.losses[-1] for course in of]) for group, of in groups.items()}
    return {group: early[group].corr(final[group], method="spearman") for group in groups}


if __name__ == "__main__":
    main()
