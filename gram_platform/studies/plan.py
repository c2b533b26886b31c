"""Defines the plan of a submission, values that are decided once before anything starts, and
predicts its hours and its price."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
    Ranks,
    evaluation_hours,
    expected_hours,
)
from gram_platform.store import Folder, Store
from gram_platform.studies.definition import Preset, Study

CPU = "cpu"


@dataclass(frozen=True)
class Choice:
    """Which runs of a preset are wanted, and on which text; the flags of the same names say what
    each field means."""

    sizes: tuple[str, ...]
    seeds: int
    first_seed: int
    retain: tuple[str, ...]
    corpus: str
    core_label: str
    core_tokenizer: bool
    # Where fetched text is kept.
    storage: str
    instructions: str = ""


@dataclass(frozen=True)
class StudyPlan:
    """A study, or a search, on a corpus.

    `entries` has every node under each method's names, `nodes` each id once. Of a search they are
    the nodes that all trials need, and those of its trials as far as they are known.
    """

    study: Study
    preset_name: str
    # Changes of the preset, as `--set` takes them.
    changes: tuple[str, ...]
    # With the changes, and with the law, the import and the search of `sources`.
    preset: Preset
    choice: Choice
    # With the machine whose hours are predicted.
    ranks: Ranks
    # Those that a dry run shows.
    planned_ranks: Ranks
    methods: tuple[str, ...] = ()
    # Where numbers are from, by the flag that names it: law, maxent, start.
    sources: Mapping[str, str] = field(default_factory=dict)
    # Why the law that --trust-law lets set rates and batches should not set them.
    law_doubts: tuple[str, ...] = ()
    # The recipes of each size: one, or one for every way to divide the labels.
    recipes: Mapping[str, tuple[CorpusRecipe, ...]] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    entries: tuple[Node, ...] = ()

    # Whether there may be nodes that nobody knows yet.
    has_trials = False
    # The class, as module:class, whose object sees what happens.
    observers = "gram_platform.studies.observers:StudyObservers"

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def machine(self) -> Machine:
        return self.ranks.machine

    @cached_property
    def corpora(self) -> tuple[CorpusRecipe, ...]:
        """The distinct recipes."""
        found = (recipe for of_size in self.recipes.values() for recipe in of_size)
        return tuple({recipe.data_id: recipe for recipe in found}.values())

    @property
    def recipe(self) -> CorpusRecipe:
        """The corpus of the first size; those of other sizes have the same domains."""
        return self.corpora[0]

    @property
    def data_id(self) -> str:
        """The data of all sizes and variants, joined by commas."""
        return ", ".join(recipe.data_id for recipe in self.corpora)

    @cached_property
    def nodes(self) -> list[Node]:
        return unique(self.entries)

    @property
    def num_seeds(self) -> int:
        """The most seeds that a size has."""
        return len({setting.seed for setting in self.settings})

    @cached_property
    def baselines(self) -> list[Node]:
        """The baseline of every setting, and its evaluation."""
        return unique(node for setting in self.settings for node in method_nodes(BASELINE, setting))

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The parameters of each size's dense model."""
        return {s.size.name: total_parameters(s.size.dense()) for s in self.settings}

    @property
    def head(self) -> str:
        """What is submitted, for people."""
        return f"study {self.name}: {len(self.nodes)} nodes"

    def folder(self, store: Store) -> Folder:
        return store.study_dir(self.name)

    def share_left(self) -> float:
        """Returns the share of the missing nodes that will be executed: fewer where Optuna chose
        others."""
        return 1.0

    def planned_for(self, machine: Machine) -> Self:
        """Returns the study with its hours, memory and ranks predicted for a machine."""
        ranks, planned = (replace(r, machine=machine) for r in (self.ranks, self.planned_ranks))
        return replace(self, ranks=ranks, planned_ranks=planned)

    def methods_of(self, setting: Setting) -> list[str]:
        variant = next(v for v in self.preset.variants if v.name == setting.variant)
        return [method for method in self.methods if variant.serves(method)]

    @cached_property
    def costs(self) -> tuple[dict, ...]:
        """The cost of every method at every size, one row for all variants of equal cost; seeds
        cost the same."""
        settings = {(setting.size.name, setting.variant): setting for setting in self.settings}
        # Variants by size and cost.
        variants_of: dict[tuple, list[str]] = {}
        for (size, name), setting in settings.items():
            for cost in method_costs(setting, self.methods_of(setting), self.methods):
                variants_of.setdefault((("size", size), *cost.items()), []).append(name)
        named = [(dict(row), ", ".join(names)) for row, names in variants_of.items()]
        sizes, methods = self.choice.sizes, self.methods
        named.sort(
            key=lambda pair: (sizes.index(pair[0]["size"]), methods.index(pair[0]["method"]))
        )
        return tuple({**row, VARIANT: names} if names else row for row, names in named)


