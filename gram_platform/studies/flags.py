"""Defines the flags of studies, and checks them before any work starts."""

import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, TypeVar

import tyro

from gram_platform.config.identity import (
    absolute_place,
    invalid,
    require_choice,
    require_fields,
    require_real,
)
from gram_platform.config.ladder import load_law
from gram_platform.methods import METHODS
from gram_platform.planner import AUTO, MACHINES, Budget, Machine, Ranks
from gram_platform.store.root import storage_place
from gram_platform.studies.definition import Study, on_responses, read_preset, with_changes
from gram_platform.studies.flag_groups import (
    CHOICES,
    CostFlags,
    DeviceFlags,
    ExecutionFlags,
    FlagGroup,
    MemberFlags,
    SizeFlags,
    StorageFlags,
    StudyFlags,
    SubjectFlags,
)
from gram_platform.studies.flag_values import (
    Choice,
    Limits,
    corpus_place,
    read_ranks,
    split_list,
    tracking_place,
)
from gram_platform.studies.webhook import require_webhook

AUTO_INTERVAL = "auto"
# How tyro reads flags: without the names of their boxes, and without --no- twins.
FLAG_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
# Eleven days; torch's clock in nanoseconds can hold it.
MAX_TIMEOUT_S = 1e6


@dataclass(frozen=True)
class CommonFlags(SubjectFlags, SizeFlags, StorageFlags, DeviceFlags, CostFlags, ExecutionFlags):
    """The flags that studies and searches share. Lists take values separated by blanks or commas.

    The properties say what checked flags mean; each is resolved once.
    """

    @cached_property
    def hardware(self) -> Machine:
        return MACHINES[self.machine]

    @cached_property
    def limits(self) -> Limits:
        budget = Budget(self.max_hours, self.max_cost, self.hardware.dollars_per_hour)
        return Limits(budget, self.confirm_above, self.yes)

    @property
    def choice(self) -> Choice:
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
        """Seconds between checkpoints, and the share of the time that they may take (0: any).

        ValueError for others.
        """
        if self.checkpoint_every == AUTO_INTERVAL:
            return 30.0, 0.02
        try:
            seconds = float(self.checkpoint_every)
            require_real("checkpoint_every", seconds, 0.0, open_low=True)
        except ValueError as error:
            raise invalid(
                "checkpoint_every", self.checkpoint_every, f"seconds above 0, or {AUTO_INTERVAL}"
            ) from error
        return seconds, 0.0


@dataclass(frozen=True)
class Flags(StudyFlags, CommonFlags):
    """The flags of a study."""

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


@dataclass(frozen=True)
class CampaignFlags(MemberFlags, CommonFlags):
    """The flags of all studies and searches together."""


AnyFlags = TypeVar("AnyFlags", bound=CommonFlags)


def parse(study: Study, arguments: list[str] | None = None, prog: str | None = None) -> Flags:
    """Returns the checked flags of a study; ValueError as `checked`."""
    return checked(study, parse_flags(Flags, study.about, arguments, prog))


def parse_flags(
    kind: type[AnyFlags],
    description: str,
    arguments: list[str] | None = None,
    prog: str | None = None,
) -> AnyFlags:
    """Parses the command line of `prog`; ends the process with usage on `--help` and on unknown
    flags."""
    description = "\n\n".join(map(_folded, description.split("\n\n")))
    found = tyro.cli(
        boxes_of(kind),
        prog=prog,
        args=arguments,
        description=description,
        config=FLAG_STYLE,
        registry=CHOICES,
    )
    return kind(
        **{field.name: getattr(group, field.name) for group in found for field in fields(group)}
    )


def boxes_of(kind: type[CommonFlags]) -> Any:
    """Returns the groups of flags as the type that tyro parses: a box of `--help` for each."""
    return tuple[*(Annotated[group, tyro.conf.arg(name=group.title)] for group in groups_of(kind))]


def groups_of(kind: type[CommonFlags]) -> list[type[FlagGroup]]:
    """Returns the groups from which flags inherit every field: the subject, those of the kind, the
    others."""
    groups = [
        one
        for one in kind.__mro__
        if issubclass(one, FlagGroup) and not issubclass(one, CommonFlags)
    ]
    broader = {base for one in groups for base in one.__mro__[1:]}
    return sorted(
        (one for one in groups if one not in broader), key=lambda group: group is not SubjectFlags
    )


