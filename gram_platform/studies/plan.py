"""Defines a submission's plan, and predicts its price."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Self

from gram_platform.config.flops import total_parameters
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.engine.execution import Execution, Resources
from gram_platform.methods import Setting
from gram_platform.methods.nodes import BASELINE, VARIANT, Node, method_costs, method_nodes, unique
from gram_platform.planner import (
    MACHINES,
    Budget,
    Machine,
    estimate_hours,
    evaluation_hours,
)
from gram_platform.planner.ranks import AUTO, Ranks, StudyWork
from gram_platform.store import Folder, Store
from gram_platform.studies.definition import Preset, Study

CPU = "cpu"


@dataclass(frozen=True)
class Choice:
    """Selects a corpus, and which runs of a preset to execute. Fields are named after flags."""

    sizes: tuple[str, ...]
    seeds: int
    first_seed: int
    retain: tuple[str, ...]
    corpus: str
    core_label: str
    core_tokenizer: bool
    storage: str
    instructions: str = ""
    adjacent: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study or a search on a corpus.

    `entries` has the nodes of each method, and repeats a node that several methods use. `nodes` has
    each node once. A search plans the nodes that all trials need, and nodes of example trials.
    """

    study: Study
    preset_name: str
    # Changes of the preset, as `--set` takes them.
    changes: tuple[str, ...]
    # With `changes` and the values from `sources` applied.
    preset: Preset
    choice: Choice
    # Includes the machine whose hours are predicted.
    ranks: Ranks
    methods: tuple[str, ...] = ()
    # Sources of numbers and texts by flag: law, maxent, start, texts.
    sources: Mapping[str, str] = field(default_factory=dict)
    # The evidence against a law that --trust-law accepts.
    law_doubts: tuple[str, ...] = ()
    # Each size's recipes, one for each division of the labels.
    recipes: Mapping[str, tuple[CorpusRecipe, ...]] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    entries: tuple[Node, ...] = ()

    # Whether results may add nodes.
    has_trials = False
    # The observers' class, as module:class.
    observers = "gram_platform.studies.observers:StudyObservers"

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def machine(self) -> Machine:
        return self.ranks.machine

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes for which the planner chooses the number of ranks. Empty for a search."""
        number_of = self.ranks.number_of
        return (
            () if self.has_trials else tuple(s for s in self.choice.sizes if number_of(s) == AUTO)
        )

    @cached_property
    def corpora(self) -> tuple[CorpusRecipe, ...]:
        recipes = chain.from_iterable(self.recipes.values())
        return tuple({recipe.data_id: recipe for recipe in recipes}.values())

    @property
    def data_id(self) -> str:
        return ", ".join(recipe.data_id for recipe in self.corpora)

    @cached_property
    def nodes(self) -> list[Node]:
        return unique(self.entries)

    @property
    def num_seeds(self) -> int:
        return len({setting.seed for setting in self.settings})

    @cached_property
    def baselines(self) -> list[Node]:
        return unique(node for setting in self.settings for node in method_nodes(BASELINE, setting))

    @cached_property
    def parameters(self) -> dict[str, int]:
        return {s.size.name: total_parameters(s.size.dense()) for s in self.settings}

    @property
    def head(self) -> str:
        return f"study {self.name}: {len(self.nodes)} nodes"

    def folder(self, store: Store) -> Folder:
        return store.study_dir(self.name)

    def share_left(self) -> float:
        """Returns an Optuna search's share of incomplete trials. For other plans, returns 1.0."""
        return 1.0

    def on(self, device: str) -> Self:
        """Returns the plan for a device. For `cpu`, it predicts CPU hours."""
        if device != CPU:
            return self
        return replace(self, ranks=replace(self.ranks, machine=MACHINES[CPU]))

    def methods_of(self, setting: Setting) -> list[str]:
        variant = next(v for v in self.preset.variants if v.name == setting.variant)
        return [method for method in self.methods if variant.serves(method)]

    @cached_property
    def costs(self) -> tuple[dict, ...]:
        """Each size's rows of `method_costs`. Variants with equal costs share a row."""
        # All seeds cost the same.
        settings = {(setting.size.name, setting.variant): setting for setting in self.settings}
        variants_of = defaultdict(list)
        for (size, name), setting in settings.items():
            for cost in method_costs(setting, self.methods_of(setting), self.methods):
                variants_of[("size", size), *cost.items()].append(name)
        rows = [
            dict(row) | ({VARIANT: ", ".join(names)} if any(names) else {})
            for row, names in variants_of.items()
        ]
        sizes, methods = self.choice.sizes, self.methods
        rows.sort(key=lambda row: (sizes.index(row["size"]), methods.index(row["method"])))
        return tuple(rows)


