"""What the MaxEnt search leaves: the best trial of every profile, all trials, and how the searches went."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
import pandas as pd

from gram_platform.analysis.maxent_objective import HIGHEST_RATIO, MaxEntObjective
from gram_platform.analysis.tables import aligned
from gram_platform.analysis.trials import COMPLETE, DIVERGED, FAILED, RUNS, STATE, TRIAL, best_trial, linked
from gram_platform.config.identity import to_plain
from gram_platform.config.space import Parameter, Space
from gram_platform.pages.figures.searches import history_figure, importance_figure, slice_figure
from gram_platform.pages.report.page import Section, page_html
from gram_platform.store import Store
from gram_platform.studies.build import BEST, BestTrial, best_json
from gram_platform.studies.searches.databases import open_storage
from gram_platform.studies.searches.definition import OptunaSearch, Scene, Written
from gram_platform.studies.searches.history import importances, trials_frame, why_no_importances
from gram_platform.studies.searches.links import run_links
from gram_platform.studies.searches.maxent_problem import (
    METRIC,
    PROFILE,
    MaxEntProblem,
    default_values,
    maxent_at,
    searched_profiles,
)
from gram_platform.studies.searches.run import open_groups
from gram_platform.tracking import Tracker

METRICS = (METRIC, "forget", "penalty", "core", "retain")
EDGE_SHARE = 0.05  # of a range: a best trial this close to an end is said to be at it


@dataclass(frozen=True)
class History:
    """The trials of one profile."""

    profile: str
    study: optuna.Study
    trials: pd.DataFrame

    @property
    def best(self) -> pd.Series | None:
        return best_trial(self.trials, METRIC, "min")

    def count(self, state: str) -> int:
        return int((self.trials[STATE] == state).sum())


def written(
    search: OptunaSearch, scene: Scene, store: Store, tracker: Tracker | None, search_id: str
) -> Written | None:
    """Files, figures and text from Optuna's database; None while no trial of any profile is complete."""
    groups = open_groups(search, scene, open_storage(scene.flags.optuna_uri), search_id)
    histories = [history_of(group.name, group.study, search.space(scene)) for group in groups]
    best = [_best(history, scene) for history in histories if history.best is not None]
    if not best:
        return None
    problem = search.problem(scene, store)
    space, defaults = search.space(scene), default_objectives(problem, [h.profile for h in histories], store)
    table = best_table(histories, space, defaults)
    facts = {**_facts(scene), "num_trials": {group.name: group.num_complete for group in groups}}
    content = best_json(search_id, facts, best, [h.profile for h in histories if h.best is None])
    if store.writable:
        store.search_dir(search_id).write_json(BEST, content)
    links, about_links = run_links(tracker)
    linked_histories = [History(h.profile, h.study, linked(h.trials, links)) for h in histories]
    figures = {h.profile: history_figures(h, space) for h in linked_histories}
    intro = _intro(search.question, problem.objective, scene, search_id, about_links)
    files = {
        "table.csv": table.to_csv(index=False).encode(),
        "trials.csv": trials_table(histories).to_csv(index=False).encode(),
        "report.html": page_html(search.title, intro, _sections(linked_histories, figures, table, links)).encode(),
        "search.json": _json({"name": search.name, **_record(problem.objective, space, scene, search_id, histories)}),
        BEST: _json(content),
    }
    named = {f"{profile}-{i}".replace(" ", "_"): f for profile, own in figures.items() for i, f in enumerate(own)}
    return Written(files, named, _text(table, search_id))


def history_of(profile: str, study: optuna.Study, space: Space) -> History:
    """The trials with a column for every parameter and metric, also while there is no trial that has it."""
    trials = trials_frame(study, [METRIC])
    absent = [name for name in (*space.names, *METRICS) if name not in trials]
    return History(profile, study, trials.assign(**dict.fromkeys(absent, math.nan), **{PROFILE: profile}))


def _best(history: History, scene: Scene) -> BestTrial:
    row, setting = history.best, scene.settings[0]
    return BestTrial(
        profile=history.profile,
        retained=searched_profiles(setting)[history.profile],
        trial=int(row[TRIAL]),
        runs=tuple(row[RUNS].split()),
        objective=float(row[METRIC]),
        maxent=maxent_at(setting, row),
        num_complete=history.count(COMPLETE),
    )


# ------------------------------------------------------------------------------------------------------- tables


def best_table(histories: Sequence[History], space: Space, defaults: Mapping[str, float]) -> pd.DataFrame:
    """One row a profile: its best trial, which ranges that lies at the end of, and how many trials there were.

    `preset_objective` is the objective of the preset's own parameters, empty where no study has run them.
    """
    rows = []
    for history in histories:
        best = history.best
        known = {} if best is None else {name: best[name] for name in (TRIAL, *space.names, *METRICS, RUNS)}
        counts = {f"num_{state}": history.count(state) for state in (COMPLETE, DIVERGED, FAILED)}
        edge = "" if best is None else at_edge(space, best)
        preset = {"preset_objective": defaults.get(history.profile, math.nan)}
        rows.append({PROFILE: history.profile, **known, "at_edge": edge, **preset, **counts})
    columns = [PROFILE, TRIAL, *space.names, *METRICS, "preset_objective", "at_edge"]
    columns += [f"num_{state}" for state in (COMPLETE, DIVERGED, FAILED)] + [RUNS]
    return pd.DataFrame(rows, columns=columns).astype({TRIAL: "Int64"})


