"""Searches of one tiny run a trial, whose driver tests can start, kill and start again as a process
of its own."""

import sys
from dataclasses import dataclass, replace

from gram_platform.config import CORE
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.config.space import Parameter, SearchObjective, Space
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.results.results import Brief
from gram_platform.studies.library.scaling import SMOKE
from gram_platform.studies.searches.command import main
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.report import SearchOutput
from gram_platform.studies.searches.trial_flags import OptunaFlags
from gram_platform.studies.searches.work import GridWork, OptunaWork
from gram_platform.tracking.views import TrialColumns

TINY = replace(SMOKE_SIZES["tiny"], core_tokens=64 * 160)
PRESET = replace(SMOKE, sizes={"tiny": TINY}, num_seeds=1, num_eval_points=1, num_eval_sequences=4)
NO_SCORE = "no score at 1"
OBJECTIVE = SearchObjective("loss", worst=20.0)


@dataclass(frozen=True)
class Baselines:
    """A point is a learning rate: 1e30 diverges, and 1 cannot be scored."""

    setting: Setting

    def nodes(self, point) -> list[Node]:
        size = replace(self.setting.size, peak_lr=float(point["lr"]))
        return [
            n for n in method_nodes("baseline", replace(self.setting, size=size)) if n.kind == "run"
        ]

    def score(self, point, results) -> dict[str, float]:
        (result,) = results.values()
        if point["lr"] == 1.0:
            raise RuntimeError(NO_SCORE)
        return {"loss": result["final"][f"validation/loss/{CORE}"]}


class Planted:
    """What both kinds share."""

    minimised = OBJECTIVE

    def identity(self):
        return {"data": self.recipe.data_id}

    def problem(self, store):
        return Baselines(self.settings[0])

    def example(self):
        return Baselines(self.settings[0]).nodes({"lr": 1e-3})

    def write(self, store, tracker):
        runs = store.list_runs()
        trials = [
            "search,trial,runs",
            *(f"{self.full_name},{number},{run}" for number, run in enumerate(runs)),
        ]
        files = {"table.csv": b"-", "report.html": b"-", "trials.csv": "\n".join(trials).encode()}
        return SearchOutput(
            files, {}, f"{len(runs)} runs", Brief({}, text=f"{len(runs)} runs"), TrialColumns()
        )


class PlantedGrid(Planted, GridWork):
    def points(self, store):
        return [(f"lr {lr:g}", {"lr": lr}) for lr in (1e-3, 2e-3, 4e-3, 8e-3)], []


class PlantedTrials(Planted, OptunaWork):
    @property
    def space(self):
        return Space((Parameter("lr", 1e-3, 1e-1, log=True),)).with_overrides(self.flags.space)

    @property
    def target(self):
        return self.flags.trials or 4

    def groups(self):
        return {"a": {"group": "a"}, "b": {"group": "b"}}


class Grid(Search):
    def work_type(self):
        return PlantedGrid


class Optuna(Search):
    flags_type = OptunaFlags
    needs_optuna = True

    def work_type(self):
        return PlantedTrials


WORDS = ("planted", "Planted", "Does it run?")
GRID = Grid(*WORDS, {"demo": PRESET})
SEARCH = Optuna(*WORDS, {"demo": PRESET})

if __name__ == "__main__":
    main(GRID if sys.argv[1] == "grid" else SEARCH, sys.argv[2:])
