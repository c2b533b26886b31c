"""The order in which nodes and trials start, replayed by list scheduling: near the shortest possible."""

import random

import pytest

from benchmarks.makespan import grid_rows, study_rows
from gram_platform.planner import MACHINES
from gram_platform.planner.simulation import planned
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY


def is_short(listed: float, ordered: float, least: float) -> bool:
    return ordered <= 0.95 * listed or ordered <= 1.02 * least


@pytest.mark.parametrize("seed", range(3))
def test_a_study_whose_nodes_take_other_times_than_predicted(tmp_path, seed):
    graph, draw = (
        build_graph(STUDY, parse(STUDY, ["--preset", "demo", "--storage", str(tmp_path)])),
        random.Random(seed),
    )
    seconds = {task.id: task.work_s * draw.lognormvariate(0.6, 0.3) for task in planned(graph.nodes, MACHINES["cpu"])}
    rows = study_rows(graph.nodes, seconds, MACHINES["cpu"])
    assert all(is_short(*row[1:]) for row in rows), rows
    assert all(ordered <= 1.02 * least for _, _, ordered, least in rows), rows


def test_the_grid_of_the_paper_on_the_gpus_of_the_cluster_files(tmp_path):
    """48 of them, and other numbers: the longest trials would else begin when all others are done."""
    rows = grid_rows(["--preset", "paper", "--storage", str(tmp_path)])
    assert all(is_short(*row[1:]) for row in rows), rows
