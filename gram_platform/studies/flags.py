"""Defines the flags of studies, and checks them before any work starts."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import tyro

from gram_platform.config.identity import absolute_place, invalid, require_choice, require_int, require_real
from gram_platform.config.ladder import load_law
from gram_platform.methods import METHODS
from gram_platform.planner import AUTO, MACHINES, Budget, Machine, Ranks
from gram_platform.planner.simulation import SimulatedCluster, simulated_cluster
from gram_platform.store.root import storage_place
from gram_platform.studies.choice import Choice, Destination, Limits
from gram_platform.studies.definition import Study, on_responses, read_preset, with_changes
from gram_platform.studies.flag_values import corpus_place, read_ranks, split_list, tracking_place

AUTO_INTERVAL = "auto"
# Eleven days; torch's clock in nanoseconds can hold it.
MAX_TIMEOUT_S = 1e6


def _shown(kind: Any, metavar: str) -> Any:
    """Returns the type of a flag that `--help` shows as `metavar`, without its empty default: the help says it."""
    return Annotated[kind, tyro.conf.arg(metavar=metavar, help_behavior_hint="")]


def _choice(*values: str) -> Any:
    """Returns the type of a flag with one of these values, or "" for its default."""
    return _shown(Literal["", *values], f"{{{','.join(values)}}}")


SET = tyro.conf.arg(name="set", metavar="FIELD=VALUE ...", help_behavior_hint="")
Text, Texts = _shown(str, "TEXT"), _shown(tuple[str, ...], "TEXT ...")
Place, Names = _shown(str, "FOLDER|URL"), _shown(tuple[str, ...], "NAME ...")


@dataclass(frozen=True)
class CommonFlags:
    """The flags that studies and searches share. Lists take values separated by blanks or commas.

    The properties say what checked flags mean; each is resolved once.
    """

    preset: _shown(str, "NAME|FILE.toml") = ""
    """one of those above; paper is as the paper's text prints it, as_run as the authors' settings have it; or a file
    with `base`, the name of a preset, and the fields that it changes (docs/studies.md)"""
    changes: Annotated[tuple[str, ...], SET] = ()
    """fields of the preset to change, as routing.p_aux_spread=0.1 'sizes[0.6M].peak_lr=2e-3'"""
    storage: Place = ""
    """folder or fsspec URL of runs and results; default $GRAM_STORAGE, else ~/.gram"""
    tracking_uri: _shown(str, "URL") = ""
    """MLflow server or database; default SQLite in the storage"""
    corpus: _shown(str, "NAME|FOLDER|FILE|hf://...") = ""
    """a corpus above, a folder of .jsonl/.parquet with `text` and `label`, a .json of labelled globs, a .toml recipe,
    or hf://ORG/NAME?label=FIELD&text=FIELD (docs/studies.md)"""
    core_label: Text = ""
    """the label (or labels, with commas between) that is core, default core or the catalog's own; every other
    label is an auxiliary domain"""
    core_tokenizer: bool = False
    """train the tokenizer on core's text alone: exports then ship no vocabulary of removed domains"""
    retain: Names = ()
    """auxiliary domains: each is compared in the profile core + that domain"""
    seeds: int = 0
    """number of seeds of every size (0: the preset's, which may have fewer at large sizes)"""
    first_seed: int = -1
    """the first seed, the others follow it (default, -1: the preset's)"""
    sizes: Names = ()
    """names of sizes (default: all of the preset)"""
    num_workers: Texts = ()
    """ranks of each run: a number, size=number for single sizes, a range as 4..8 for as many as can be placed at each
    start, or auto for the fewest whose memory suffices on --machine; 1 trains in the Ray task itself (default: 1;
    --dry-run without it plans for auto, with a range for the fewest)"""
    device: _choice("cpu", "cuda") = ""
    """kept when the study is submitted again (default at first: cuda if Ray has a GPU; must be given where the preset
    plans for GPUs and the cluster starts machines on demand)"""
    dry_run: bool = False
    """print what would run, what it costs and what is done already; start nothing"""
    simulate: bool = False
    """with --dry-run: what is left on a hypothetical cluster; expected makespan, cost and lost work"""
    cluster: Texts = ()
    """of --simulate, as name=value: num_machines, slots_per_machine, interruptions_per_hour (of one machine),
    machine_start_s, group_start_s, recovery_s, storage_bytes_per_s, checkpoint_every_s, dollars_per_machine_hour"""
    optuna_uri: _shown(str, "URL") = ""
    """Optuna's database of searches; default SQLite in the storage"""
    machine: _choice(*MACHINES) = ""
    """what --dry-run, prices and --num-workers auto plan for (default: the preset's; cpu beside --device cpu)"""
    threads: int = 1
    """CPU threads of a rank: part of what makes a run repeat bit for bit"""
    checkpoint_every: str = "auto"
    """seconds between checkpoints; auto: 30, or as many more as keep writing them below 2% of the time"""
    activation_checkpointing: bool = False
    """compute every block again in the backward pass: less memory, a third more time (--dry-run shows both)"""
    max_hours: float = 0.0
    """stop starting runs or trials after this many machine hours (a slot's, or a GPU's), summed over all
    submissions"""
    max_cost: float = 0.0
    """the same in dollars, at the price of --machine"""
    confirm_above: float = 500.0
    """dollars, predicted of what is not done, above which a submission needs --yes or --max-cost"""
    yes: bool = False
    """start whatever is predicted: nobody is ever asked, so a job that restarts needs it too"""
    max_gpus: int = 0
    """GPUs to ask the cluster for at once (default: what it has, or lets its autoscaler start); CPU slots on CPUs"""
    gpus_per_run: float = 1.0
    """share of a GPU for a run of one rank, and for an evaluation: with 0.125 eight small runs share one"""
    gpus_per_machine: int = 8
    """GPUs of the machines that an autoscaler starts for several ranks: so many ranks stay on one machine"""
    stall_timeout: float = 7200.0
    """seconds without a training step after which a run of one rank starts again; also of an evaluation as a whole"""
    compile: bool = False
    """compile blocks and loss with torch.compile, if it can: for GPUs; timing.json has the number of graphs"""
    deterministic: bool = False
    """on a GPU, refuse algorithms whose sums have no fixed order: slower, the same bytes on the same kind of GPU"""
    collective_timeout: float = 600.0
    """seconds after which ranks that wait for one another give up and start again from the last checkpoint"""
    retry_failed: bool = False
    """train runs again that ended with a non-finite loss"""
    verbose: bool = False
    """print what the workers print, into `ray job logs` too"""

    @cached_property
    def hardware(self) -> Machine:
        """What --machine names."""
        return MACHINES[self.machine]

    @cached_property
    def limits(self) -> Limits:
        """The limits of hours and cost."""
        budget = Budget(self.max_hours, self.max_cost, self.hardware.dollars_per_hour)
        return Limits(budget, self.confirm_above, self.yes)

    @cached_property
    def destination(self) -> Destination:
        """The storage and its mirror."""
        return Destination(self.storage, self.tracking_uri)

    @property
    def choice(self) -> Choice:
        """The chosen runs and their text."""
        return Choice(
            sizes=self.sizes,
            seeds=self.seeds,
            first_seed=self.first_seed,
            retain=self.retain,
            corpus=self.corpus,
            core_label=self.core_label,
            core_tokenizer=self.core_tokenizer,
            storage=self.storage,
        )

    @property
    def needs_ray(self) -> bool:
        """Whether nodes are executed on Ray."""
        return True

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks of --num-workers, by default 1; ValueError for another form."""
        found = read_ranks(self.num_workers)
        most = tuple((size, most) for size, (fewest, most) in found.items() if most > fewest)
        number, _ = found.pop("", (1, 1))
        of_size = tuple((size, fewest) for size, (fewest, _) in found.items())
        return Ranks(number, of_size, self.hardware, self.activation_checkpointing, most)

    @cached_property
    def planned_ranks(self) -> Ranks:
        """The ranks of --num-workers; without it, the planner chooses."""
        return self.ranks if split_list(self.num_workers) else replace(self.ranks, number=AUTO)

    @cached_property
    def checkpoint_interval(self) -> tuple[float, float]:
        """Seconds between checkpoints, and the share of the time that they may take (0: any); ValueError for others."""
        if self.checkpoint_every == AUTO_INTERVAL:
            return 30.0, 0.02
        try:
            seconds = float(self.checkpoint_every)
            require_real("checkpoint_every", seconds, 0.0, open_low=True)
        except ValueError as error:
            raise invalid("checkpoint_every", self.checkpoint_every, f"seconds above 0, or {AUTO_INTERVAL}") from error
        return seconds, 0.0

    @cached_property
    def simulated(self) -> SimulatedCluster:
        """The cluster of --cluster; ValueError naming `cluster` or the field."""
        return simulated_cluster(split_list(self.cluster))


@dataclass(frozen=True)
class Flags(CommonFlags):
    """The flags of a study."""

    through: Text = ""
    """train sizes one after another, up to this one, with a line of predicted against spent hours after each"""
    methods: Names = ()
    """names of those above (default: the preset's, else the study's); the baseline is always there, it is the unit"""
    law: Text = ""
    """learning rates and batches by a law: paper, demo or a law.json of lr_bs_grid; default: each size's own"""
    trust_law: bool = False
    """use a law against its evidence: one that is none, or more than ten times beyond the sizes that it is fitted to"""
    start: Text = ""
    """id of an imported model (gram import) that training begins with: its shape and tokenizer, the batch, data, rate
    and module width of the one size in --sizes"""
    maxent: Text = ""
    """id of a maxent_search whose best trials set MaxEnt's rate and weight of every profile; default: the preset's,
    which may be those of a search that runs first"""
    instructions: _shown(str, "FILE.jsonl") = ""
    """lines with `prompt` and `response` beside a corpus of local text, for the study finetuning: counts the loss of
    responses alone"""
    in_process: bool = False
    """run the nodes one after another in this process, without Ray; to stop in a debugger at an unexpected error:
    python -m pdb -c continue experiments/scaling.py --in-process"""
    export_nodes: Text = ""
    """write the missing nodes to this file, for a machine without Ray (docs/cluster.md), and start nothing"""

    @property
    def starts_nothing(self) -> bool:
        return self.dry_run or bool(self.export_nodes)

    @property
    def needs_ray(self) -> bool:
        return not self.in_process

    @property
    def choice(self) -> Choice:
        return replace(super().choice, instructions=self.instructions)

    @property
    def sources(self) -> dict[str, str]:
        """Where numbers of the study are from, by the flag that names it."""
        named = {"law": self.law, "maxent": self.maxent, "start": self.start}
        return {flag: source for flag, source in named.items() if source}