def _folded(paragraph: str) -> str:
    """Breaks a paragraph at the terminal's width; tyro joins lines again, but not those that begin
    with a blank."""
    width = shutil.get_terminal_size().columns - 1
    return textwrap.fill(paragraph, width, subsequent_indent="    ", break_on_hyphens=False)


def checked(study: Study, flags: Flags) -> Flags:
    """Returns the flags with defaults and lists filled in.

    ValueError naming the flag, the value and the expected.
    """
    # Before any place is looked at: a misspelt name needs no MLflow.
    _require_methods(given := split_list(flags.methods))
    if flags.instructions:
        place = absolute_place("instructions", flags.instructions)
        flags = replace(flags, instructions=place, changes=on_responses(study, flags.changes))
    flags = checked_common(study, flags)
    preset = with_changes(study, flags.preset, flags.changes).presets[flags.preset]
    if flags.through:
        require_choice("through", flags.through, flags.sizes)
        flags = replace(flags, sizes=flags.sizes[: flags.sizes.index(flags.through) + 1])
    methods = given or preset.methods or study.methods
    _require_methods(methods)
    if flags.start and len(flags.sizes) > 1:
        raise invalid(
            "sizes",
            ", ".join(flags.sizes),
            "one size beside --start, whose batch, data and rate are taken",
        )
    if flags.start and flags.ranks.of_size:
        raise invalid(
            "num_workers",
            ", ".join(flags.num_workers),
            "one number of ranks, or auto, beside --start",
        )
    for size in flags.sizes if flags.in_process else ():
        if (wanted := flags.ranks.wanted(size)) != 1:
            raise invalid("num_workers", wanted, "1 for every size, beside --in-process")
    if flags.export_nodes and flags.start:
        raise invalid(
            "export_nodes",
            flags.export_nodes,
            "a study without --start: imported weights are not exported",
        )
    if flags.trust_law and not flags.law:
        raise invalid("trust_law", True, "--law beside it, the law to trust")
    if flags.law:
        preset.by_law(load_law(flags.law)).require_ranks(flags.sizes, flags.ranks)
    return replace(
        flags, methods=("baseline", *(m for m in METHODS if m in methods and m != "baseline"))
    )


def _require_methods(methods: Iterable[str]) -> None:
    for method in methods:
        require_choice("methods", method, METHODS)


def checked_common(study: Study, flags: AnyFlags) -> AnyFlags:
    """Returns the common flags with defaults and lists filled in; ValueError as `checked`."""
    name, changes = read_preset(study.presets, flags.preset or study.default_preset, flags.changes)
    preset = with_changes(study, name, changes).presets[name]
    sizes = split_list(flags.sizes) or tuple(preset.sizes)
    for size in sizes:
        require_choice("sizes", size, tuple(preset.sizes))
    if flags.device == "cpu" and flags.machine not in ("", "cpu"):
        raise invalid(
            "machine", flags.machine, "no value or cpu beside --device cpu, which plans for CPUs"
        )
    storage = storage_place(flags.storage)
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
    """Returns the flags of a submission whose nodes are executed on a device; on CPUs all plans are
    for CPUs."""
    return replace(flags, device=device, machine="cpu" if device == "cpu" else flags.machine)


def _require_common(flags: CommonFlags) -> None:
    """ValueError for a number, a choice or a form that neither studies nor searches take."""
    require_fields("", flags, 0, "seeds", high=1000)
    require_fields("", flags, -1, "first_seed", high=2**31)
    require_fields("", flags, 0, "max_hours", "max_cost", "confirm_above", "max_gpus")
    require_fields("", flags, 1, "threads", "gpus_per_machine")
    require_fields("", flags, 0, "gpus_per_run", high=1, open_low=True)
    require_fields(
        "", flags, 0, "collective_timeout", "stall_timeout", high=MAX_TIMEOUT_S, open_low=True
    )
    require_choice("device", flags.device or "cpu", ("cpu", "cuda"))
    require_choice("machine", flags.machine, tuple(MACHINES))
    require_webhook(flags.notify)
    if flags.max_gpus and flags.ranks.most:
        raise invalid(
            "num_workers",
            " ".join(flags.num_workers),
            "one number: a range cannot be combined with --max-gpus",
        )
    # Raises ValueError unless it can be resolved.
    _ = flags.checkpoint_interval