@dataclass(frozen=True)
class Plan:
    """A submission of studies or a search, with its storage, resources and limits."""

    studies: tuple[StudyPlan, ...]
    tracking_uri: str
    # `execution_of` adds settings that depend on the device.
    execution: Execution
    resources: Resources
    budget: Budget
    # Predicted dollars above which nothing starts; infinite with --yes and --max-cost.
    confirm_above: float
    # cpu or cuda; "" before it is chosen.
    device: str = ""
    in_process: bool = False
    retry_failed: bool = False
    verbose: bool = False
    dry_run: bool = False
    # One size after another.
    through: bool = False
    # The price was approved with that of other plans.
    is_approved: bool = False
    # The file for the missing nodes. With "" they are executed.
    export_nodes: str = ""
    notify: str = ""
    # Optuna's database as given. "" is SQLite in the storage.
    optuna_uri: str = ""
    # The most trials at once. 0 is as many as fit.
    max_concurrent: int = 0
    report_only: bool = False
    # Whether torch.compile compiles runs; None: GPU runs that gain time.
    compiled: bool | None = None
    # The GPUs or CPU slots of --hardware. 0 means the available ones.
    num_slots: int = 0

    @property
    def storage(self) -> str:
        return self.studies[0].choice.storage

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.studies)

    @cached_property
    def nodes(self) -> list[Node]:
        return unique(node for part in self.studies for node in part.entries)

    def on(self, device: str) -> "Plan":
        """Returns the plan for a device. For `cpu`, it predicts CPU hours and their price."""
        studies, budget = tuple(part.on(device) for part in self.studies), self.budget
        if device == CPU:
            budget = replace(budget, dollars_per_hour=MACHINES[CPU].dollars_per_hour)
        return replace(self, device=device, budget=budget, studies=studies)

    def works(self) -> Iterable[tuple[Ranks, StudyWork]]:
        """Groups studies by their ranks. Yields (ranks, the group's work). Skips searches."""
        parts = [part for part in self.studies if not part.has_trials]
        for ranks in dict.fromkeys(part.ranks for part in parts):
            nodes = unique(node for part in parts if part.ranks == ranks for node in part.entries)
            yield ranks, self._work(nodes, ranks)

    def _work(self, nodes: Sequence[Node], ranks: Ranks) -> StudyWork:
        share = 1.0 if ranks.machine.device == CPU else self.resources.gpus_per_run
        return StudyWork(nodes, ranks, share)

    def with_ranks(self, num_slots: int, begun: Mapping[str, int]) -> "Plan":
        """Returns the plan with a number of ranks for each size of its studies.

        In a search, runs keep the fewest ranks on which they fit into memory, because parallel
        trials fill the cluster. Arguments and errors are as in `StudyWork.choose`.
        """
        for part in self.studies:
            if part.has_trials:
                self._work(part.nodes, part.ranks).require_memory()
        chosen = {ranks: work.choose(num_slots, begun) for ranks, work in self.works()}
        return replace(
            self,
            studies=tuple(
                part if part.has_trials else replace(part, ranks=chosen[part.ranks])
                for part in self.studies
            ),
        )


def amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 or not value else f"{value:.2g}"


def plan_hours(
    nodes: Sequence[Node], machine: Machine, ids: Collection[str] | None = None
) -> float:
    """Predicts the machine hours of the nodes in `ids`, or of all `nodes` if `ids` is None.

    `nodes` must include the runs that the evaluations need.
    """
    runs = {node.id: node for node in nodes if node.is_run}
    counted = [node for node in nodes if ids is None or node.id in ids]
    hours = sum(estimate_hours(node, machine) for node in counted)
    return hours + evaluation_hours(counted, runs, machine)


def rung_text(
    of_size: Mapping[str, Sequence[Node]], spent: float, machine: Machine, has_failed: bool
) -> str:
    """Compares a size's spent and predicted hours, and predicts the hours of the next size.

    `of_size` maps the name of this size, and of the next if there is one, to the size's nodes.
    """
    (size, predicted), *following = (
        (name, plan_hours(nodes, machine)) for name, nodes in of_size.items()
    )
    text = f"{size}: {spent:.3g} {machine.name} hours spent, {predicted:.3g} predicted"
    for name, planned in following:
        hours = planned * spent / predicted
        price = f"${hours * machine.dollars_per_hour:,.2f}"
        text += f"; {name}: {planned:.3g} predicted, {hours:.3g} ({price}) at the ratio of {size}"
        if has_failed:
            text += f"; it is not started, because nodes of {size} have failed"
    return text


@dataclass(frozen=True)
class Left:
    """A study's unfinished nodes that no earlier study of the plan has."""

    part: StudyPlan
    ids: frozenset[str]
    # The share of these nodes that will be executed. Complete trials of an Optuna search lower it,
    # because these nodes do not include theirs.
    share: float

    def hours(self, machine: Machine) -> float:
        return self.share * plan_hours(self.part.nodes, machine, self.ids)


def work_left(studies: Iterable[StudyPlan], done: Collection[str]) -> list[Left]:
    """Returns the remaining work of each study or search. `done` contains ids of ended nodes."""
    seen, work = set(done), []
    for part in studies:
        ids = {node.id for node in part.nodes} - seen
        seen |= ids
        if ids and (share := part.share_left()):
            work.append(Left(part, frozenset(ids), share))
    return work


def price(work: Iterable[Left], machine: Machine | None = None) -> tuple[str, float]:
    """Returns (text with predicted hours and dollars, predicted dollars).

    If `machine` is None, assumes each study's own machine.
    """
    hours = defaultdict[Machine, float](float)
    for left in work:
        on = machine or left.part.machine
        hours[on] += left.hours(on)
    dollars = sum(number * on.dollars_per_hour for on, number in hours.items())
    text = " and ".join(f"{amount(number)} {on.name} hours" for on, number in hours.items())
    return f"{text}, ${dollars:,.2f}", dollars


def predict(work: Sequence[Left]) -> str:
    if not work:
        return "predicted: nothing is left to execute"
    names = ", ".join(dict.fromkeys(left.part.name for left in work))
    number = sum(len(left.ids) for left in work)
    return f"predicted: {number} nodes of {names} are not done, {price(work)[0]}"


def sharing(studies: Sequence[StudyPlan]) -> str:
    """Formats the number of different runs, and how many runs and hours sharing them saves."""
    runs = [node for part in studies for node in part.nodes if node.is_run]
    machine, union = studies[0].machine, unique(runs)
    alone, together = (sum(estimate_hours(node, machine) for node in of) for of in (runs, union))
    hours = f"{alone - together:,.2f} {machine.name} hours"
    saved = f"{len(runs) - len(union)} saved by sharing ({hours})"
    return f"all studies: {len(union)} runs, {saved}"