AnyFlags = TypeVar("AnyFlags", bound=CommonFlags)


def parse(study: Study, arguments: list[str] | None = None) -> Flags:
    """Returns the checked flags of a study; ValueError as `checked`."""
    return checked(study, parse_flags(Flags, study.about, arguments))


def parse_flags(
    kind: type[AnyFlags], description: str, arguments: list[str] | None = None, prog: str | None = None
) -> AnyFlags:
    """Parses the command line of `prog`; ends the process with usage on `--help` and on unknown flags."""
    unnamed = Annotated[kind, tyro.conf.arg(name="")]
    config = (tyro.conf.OmitArgPrefixes,)
    return tyro.cli(unnamed, prog=prog, args=arguments, description=description, config=config)


def checked(study: Study, flags: Flags) -> Flags:
    """Returns the flags with defaults and lists filled in; ValueError naming the flag, the value and the expected."""
    if flags.instructions:
        place = absolute_place("instructions", flags.instructions)
        flags = replace(flags, instructions=place, changes=on_responses(study, flags.changes))
    flags = checked_common(study, flags)
    preset = with_changes(study, flags.preset, flags.changes).presets[flags.preset]
    if flags.through:
        require_choice("through", flags.through, flags.sizes)
        flags = replace(flags, sizes=flags.sizes[: flags.sizes.index(flags.through) + 1])
    methods = split_list(flags.methods) or preset.methods or study.methods
    for method in methods:
        require_choice("methods", method, tuple(METHODS))
    if flags.start and len(flags.sizes) > 1:
        raise invalid("sizes", ", ".join(flags.sizes), "one size beside --start, whose batch, data and rate are taken")
    if flags.start and flags.ranks.of_size:
        raise invalid("num_workers", ", ".join(flags.num_workers), "one number of ranks, or auto, beside --start")
    for size in flags.sizes if flags.in_process else ():
        if (wanted := flags.ranks.wanted(size)) != 1:
            raise invalid("num_workers", wanted, "1 for every size, beside --in-process")
    if flags.export_nodes and flags.start:
        raise invalid("export_nodes", flags.export_nodes, "a study without --start: imported weights are not exported")
    if flags.trust_law and not flags.law:
        raise invalid("trust_law", True, "--law beside it, the law to trust")
    if flags.law:
        preset.by_law(load_law(flags.law)).require_ranks(flags.sizes, flags.ranks)
    return replace(flags, methods=("baseline", *(m for m in METHODS if m in methods and m != "baseline")))


