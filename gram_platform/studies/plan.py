"""Defines the plan of a submission: values alone, each decided once before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gram_platform.config.flops import total_parameters
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.methods import Setting
from gram_platform.methods.nodes import BASELINE, VARIANT, Node, method_costs, method_nodes, unique
from gram_platform.planner import MACHINES, Budget, Machine, Ranks
from gram_platform.store import Folder, Store
from gram_platform.studies.definition import Preset, Study

CPU = "cpu"


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
    # Which runs of the preset are wanted, and on which text, as the flags of these names say.
    sizes: tuple[str, ...]
    seeds: int
    first_seed: int
    retain: tuple[str, ...]
    corpus: str
    core_label: str
    core_tokenizer: bool
    # Where fetched text is kept.
    storage: str
    # The machine whose hours are predicted.
    machine: Machine
    ranks: Ranks
    # Those that a dry run shows.
    planned_ranks: Ranks
    instructions: str = ""
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
        sizes, methods = self.sizes, self.methods
        named.sort(
            key=lambda pair: (sizes.index(pair[0]["size"]), methods.index(pair[0]["method"]))
        )
        return tuple({**row, VARIANT: names} if names else row for row, names in named)


@dataclass(frozen=True)
class ExecutionOptions:
    """How processes execute nodes; the flags of the same names say what each field means."""

    in_process: bool
    threads: int
    max_gpus: int
    gpus_per_run: float
    gpus_per_machine: int
    activation_checkpointing: bool
    compile: bool
    deterministic: bool
    checkpoint_every_s: float
    # The share of the time that checkpoints may take; 0: any.
    commit_share: float
    stall_timeout_s: float
    collective_timeout_s: float
    retry_failed: bool
    verbose: bool


@dataclass(frozen=True)
class Plan:
    """A submission: one or more studies or a search, where results go, and what it may cost."""

    studies: tuple[StudyPlan, ...]
    storage: str
    tracking_uri: str
    options: ExecutionOptions
    # The most that all submissions may cost.
    budget: Budget
    # The predicted dollars above which nothing is started; infinite with --yes and --max-cost.
    confirm_above: float
    # cpu or cuda; "" before it is chosen.
    device: str = ""
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
    def name(self) -> str:
        return "+".join(part.name for part in self.studies)

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, each id once."""
        return unique(node for part in self.studies for node in part.entries)

    @property
    def needs_ray(self) -> bool:
        return not self.options.in_process

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
            studies=tuple(planned_for(part, cpu) for part in self.studies),
        )


def planned_for(part: StudyPlan, machine: Machine) -> StudyPlan:
    """Returns a study whose hours, memory and ranks are predicted for a machine."""
    return replace(
        part,
        machine=machine,
        ranks=replace(part.ranks, machine=machine),
        planned_ranks=replace(part.planned_ranks, machine=machine),
    )
