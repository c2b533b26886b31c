"""Declares and parses the flags of studies and searches.

`--help` shows a box for each dataclass. All boxes but one are the same for every command. Only
`make_plan.py` and searches read the flags' values.
"""

import functools
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from inspect import isfunction, signature
from typing import Annotated, Any, Literal, get_args

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from gram_platform.config import endings
from gram_platform.config.identity import mask_secrets, one_of
from gram_platform.planner import MACHINES

# Flags have neither box names as prefixes nor --no- variants.
FLAG_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def show_as(kind: Any, metavar: str) -> Any:
    """Returns a flag type that `--help` shows with `metavar` and without a default."""
    return Annotated[kind, tyro.conf.arg(metavar=metavar, help_behavior_hint="")]


def choice(*values: str) -> Any:
    """Returns the type of a flag that accepts these values. `--help` hides its default, ""."""
    return show_as(Literal["", *values], f"{{{','.join(values)}}}")


SET = tyro.conf.arg(name="set", metavar="FIELD=VALUE ...", help_behavior_hint="")
Text, Texts = show_as(str, "TEXT"), show_as(tuple[str, ...], "TEXT ...")
Place, Names = show_as(str, "FOLDER|URL"), show_as(tuple[str, ...], "NAME ...")
Number, Amount = show_as(int, "INT"), show_as(float, "FLOAT")
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


# How to set values that have flags in other trainers and commands.
SET_INSTEAD = {
    "--lr": "--set 'sizes[SIZE].peak_lr=1e-3'",
    "--batch-size": "--set 'sizes[SIZE].batch_size=16'",
    "--epochs": "--set 'sizes[SIZE].core_tokens=1000000'",
    "--trials": "--lrs and --batches of lr_bs_grid, or --knobs of hyperparams",
}

# Lets `tyro.cli` suggest values in errors. Shell completion needs tyro's own check, so it is
# generated without this registry.
CHOICES = ConstructorRegistry()