def checked_common(study: Study, flags: AnyFlags) -> AnyFlags:
    """Returns the common flags with defaults and lists filled in; ValueError as `checked`."""
    name, changes = read_preset(study.presets, flags.preset or study.default_preset, flags.changes)
    preset = with_changes(study, name, changes).presets[name]
    storage = storage_place(flags.storage)
    sizes = split_list(flags.sizes) or tuple(preset.sizes)
    for size in sizes:
        require_choice("sizes", size, tuple(preset.sizes))
    if flags.device == "cpu" and flags.machine not in ("", "cpu"):
        raise invalid("machine", flags.machine, "no value or cpu beside --device cpu, which plans for CPUs")
    flags = replace(
        flags,
        preset=name,
        changes=changes,
        storage=storage,
        tracking_uri=tracking_place(flags.tracking_uri, storage),
        corpus=corpus_place(flags.corpus, preset),
        retain=split_list(flags.retain),
        sizes=tuple(size for size in preset.sizes if size in sizes),
        machine=flags.machine or preset.machine,
    )
    flags = with_device(flags, flags.device)
    _require_common(flags)
    preset.require_ranks(flags.sizes, flags.ranks)
    return flags


def with_device(flags: AnyFlags, device: str) -> AnyFlags:
    """Returns the flags of a submission whose nodes are executed on a device; on CPUs all plans are for CPUs."""
    return replace(flags, device=device, machine="cpu" if device == "cpu" else flags.machine)


