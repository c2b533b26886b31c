"""Measures a search's overhead per trial: Ray Tune, Optuna's database, scoring, waiting for a slot."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import ray

from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from gram_platform.config import CORE
from gram_platform.config.space import Parameter, SearchObjective, Space
from gram_platform.corpora import prepare
from gram_platform.engine.proposals import OptunaSource
from gram_platform.engine.search import Tuning, run_trials
from gram_platform.engine.trials import Outcome, Point
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.store import Store
from gram_platform.studies.library.scaling import SMOKE
from gram_platform.studies.searches.definition import OptunaFlags, Search
from gram_platform.studies.searches.definition import parse_search as parse
from gram_platform.studies.searches.run import build_search, trial_overheads
from gram_platform.studies.searches.work import OptunaWork
from gram_platform.studies.session import connect, execution_of

NUM_TRIALS = 16


@dataclass(frozen=True)
class Baselines:
    """Trains a baseline at the point's peak learning rate."""

    setting: Setting

    def nodes(self, point: Point) -> list[Node]:
        size = replace(self.setting.size, peak_lr=point["lr"])
        return [n for n in method_nodes("baseline", replace(self.setting, size=size)) if n.kind == "run"]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        (result,) = results.values()
        return {"loss": result["final"][f"validation/loss/{CORE}"]}


class _Trials(OptunaWork):
    minimised = SearchObjective("loss", worst=20.0)
    space = Space((Parameter("lr", 1e-3, 2e-2, log=True),))
    target = NUM_TRIALS

    def identity(self) -> Mapping:
        return {"data_id": self.data_id}

    def groups(self) -> Mapping[str, Point]:
        return {"lr": {}}


class _Search(Search):
    flags_type = OptunaFlags

    def work_type(self) -> type[_Trials]:
        return _Trials


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Runs one-worker trials of the smallest size, which are shorter than starting a process."""
    preset = replace(SMOKE, sizes={"tiny": SMOKE.sizes["tiny"]})
    search = _Search("bench", "", "", {"bench": preset}, "bench")
    graph = build_search(search, parse(search, ["--storage", settings.storage, "--seeds", "1"]))
    prepare(graph.recipe, Store(settings.storage).open_for_writing().data_root)
    connect()
    source = OptunaSource(graph.open(), graph.space, graph.minimised)
    outcomes: list[Outcome] = []
    problem, places = Baselines(graph.settings[0]), execution_of(graph.flags, has_gpu=False)
    run_trials(source, problem, *places, Tuning("bench"), on_end=outcomes.append)
    return [_overhead(outcomes), _whole(outcomes, num_slots=int(ray.cluster_resources()["CPU"]))]


def _overhead(outcomes: list[Outcome]) -> BenchmarkResult:
    """Measures a trial's time beyond its training, without the first trial of each process."""
    return BenchmarkResult(
        name="search trial overhead",
        unit="s",
        values=(statistics.median(trial_overheads(outcomes)),),
        references=(statistics.median(outcome.trained_s for outcome in outcomes),),
        against="training of the same trials",
        aim=Aim("at most", 1.0, "value"),
    )


def _whole(outcomes: list[Outcome], num_slots: int) -> BenchmarkResult:
    """Measures all trials except the first of every slot, which wait for processes to start."""
    trials = sorted(outcomes, key=lambda outcome: outcome.started)[num_slots:]
    elapsed_s = max(t.started + t.elapsed_s for t in trials) - trials[0].started
    return BenchmarkResult(
        name="search of short trials",
        unit="s",
        values=(elapsed_s,),
        references=(sum(t.trained_s for t in trials) / num_slots,),
        against=f"training of its {len(trials)} trials over {num_slots} slots",
    )
