"""Errors of a device under Ray Tune: they end a process and never a trial."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gram_platform.corpora import prepare
from gram_platform.engine.proposals import PointList
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.store import Store
from gram_platform.studies.searches.run import build_search, parse
from gram_platform.studies.session import execution_of
from tests.studies.searches.planted import SEARCH, Baselines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ILLEGAL = "CUDA error: an illegal memory access was encountered"
_is_poisoned = False  # this process, by the error of one trial


@dataclass(frozen=True)
class Poisoned(Baselines):
    """All points share a run. A rate of 2 poisons the first process that scores it: all later trials fail there."""

    folder: Path = Path()

    def nodes(self, point):
        return super().nodes({"lr": 1e-3})

    def score(self, point, results):
        global _is_poisoned
        with (self.folder / str(os.getpid())).open("a") as lines:
            lines.write(f"{point['lr']:g} ")
        if point["lr"] == 2.0 and not (self.folder / "poisoned").exists():
            (self.folder / "poisoned").touch()
            _is_poisoned = True
        if _is_poisoned:
            raise RuntimeError(ILLEGAL)
        return super().score(point, results)


def planted(tmp_path, **flags):
    graph = build_search(SEARCH, parse(SEARCH, ["--storage", str(tmp_path / "storage")]))
    prepare(graph.recipe, Store(graph.flags.storage).data_root)
    (tmp_path / "seen").mkdir()
    return graph, execution_of(graph.flags, has_gpu=False)


def test_a_poisoned_process_executes_no_other_trial(ray_cluster, tmp_path):
    graph, where = planted(tmp_path)
    problem = Poisoned(graph.settings[0], tmp_path / "seen")
    points = [(str(number), {"lr": rate}) for number, rate in enumerate((2.0, 3.0, 1.0, 4.0))]
    outcomes = []
    run_trials(PointList(points), problem, *where, Tuning("planted", max_concurrent=1), on_end=outcomes.append)
    assert {o.name: o.state for o in outcomes} == {"0": "complete", "1": "complete", "2": "failed", "3": "complete"}
    processes = [[float(line) for line in path.read_text().split()] for path in (tmp_path / "seen").iterdir()]
    print(processes)