def _require_common(flags: CommonFlags) -> None:
    """ValueError for a number, a choice or a form that neither studies nor searches take."""
    require_int("seeds", flags.seeds, 0, 1000)
    require_int("first_seed", flags.first_seed, -1, 2**31)
    require_int("threads", flags.threads, 1)
    require_real("collective_timeout", flags.collective_timeout, 0.0, MAX_TIMEOUT_S, open_low=True)
    require_real("stall_timeout", flags.stall_timeout, 0.0, MAX_TIMEOUT_S, open_low=True)
    require_real("max_hours", flags.max_hours, 0.0)
    require_real("max_cost", flags.max_cost, 0.0)
    require_real("confirm_above", flags.confirm_above, 0.0)
    require_int("max_gpus", flags.max_gpus, 0)
    require_int("gpus_per_machine", flags.gpus_per_machine, 1)
    require_real("gpus_per_run", flags.gpus_per_run, 0.0, 1.0, open_low=True)
    require_choice("device", flags.device or "cpu", ("cpu", "cuda"))
    require_choice("machine", flags.machine, tuple(MACHINES))
    if flags.simulate and not flags.dry_run:
        raise invalid("simulate", True, "--dry-run beside it: a simulation starts nothing")
    if flags.max_gpus and flags.ranks.most:
        raise invalid(
            "num_workers", " ".join(flags.num_workers), "one number: a range cannot be combined with --max-gpus"
        )
    # Raises ValueError unless they can be resolved.
    _ = flags.checkpoint_interval, flags.simulated