def trials_table(histories: Sequence[History]) -> pd.DataFrame:
    """Every trial of every profile: search, trial, state, profile, parameters, metrics, runs, elapsed_s."""
    frame = pd.concat([h.trials for h in histories], ignore_index=True)
    first = ["search", TRIAL, STATE, PROFILE]
    parameters = [c for c in frame.columns if c not in (*first, *METRICS, RUNS, "elapsed_s", "started", "url")]
    return frame[[*first, *parameters, *METRICS, RUNS, "elapsed_s"]]


def at_edge(space: Space, point: Mapping[str, float]) -> str:
    """`peak_lr high`, `retain_weight low`: the parameters within 5% of an end of their range; "" for none."""
    ends = [(p.name, _share(p, point[p.name])) for p in space.parameters if p.high > p.low]
    low = [f"{name} low" for name, share in ends if share < EDGE_SHARE]
    return ", ".join(low + [f"{name} high" for name, share in ends if share > 1.0 - EDGE_SHARE])


def _share(parameter: Parameter, value: float) -> float:
    """Where in its range a value lies, from 0 to 1."""
    scale = math.log if parameter.log else float
    return (scale(value) - scale(parameter.low)) / (scale(parameter.high) - scale(parameter.low))


def default_objectives(problem: MaxEntProblem, profiles: Sequence[str], store: Store) -> dict[str, float]:
    """The objective of the preset's own parameters, of the profiles whose runs some study has finished."""
    directory, found = {"run": store.run, "evaluation": store.evaluation}, {}
    for profile in profiles:
        point = {PROFILE: profile, **default_values(problem.settings[0])}
        results = {node.id: directory[node.kind](node.id).result() for node in problem.nodes(point)}
        if all(result is not None for result in results.values()):
            found[profile] = problem.score(point, results)[METRIC]
    return found


# ------------------------------------------------------------------------------------------------------- report


def history_figures(history: History, space: Space) -> list:
    """The history, a slice for each parameter that was varied, and the importances where there are any."""
    varied = [p for p in space.parameters if p.high > p.low]
    figures = [history_figure(history.trials, METRIC, "min")]
    figures += [slice_figure(history.trials, parameter, METRIC, "min") for parameter in varied]
    shares = importances(history.study, METRIC)
    return [*figures, importance_figure(shares, METRIC, history.count(COMPLETE))] if shares else figures


def _sections(histories, figures: Mapping[str, list], table: pd.DataFrame, links: Mapping[str, str]) -> list[Section]:
    best = Section(
        "The best trials",
        "The lowest objective of each profile. One at the end of a range (at_edge) may have better ones beyond it. "
        "preset_objective is that of the preset's own parameters, where a study has run them on these seeds.",
        table=_with_links(table, links),
        table_is_open=True,
    )
    parts = []
    for history in histories:
        trials = history.trials.drop(columns=["search", "started", "url", PROFILE])
        why = why_no_importances(history.study, METRIC)
        parts.append(Section(history.profile, why, figures[history.profile], table=_with_links(trials, links)))
    return [best, *parts]


def _with_links(frame: pd.DataFrame, links: Mapping[str, str]) -> pd.DataFrame:
    """`runs` linked to the page of the first of them."""
    pages = [links.get(next(iter(str(runs).split()), ""), "") for runs in frame[RUNS].fillna("")]
    return frame.assign(**{f"{RUNS}_url": pages})


def _intro(question: str, objective: MaxEntObjective, scene: Scene, search_id: str, about_links: str) -> str:
    facts, seeds = _facts(scene), ", ".join(str(setting.seed) for setting in scene.settings)
    sentences = (
        f"Search {search_id}: preset {scene.flags.preset}, size {facts['size']}, corpus {scene.flags.corpus} "
        f"(data {facts['data_id']}), seeds {seeds}. Read from Optuna's database.",
        f"Minimised: forget + {objective.penalty_weight:g} x what core and retain each lack to {objective.floor:g} of "
        f"the baseline, as compute ratios, each clipped to 0 to {HIGHEST_RATIO:g} and averaged over seeds. A diverged "
        f"trial is told to the searcher as {objective.worst:g} and has no value here. Trials are chosen on the "
        "validation sequences that studies report on, so a study on the same seeds sees them a little too well.",
        about_links,
    )
    return f"{question}\n\n{' '.join(sentences)}"


def _text(table: pd.DataFrame, search_id: str) -> str:
    """The table of the best trials for a terminal, and how a study takes them."""
    shown = table.drop(columns=[RUNS])
    rows = [[_cell(value) for value in row] for row in shown.itertuples(index=False)]
    use = f"a study given --maxent {search_id} trains each profile with its best trial's parameters"
    return f"{aligned([list(shown.columns), *rows])}\n\n{use}"


def _cell(value: object) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value) or "-"


def _facts(scene: Scene) -> dict:
    setting = scene.settings[0]
    return {"data_id": setting.data_id, "size": setting.size.name, "seeds": [s.seed for s in scene.settings]}


def _record(objective: MaxEntObjective, space: Space, scene: Scene, search_id: str, histories) -> dict:
    asked = {"space": to_plain(space.parameters), "objective": to_plain(objective)}
    studies = {history.profile: history.study.study_name for history in histories}
    return {"search_id": search_id, "preset": scene.flags.preset, **_facts(scene), **asked, "studies": studies}


def _json(content: Mapping) -> bytes:
    return (json.dumps(to_plain(content), indent=1, sort_keys=True) + "\n").encode()