@dataclass(frozen=True)
class Plan:
    """A submission: one or more studies or a search, where results go, and what it may cost."""

    studies: tuple[StudyPlan, ...]
    tracking_uri: str
    # How nodes are executed, and what Ray reserves for them, as far as no device decides it.
    execution: Execution
    resources: Resources
    # The most that all submissions may cost.
    budget: Budget
    # The predicted dollars above which nothing is started; infinite with --yes and --max-cost.
    confirm_above: float
    # cpu or cuda; "" before it is chosen.
    device: str = ""
    in_process: bool = False
    # Trains runs again that have diverged.
    retry_failed: bool = False
    # Prints what the workers print.
    verbose: bool = False
    dry_run: bool = False
    # One size after another, up to the last one.
    through: bool = False
    # The price was approved, with that of other plans.
    is_approved: bool = False
    # The file of nodes for a machine without Ray; "": execute them.
    export_nodes: str = ""
    # The webhook that gets a message at the end.
    notify: str = ""
    # Optuna's database as it was given; "": SQLite in the storage.
    optuna_uri: str = ""
    # Of a search: most trials at once, 0: as many as fit.
    max_concurrent: int = 0
    # Of a search: write the report again, and start no trial.
    report_only: bool = False

    @property
    def storage(self) -> str:
        return self.studies[0].choice.storage

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.studies)

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, each id once."""
        return unique(node for part in self.studies for node in part.entries)

    @property
    def needs_ray(self) -> bool:
        return not self.in_process

    def on(self, device: str) -> "Plan":
        """Returns the plan of a submission whose nodes are executed on a device; on CPUs all is
        predicted for CPUs."""
        if device != CPU:
            return replace(self, device=device)
        cpu = MACHINES[CPU]
        return replace(
            self,
            device=device,
            budget=replace(self.budget, dollars_per_hour=cpu.dollars_per_hour),
            studies=tuple(part.planned_for(cpu) for part in self.studies),
        )


# ---------------------------------------------------------------------------------------- price


def amount(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 or not value else f"{value:.2g}"


def planned_hours(
    nodes: Iterable[Node], machine: Machine, ids: Collection[str] | None = None
) -> float:
    """Returns the machine hours that the planner expects of runs and of evaluations of their views.

    `ids`: of the nodes that count; by default all.
    """
    nodes = list(nodes)
    runs = {node.id: node for node in nodes if node.is_run}
    counted = [node for node in nodes if ids is None or node.id in ids]
    hours = sum(expected_hours(node, machine) for node in counted)
    return hours + evaluation_hours(counted, runs, machine)


def rung_text(
    of_size: Mapping[str, Sequence[Node]], spent: float, machine: Machine, has_failed: bool
) -> str:
    """Returns the hours of the first size, and those of the next at the same ratio to the plan, if
    any, in words.

    `of_size`: the nodes of both sizes.
    """
    (size, predicted), *following = (
        (one, planned_hours(nodes, machine)) for one, nodes in of_size.items()
    )
    text = f"{size}: {spent:.3g} {machine.name} hours spent, {predicted:.3g} predicted"
    for one, planned in following:
        hours = planned * spent / predicted
        text += (
            f"; {one}: {planned:.3g} predicted, {hours:.3g}"
            f" (${hours * machine.dollars_per_hour:,.2f}) "
        )
        text += f"at the ratio of {size}"
        if has_failed:
            text += f"; it is not started, because nodes of {size} have failed"
    return text


@dataclass(frozen=True)
class Left:
    """The nodes of a study or a search that are not done.

    Nodes of several studies are counted at the first.
    """

    part: StudyPlan
    ids: frozenset[str]
    # The share of these nodes that will be executed: below 1 in an Optuna search that has complete
    # trials.
    share: float

    def hours(self, machine: Machine) -> float:
        return self.share * planned_hours(self.part.nodes, machine, self.ids)


def work_left(studies: Iterable[StudyPlan], done: Collection[str]) -> list[Left]:
    """Returns what is left of each study or search that has nodes other than those that are `done`,
    by id."""
    seen, found = set(done), []
    for part in studies:
        ids = {node.id for node in part.nodes} - seen
        seen |= ids
        if ids and (share := part.share_left()):
            found.append(Left(part, frozenset(ids), share))
    return found


def price(work: Iterable[Left], machine: Machine | None = None) -> tuple[str, float]:
    """Returns the predicted hours and dollars as a text, and the dollars.

    `machine`: that executes all of it; by default each study's own, of --machine.
    """
    hours: dict[Machine, float] = {}
    for one in work:
        on = machine or one.part.machine
        hours[on] = hours.get(on, 0.0) + one.hours(on)
    dollars = sum(number * on.dollars_per_hour for on, number in hours.items())
    return (
        (
            f"{' and '.join(f'{amount(h)} {on.name} hours' for on, h in hours.items())},"
            f" ${dollars:,.2f}"
        ),
        dollars,
    )


def predicted(work: Sequence[Left]) -> str:
    """Returns in words what a submission has left to execute, and its price."""
    if not work:
        return "predicted: nothing is left to execute"
    names = ", ".join(dict.fromkeys(one.part.name for one in work))
    return (
        f"predicted: {sum(len(one.ids) for one in work)} nodes of {names} are not done,"
        f" {price(work)[0]}"
    )


def sharing(studies: Sequence[StudyPlan]) -> str:
    """Returns the number of runs of all studies, and the saving by training each run once."""
    runs = [node for part in studies for node in part.nodes if node.is_run]
    machine, union = studies[0].machine, unique(runs)
    alone, together = (sum(expected_hours(node, machine) for node in of) for of in (runs, union))
    saved = (
        f"{len(runs) - len(union)} saved by sharing ({alone - together:,.2f} {machine.name} hours)"
    )
    return f"all studies: {len(union)} runs, {saved}"
