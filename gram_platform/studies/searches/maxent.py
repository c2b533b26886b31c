"""Searches MaxEnt's learning rate and retain weight, with one Optuna study for each profile.

The paper tunes them "per profile via Bayesian optimization" (`app:stories`). The objective is
our own (see `analysis/maxent_objective.py`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import optuna
import pandas as pd

from gram_platform.analysis.maxent_objective import (
    HIGHEST_RATIO,
    METRIC,
    MaxEntObjective,
    references_of,
)
from gram_platform.analysis.ratios import Reference
from gram_platform.analysis.tables import frame_text, table_csv, text_frame
from gram_platform.analysis.trials import RUNS, STATE, TRIAL, best_trial, link_trials
from gram_platform.config import State
from gram_platform.config.identity import invalid, to_plain
from gram_platform.config.space import SearchObjective, Space, TrialColumns
from gram_platform.engine.trials import Group, OptunaSource, Point, Problem, open_study
from gram_platform.methods import Profile, Setting
from gram_platform.methods.nodes import Node, method_nodes, unique
from gram_platform.methods.setting import Unlearning
from gram_platform.pages.figures.searches import search_figures
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import run_links
from gram_platform.pages.results.results import Brief
from gram_platform.store import Store
from gram_platform.store.root import BEST
from gram_platform.studies.searches.optuna_studies import (
    open_storage,
    optuna_share_left,
    trials_frame,
)
from gram_platform.studies.searches.search_plan import (
    Round,
    SearchPlan,
    Written,
    baseline_frames,
    json_file,
    optuna_round,
    with_run_links,
)
from gram_platform.tracking import Tracker

METHOD, PROFILE = "maxent", "profile"
MAXENT_PARAMETERS = ("peak_lr", "retain_weight")
MAXENT_METRICS = (METRIC, "forget", "penalty", "core", "retain")
# The report marks a best trial within this share of an end of a range.
EDGE_SHARE = 0.05


def maxent_at(setting: Setting, point: Point) -> Unlearning:
    values = {name: float(point[name]) for name in MAXENT_PARAMETERS}
    return replace(setting.options.maxent, **values)


def unlearning_nodes(setting: Setting, point: Point) -> list[Node]:
    """Returns an unlearning run with a point's parameters, and the evaluation of this run.

    A study with these parameters has the same nodes.
    """
    maxent = maxent_at(setting, point)
    options = replace(setting.options, maxent=maxent, maxent_profiles=(), elicitation=None)
    profile = name_profiles(setting)[point[PROFILE]]
    nodes = method_nodes(METHOD, replace(setting, profiles=(profile,), options=options))
    tags = {name: f"{getattr(maxent, name):g}" for name in MAXENT_PARAMETERS}
    # Only the baseline needs no node, and is left out.
    return [node.with_tags(**tags) for node in nodes if node.needs]


def name_profiles(setting: Setting) -> dict[str, Profile]:
    """Returns the compared profiles that forget at least one domain, by name.

    Raises ValueError if there are none.
    """
    profiles = [p for p in setting.profiles if set(p) != set(setting.auxiliary)]
    if not profiles:
        allowed = "profiles that leave at least one domain to forget"
        raise invalid("retain", setting.profiles, allowed)
    return {setting.profile_name(profile): profile for profile in profiles}


def plain_space(space: Space) -> list[dict]:
    """Returns the ranges as dicts. The key `is_integer` only keeps old search ids valid."""
    return [{**to_plain(parameter), "is_integer": False} for parameter in space.parameters]


def default_values(setting: Setting) -> Point:
    return {name: getattr(setting.options.maxent, name) for name in MAXENT_PARAMETERS}


@dataclass(frozen=True)
class MaxEntSearch:
    """Runs an Optuna study for each profile. Each trial unlearns from the baseline of every seed.

    All `settings` have the same size.
    """

    settings: tuple[Setting, ...]
    name: str
    space: Space
    # The number of trials to complete in each Optuna study.
    target: int
    objective: MaxEntObjective = field(default_factory=MaxEntObjective)
    # The pooled baselines by domain, for the scores of trials.
    references: Mapping[str, Reference] = field(default_factory=dict)

    def nodes(self, point: Point) -> list[Node]:
        return [node for setting in self.settings for node in unlearning_nodes(setting, point)]

    def score(self, point: Point, results: Mapping[str, Mapping]) -> dict[str, float]:
        losses = [results[node.id]["losses"] for node in self.nodes(point) if not node.is_run]
        return self.objective.score_losses(self.references, losses, self.profiles[point[PROFILE]])

    @property
    def profiles(self) -> dict[str, Profile]:
        return name_profiles(self.settings[0])

    @property
    def best_by(self) -> SearchObjective:
        return SearchObjective(METRIC, self.objective.worst)

    def is_complete(self, search: SearchPlan) -> bool:
        """Returns True if each profile has the preset's number of complete trials."""
        best = search.folder(Store(search.choice.storage)).read_or_set_aside(BEST, dict)
        if not best or best["missing"]:
            return False
        return min(best["num_trials"].values()) >= search.preset.maxent_search.num_trials

    def study_names(self, search: SearchPlan) -> dict[str, str]:
        return {profile: f"{search.full_name}-{profile}" for profile in self.profiles}

    def groups(self, search: SearchPlan) -> list[Group]:
        storage = open_storage(search.optuna_uri)
        studies = {p: open_study(storage, n, METRIC) for p, n in self.study_names(search).items()}
        return [Group(p, {PROFILE: p}, s, self.target, storage) for p, s in studies.items()]

    def rounds(self, search: SearchPlan, store: Store, problem: Problem) -> Iterator[Round]:
        yield optuna_round(OptunaSource(self.groups(search), self.space, self.best_by))

    def share_left(self, search: SearchPlan) -> float:
        names = list(self.study_names(search).values())
        return optuna_share_left(search.optuna_uri, search.is_dry, names, self.target)

    def prerequisites(self, search: SearchPlan) -> list[Node]:
        return search.baselines

    def identity(self, search: SearchPlan) -> dict:
        preset = [default_values(self.settings[0])]
        return {
            "data_id": search.data_id,
            "baselines": [node.id for node in search.baselines],
            "unlearning": [node.id for node in self._nodes(preset)],
            "space": plain_space(self.space),
            "objective": to_plain(self.objective),
        }

    def example(self, search: SearchPlan) -> list[Node]:
        shares = [(index + 0.5) / self.target for index in range(self.target)]
        points = [{p.name: p.at(share) for p in self.space.parameters} for share in shares]
        return unique(self._nodes(points))

    def _nodes(self, points: Sequence[Point]) -> list[Node]:
        return [
            node
            for name in self.profiles
            for point in points
            for node in self.nodes({PROFILE: name, **point})
        ]

    def problem(self, search: SearchPlan, store: Store) -> "MaxEntSearch":
        """Returns this search with `references`: learning curves fitted to the stored baselines.

        Raises ValueError if no baseline is complete or a fit fails.
        """
        evaluations, curves = baseline_frames(store, search.baselines)
        references = references_of(evaluations, curves, self.settings[0].size.name)
        return replace(self, references=references)

    def write(self, search: SearchPlan, store: Store, tracker: Tracker | None) -> Written | None:
        groups, space, setting = self.groups(search), self.space, self.settings[0]
        facts = {"data_id": setting.data_id, "size": setting.size.name}
        facts |= {"seeds": [setting.seed for setting in self.settings]}
        histories = {group.name: history_of(group.name, group.study, space) for group in groups}
        best = [
            plain_best(profile, trials, setting)
            for profile, trials in histories.items()
            if best_trial(trials, METRIC) is not None
        ]
        if not best:
            return None
        defaults = default_objectives(self.problem(search, store), store)
        table = best_table(histories, space, defaults)
        content = {
            **facts,
            "search_id": search.search_id,
            "num_trials": {group.name: group.num_complete for group in groups},
            "profiles": best,
            "missing": [name for name in histories if name not in {b["profile"] for b in best}],
        }
        if store.writable:
            search.folder(store).write_sealed(BEST, content)
        links, about_links = run_links(tracker)
        histories = {profile: link_trials(trials, links) for profile, trials in histories.items()}
        varied = [p for p in space.parameters if p.high > p.low]
        drawn = {name: search_figures(trials, METRIC, varied) for name, trials in histories.items()}
        record = {
            **facts,
            "studies": {group.name: group.study.study_name for group in groups},
            "space": plain_space(space),
            "objective": to_plain(self.objective),
        }
        files = {
            "table.csv": table_csv(table, None).encode(),
            "trials.csv": table_csv(trials_table(histories), None).encode(),
            BEST: json_file(content),
        }
        figures = {
            f"{profile}-{number}".replace(" ", "_"): figure
            for profile, of_profile in drawn.items()
            for number, figure in enumerate(of_profile.values())
        }
        sections = _sections(histories, drawn, table, links)
        columns = TrialColumns(tuple(p.name for p in varied), (METRIC,), (PROFILE,))
        about = f"{_about(search)} {about_links}"
        log = search.log(about, sections, files, record, columns, figures)
        return log, *_texts(table, search.search_id)


