"""Searches of one tiny run a trial, whose driver tests can start, kill and start again as a process
of its own."""

import sys
import time
from dataclasses import dataclass, replace

from gram_platform.config import CORE
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.config.space import Parameter, SearchObjective, Space
from gram_platform.engine.search import TrialWatch
from gram_platform.engine.trials import Group, OptunaSource, open_study
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.results.results import Brief
from gram_platform.pages.results.trials import trial_tags
from gram_platform.studies.flags import split_list
from gram_platform.studies.library.scaling import SMOKE
from gram_platform.studies.searches.command import main
from gram_platform.studies.searches.definition import Search
from gram_platform.studies.searches.flags import OptunaFlags
from gram_platform.studies.searches.optuna_studies import open_storage, optuna_share_left
from gram_platform.studies.searches.search_plan import list_rounds, optuna_round
from gram_platform.tracking.views import StudyLog

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


@dataclass(frozen=True)
class Planted:
    """What both kinds share."""

    settings: tuple[Setting, ...]

    best_by = OBJECTIVE

    def identity(self, search):
        return {"data": search.corpora[0].data_id}

    def prerequisites(self, search):
        return []

    def problem(self, search, store):
        return Baselines(search.settings[0])

    def example(self, search):
        return Baselines(search.settings[0]).nodes({"lr": 1e-3})

    def share_left(self, search):
        return 1.0

    def write(self, search, store, tracker):
        runs = store.list_runs()
        trials = [
            "search,trial,runs",
            *(f"{search.full_name},{number},{run}" for number, run in enumerate(runs)),
        ]
        files = {"table.csv": b"-", "report.html": b"-", "trials.csv": "\n".join(trials).encode()}
        text = f"{len(runs)} runs"
        tags = trial_tags(files["trials.csv"])
        return StudyLog(search.name, files, {}, {}, node_tags=tags), text, Brief({}, text=text)


class PlantedGrid(Planted):
    def points(self):
        return [(f"lr {lr:g}", {"lr": lr}) for lr in (1e-3, 2e-3, 4e-3, 8e-3)], []

    def rounds(self, search, store, problem):
        return list_rounds(search, store, problem, self.points)


@dataclass(frozen=True)
class PlantedTrials(Planted):
    space: Space
    target: int

    def groups(self, search):
        storage = open_storage(search.optuna_uri)
        return [
            Group(
                name,
                {"group": name},
                open_study(storage, f"{search.full_name}-{name}", "loss"),
                self.target,
                storage,
            )
            for name in ("a", "b")
        ]

    def rounds(self, search, store, problem):
        yield optuna_round(OptunaSource(self.groups(search), self.space, OBJECTIVE))

    def share_left(self, search):
        names = [f"{search.full_name}-{name}" for name in ("a", "b")]
        return optuna_share_left(search.optuna_uri, search.is_dry, names, self.target)


def read_trials(search, flags, part):
    space = Space((Parameter("lr", 1e-3, 1e-1, log=True),)).with_overrides(split_list(flags.space))
    return {"space": space, "target": flags.trials or 4}


class Heard(TrialWatch):
    """Keeps the outcomes of trials, and when each was asked for."""

    def __init__(self, outcomes: list):
        self.outcomes, self.asked = outcomes, []

    def trial_started(self, proposal):
        self.asked.append(time.time())

    def trial_ended(self, outcome):
        self.outcomes.append(outcome)


WORDS = ("planted", "Planted", "Does it run?")
HERE = "tests.studies.searches.planted"
GRID = Search(*WORDS, {"demo": PRESET}, kind=f"{HERE}:PlantedGrid")
SEARCH = Search(
    *WORDS,
    {"demo": PRESET},
    kind=f"{HERE}:PlantedTrials",
    flags_type=OptunaFlags,
    read=read_trials,
    needs_optuna=True,
)

if __name__ == "__main__":
    main(GRID if sys.argv[1] == "grid" else SEARCH, sys.argv[2:])
