"""The order in which nodes and trials start, replayed by list scheduling: near the shortest possible."""

import random

import pytest

from benchmarks.makespan import grid_rows, study_rows
from gram_platform.planner import MACHINES, evaluation_hours, expected_hours
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY


def is_short(listed: float, ordered: float, least: float) -> bool:
    return ordered <= 0.95 * listed or ordered <= 1.02 * least


@pytest.mark.parametrize("seed", range(3))
def test_a_study_whose_nodes_take_other_times_than_predicted(tmp_path, seed):
    """Of a run and of an evaluation, in the planner's hours."""
    graph = build_graph(STUDY, parse(STUDY, ["--preset", "demo", "--storage", str(tmp_path)]))
    runs, draw, machine = {n.id: n for n in graph.nodes if n.is_run}, random.Random(seed), MACHINES["cpu"]
    hours = {
        n.id: expected_hours(n, machine) if n.is_run else evaluation_hours([n], runs, machine) for n in graph.nodes
    }
    seconds = {node_id: 3600 * expected * draw.lognormvariate(0.6, 0.3) for node_id, expected in hours.items()}
    rows = study_rows(graph.nodes, seconds, machine)
    assert all(is_short(*row[1:]) for row in rows), rows
    assert all(ordered <= 1.02 * least for _, _, ordered, least in rows), rows


def test_the_grid_of_the_paper_on_the_gpus_of_the_cluster_files(tmp_path):
    """48 of them, and other numbers: the longest trials would else begin when all others are done."""
    rows = grid_rows(["--preset", "paper", "--storage", str(tmp_path)])
    assert all(is_short(*row[1:]) for row in rows), rows