def _about(search: SearchPlan) -> str:
    objective, seeds = search.kind.objective, ", ".join(str(s.seed) for s in search.settings)
    return (
        f"Search {search.search_id}: preset {search.preset_name}, size {search.choice.sizes[0]},"
        f" {search.data_text}, seeds {seeds}. Read from Optuna's database. Minimised: forget +"
        f" {objective.penalty_weight:g} x what core and retain each lack to {objective.floor:g}"
        f" of the baseline, as compute ratios, each clipped to 0 to {HIGHEST_RATIO:g} and"
        f" averaged over seeds. Optuna counts a diverged trial as {objective.worst:g}. Trials are"
        " chosen on the validation sequences of studies, so a study on the same seeds reports"
        " slightly too good results."
    )


Histories = Mapping[str, pd.DataFrame]


def history_of(profile: str, study: optuna.Study, space: Space) -> pd.DataFrame:
    trials = trials_frame(study, METRIC).assign(profile=profile)
    for name in (*space.names, *MAXENT_METRICS):
        if name not in trials:
            trials[name] = math.nan
    return trials


def plain_best(profile: str, trials: pd.DataFrame, setting: Setting) -> dict:
    row = best_trial(trials, METRIC)
    return {
        "profile": profile,
        "retained": list(name_profiles(setting)[profile]),
        "trial": int(row[TRIAL]),
        "runs": row[RUNS].split(),
        "objective": float(row[METRIC]),
        "maxent": asdict(maxent_at(setting, row)),
        "num_complete": int((trials[STATE] == State.COMPLETE).sum()),
    }