@CHOICES.primitive_rule
def _choice(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type_origin is not Literal:
        return None
    values = get_args(info.type)
    named = tuple(filter(None, values))

    def read(texts: Sequence[str]) -> str:
        [text] = texts
        if text not in values:
            raise ValueError(f"{text!r}: expected {one_of(text, named)}")
        return text

    metavar = f"{{{','.join(named)}}}"
    return PrimitiveConstructorSpec(1, metavar, read, values.__contains__, lambda value: [value])


@CHOICES.primitive_rule
def _integer(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    if info.type is not int:
        return None

    def read(texts: Sequence[str]) -> int:
        try:
            return int(*texts)
        except ValueError:
            raise ValueError(f"{texts[0]!r}: expected an integer") from None

    return PrimitiveConstructorSpec(1, "INT", read, lambda n: type(n) is int, lambda n: [str(n)])


@dataclass(frozen=True)
class SubjectFlags:
    """What is trained, on how many seeds, and on which text.

    Args:
        preset: a preset listed above (`paper` follows the paper's text, `as_run` the authors'
            settings), or a file with changed fields and a preset's name as `base` (see Studies in
            the documents)
        changes: fields of the preset to change, such as routing.p_aux_spread=0.1
            'sizes[0.6M].peak_lr=2e-3'
        sizes: names of sizes (default: all sizes of the preset)
        seeds: number of seeds per size (default: the preset's, which may depend on the size)
        first_seed: the first of the consecutive seeds (default: the preset's)
        corpus: a corpus listed above, a folder of .jsonl/.parquet with `text` and `label`, a .json
            of labelled globs, a .toml recipe, or hf://ORG/NAME?label=FIELD&text=FIELD (see Studies
            in the documents)
        core_label: label of core, or several separated by commas (default: core, or the catalog's);
            every other label is an auxiliary domain
        core_tokenizer: train the tokenizer only on core's text, so that exports have no vocabulary
            of removed domains
        retain: auxiliary domains to compare, each in a profile that retains core and this domain
    """

    title = "subject"

    preset: show_as(str, "NAME|FILE.toml") = ""
    changes: Annotated[tuple[str, ...], SET] = ()
    sizes: Names = ()
    seeds: Number = 0
    first_seed: Number = -1
    corpus: show_as(str, "NAME|FOLDER|FILE|hf://...") = ""
    core_label: Text = ""
    core_tokenizer: Switch = False
    retain: Names = ()


@dataclass(frozen=True)
class StorageFlags:
    """Where results are stored.

    Args:
        storage: folder or fsspec URL for runs and results (default: $GRAM_STORAGE, or ~/.gram)
        tracking_uri: MLflow server or database (default: SQLite in the storage)
        optuna_uri: Optuna's database for searches (default: SQLite in the storage)
    """

    title = "storage"

    storage: Place = ""
    tracking_uri: show_as(str, "URL") = ""
    optuna_uri: show_as(str, "URL") = ""


@dataclass(frozen=True)
class DeviceFlags:
    """Where runs train, and how.

    Args:
        device: where runs train, remembered for each study (default: cuda if Ray has a GPU;
            required if the preset is for GPUs and the cluster starts machines on demand)
        num_workers: ranks per run: a number, size=number for a single size, a range such as 4..8 to
            use as many as fit at each start, or auto for the numbers that finish the study soonest
            (default: auto on GPUs, 1 on CPUs)
        threads: CPU threads per rank; only the same number reproduces a run bit for bit
        max_gpus: the most GPUs, or CPU slots, to use at once (default: all that the cluster has or
            can start)
        gpus_per_run: share of a GPU for a single-rank run or an evaluation; at 0.125, eight small
            runs share a GPU
        gpus_per_machine: GPUs per machine that an autoscaler starts; a run with at most this many
            ranks stays on one machine
        activation_checkpointing: recompute blocks in the backward pass: less memory, a third more
            time
        compile: compile blocks and loss with torch.compile if possible (default: on GPUs, for runs
            of at least 50M parameters and five minutes)
        no_compile: compile nothing
        deterministic: on GPUs, use only deterministic algorithms; slower, but results are
            identical on the same kind of GPU
    """

    title = "device"

    device: choice("cpu", "cuda") = ""
    num_workers: Texts = ()
    threads: int = 1
    max_gpus: Number = 0
    gpus_per_run: float = 1.0
    gpus_per_machine: int = 8
    activation_checkpointing: Switch = False
    compile: Switch = False
    no_compile: Switch = False
    deterministic: Switch = False


@dataclass(frozen=True)
class CostFlags:
    """What a submission may cost, and how its cost is predicted.

    Args:
        dry_run: print what would run, what it costs and what is already done; start nothing
        hardware: GPUs to plan for, such as 8xH100; they determine the predicted time and the ranks
            of runs (default: the available GPUs)
        machine: the kind of GPU assumed for hours, memory and prices (default: the preset's; cpu
            with --device cpu)
        max_hours: start no run or trial after this many GPU or CPU-slot hours in total over all
            submissions (default: no limit)
        max_cost: the same limit in dollars, at the price of --machine (default: no limit)
        confirm_above: predicted dollars above which a submission needs --yes or --max-cost
        yes: start at any predicted cost
    """

    title = "cost"

    dry_run: Switch = False
    hardware: show_as(str, "NxKIND") = ""
    machine: choice(*MACHINES) = ""
    max_hours: Amount = 0.0
    max_cost: Amount = 0.0
    confirm_above: float = 500.0
    yes: Switch = False


@dataclass(frozen=True)
class ExecutionFlags:
    """How processes save, time out and report.

    Args:
        checkpoint_every: seconds between checkpoints; auto: 30, or more if writing takes more than
            two percent of the time
        stall_timeout: seconds without a training step after which a single-rank run is restarted;
            for an evaluation, seconds in total
        collective_timeout: seconds that ranks wait for one another before they restart from the
            last checkpoint
        retry_failed: retrain runs whose loss became non-finite
        notify: a webhook, such as Slack's, that receives a message at the end (see On a cluster in
            the documents)
        verbose: print the workers' output, which `ray job logs` also shows
    """

    title = "execution"

    checkpoint_every: Annotated[str, tyro.conf.arg(metavar="SECONDS|auto")] = "auto"
    stall_timeout: float = 7200.0
    collective_timeout: float = 600.0
    retry_failed: Switch = False
    notify: show_as(str, "URL") = ""
    verbose: Switch = False


@dataclass(frozen=True)
class StudyFlags:
    """Flags that only studies have.

    Args:
        methods: methods listed above (default: the preset's, otherwise the study's); the baseline
            is always added
        through: train sizes one by one up to this one; print predicted and spent hours after each
        law: scaling law for learning rates and batches: paper, demo or a law.json of `lr_bs_grid`
            (default: each size's own values)
        trust_law: use --law even if its fit was rejected or is extrapolated more than tenfold
        start: id of an imported model (gram import) to start from; the model sets shape and
            tokenizer, and the single size in --sizes sets batch, data, rate and module width
        maxent: id of a `maxent_search` whose best trials set MaxEnt's rate and weight for each
            profile (default: the preset's values, or a search that runs first)
        attack_steps: the most steps of every attack (default: the preset's)
        instructions: file of lines with `prompt` and `response` to add to a local corpus; the
            `finetuning` study then computes the loss only on responses
        recall: share of a domain's training text with the domain's label; other text of the domain
            is labelled core
        precision: share of correct text among the text with a domain's label; the other text with
            this label is adjacent text
        adjacent: labels of the corpus whose text is labelled as a domain by mistake (default: all
            of core)
        texts: file of lines with `text` and `label` (a domain) instead of validation text:
            sentences for the study `token_localization`, prompts for `samples`
        in_process: run the nodes in this process without Ray, for example in a debugger
        export_nodes: write the missing nodes to this file, for a machine without Ray, and start
            nothing (see On a cluster in the documents)
    """

    title = "study"

    methods: Names = ()
    through: Text = ""
    law: Text = ""
    trust_law: Switch = False
    start: Text = ""
    maxent: Text = ""
    attack_steps: Number = 0
    instructions: show_as(str, "FILE.jsonl") = ""
    recall: Amount = 1.0
    precision: Amount = 1.0
    adjacent: Names = ()
    texts: show_as(str, "FILE.jsonl") = ""
    in_process: Switch = False
    export_nodes: Text = ""


@dataclass(frozen=True)
class MemberFlags:
    """Which studies and searches run.

    Args:
        studies: names of studies, or the word none (default: all)
        searches: names of searches to run after the studies, or the word none (default: all)
    """

    title = "campaign"

    studies: Names = ()
    searches: Names = ()


@dataclass(frozen=True)
class Flags:
    """The values of a command's flags. `own` has the flags that only this command has.

    Spaces or commas separate a flag's values. Only spaces separate those of `changes`.
    """

    own: Any = StudyFlags()
    subject: SubjectFlags = SubjectFlags()
    storage: StorageFlags = StorageFlags()
    device: DeviceFlags = DeviceFlags()
    cost: CostFlags = CostFlags()
    execution: ExecutionFlags = ExecutionFlags()


def parse_flags(
    own: type,
    description: str,
    arguments: list[str] | None = None,
    prog: str | None = None,
) -> Flags:
    """Parses the command line of `prog`. Exits on `--help` and on unknown flags."""
    description = "\n\n".join(map(_fold, description.split("\n\n")))
    subject, its_own, storage, device, cost, execution = parse(
        boxes_of(own),
        sys.argv[1:] if arguments is None else arguments,
        prog=prog,
        description=description,
        config=FLAG_STYLE,
    )
    return Flags(its_own, subject, storage, device, cost, execution)


def parse(form: Any, arguments: list[str], **how: Any) -> Any:
    """Parses a command line with tyro. Error messages hide secrets."""
    names = _flag_names(form)
    endings.flag_names.clear()
    endings.flag_names.update(names)
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag in SET_INSTEAD and "changes" in names and flag[2:] not in names:
            instead = SET_INSTEAD[flag]
            raise ValueError(f"{flag}: not a flag of this command; set this by {instead}")
    safe, how = list(map(mask_secrets, arguments)), {"registry": CHOICES, **how}
    unused = functools.wraps(form)(lambda *_, **__: None) if isfunction(form) else form
    unknown = tyro.cli(unused, args=safe, return_unknown_args=True, **how)[1]
    if unknown and not unknown[0].startswith("-") and (at := safe.index(unknown[0])):
        quoted = shlex.quote(" ".join(safe[at - 1 : at + 1]))
        raise ValueError(
            f"{unknown[0]}: not expected; a value with blanks needs quotes, as {quoted}"
        )
    return tyro.cli(form, args=safe if unknown else arguments, **how)


def _flag_names(form: Any) -> set[str]:
    if isfunction(form):
        parameters = signature(form).parameters
        kinds = {name: get_args(value.annotation)[1:] for name, value in parameters.items()}
        return {name for name, marks in kinds.items() if tyro.conf.Positional not in marks}
    return {field.name for box in get_args(form) for field in fields(get_args(box)[0])}


def boxes_of(own: type, values: Mapping[str, Iterable[str]] | None = None) -> Any:
    """Combines a command's flag classes into one type for tyro.

    `values` maps flags to their known values, for shell completion.
    """
    groups = (SubjectFlags, own, StorageFlags, DeviceFlags, CostFlags, ExecutionFlags)
    boxes = [_with_values(box, values) for box in groups] if values else groups
    return tuple[*(Annotated[box, tyro.conf.arg(name=box.title)] for box in boxes)]


def _with_values(box: type, values: Mapping[str, Iterable[str]]) -> type:
    declared = []
    for name, default in ((field.name, field.default) for field in fields(box)):
        if name in values:
            kind = Literal["", *values[name]]
            declared.append((name, tuple[kind, ...] if default == () else kind, default))
    return make_dataclass(box.__name__, declared, bases=(box,), frozen=True)


def _fold(paragraph: str) -> str:
    """Wraps a paragraph to the terminal's width. Indents later lines so that tyro keeps them."""
    width = shutil.get_terminal_size().columns - 1
    return textwrap.fill(paragraph, width, subsequent_indent="    ", break_on_hyphens=False)


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