def best_table(histories: Histories, space: Space, defaults: Mapping[str, float]) -> pd.DataFrame:
    """Returns a row for each profile, with its best trial and its number of trials by state.

    `defaults` is the result of `default_objectives`.
    """
    rows, states = [], (State.COMPLETE, State.DIVERGED, State.FAILED)
    for profile, trials in histories.items():
        row = {PROFILE: profile, "preset_objective": defaults.get(profile, math.nan), "at_edge": ""}
        if (best := best_trial(trials, METRIC)) is not None:
            row |= {name: best[name] for name in (TRIAL, *space.names, *MAXENT_METRICS, RUNS)}
            row["at_edge"] = at_edge(space, best)
        rows.append(row | {f"num_{state}": (trials[STATE] == state).sum() for state in states})
    columns = [PROFILE, TRIAL, *space.names, *MAXENT_METRICS, "preset_objective", "at_edge"]
    columns += [*(f"num_{state}" for state in states), RUNS]
    return pd.DataFrame(rows, columns=columns).astype({TRIAL: "Int64"})


def trials_table(histories: Histories) -> pd.DataFrame:
    frame = pd.concat(histories.values(), ignore_index=True)
    first, last = ["search", TRIAL, STATE, PROFILE], [*MAXENT_METRICS, RUNS, "elapsed_s"]
    parameters = frame.columns.drop([*first, *last, "started", "url"], errors="ignore")
    return frame[[*first, *parameters, *last]]


def at_edge(space: Space, point: Mapping[str, float]) -> str:
    """Lists parameters near a limit of their range, such as `retain_weight low, peak_lr high`."""
    ends = [(p.name, p.share_of(point[p.name])) for p in space.parameters if p.high > p.low]
    low = [f"{name} low" for name, share in ends if share < EDGE_SHARE]
    return ", ".join(low + [f"{name} high" for name, share in ends if share > 1.0 - EDGE_SHARE])


def default_objectives(problem: MaxEntSearch, store: Store) -> dict[str, float]:
    """Maps profiles to the objective at the preset's parameters.

    Omits profiles on which no study has run these parameters.
    """
    objectives = {}
    for profile in problem.profiles:
        point = {PROFILE: profile, **default_values(problem.settings[0])}
        results = {n.id: store.node(n.kind, n.id).result() for n in problem.nodes(point)}
        if None not in results.values():
            objectives[profile] = problem.score(point, results)[METRIC]
    return objectives


def _sections(
    histories: Histories, figures: Mapping, table: pd.DataFrame, links: Mapping[str, str]
) -> list[Section]:
    best = Section(
        "The best trials",
        "The trial with the lowest objective of each profile. Better ones may lie beyond the end of"
        " a range (at_edge). preset_objective: the preset's parameters, if a study has run them on"
        " these seeds.",
        table=with_run_links(table, links),
        table_is_open=True,
    )
    sections = [best]
    for profile, trials in histories.items():
        table = with_run_links(trials.drop(columns=["search", "started", "url", PROFILE]), links)
        sections.append(Section(profile, "", figures[profile], table=table))
    return sections


def _texts(table: pd.DataFrame, search_id: str) -> tuple[str, Brief]:
    use = f"a study with --maxent {search_id} trains each profile with its best parameters"
    columns = [PROFILE, METRIC, *table.columns.drop([PROFILE, METRIC, TRIAL, RUNS])]
    brief = Brief({"best trials": text_frame(table[columns], ".3g")}, text=use)
    return f"{frame_text(table.drop(columns=[RUNS]), '.3g')}\n\n{use}", brief
