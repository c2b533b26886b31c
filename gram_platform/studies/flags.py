"""Declares the flags of studies and searches, in the boxes of `--help`, and parses them.

A box is a dataclass with a title. A command has one box of its own. Only `make_plan.py`, and
searches, read the flags.
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

# No names of boxes in flags, and no --no- twins.
FLAG_STYLE = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def shown(kind: Any, metavar: str) -> Any:
    """Returns the type of a flag that `--help` shows as `metavar`, without its default."""
    return Annotated[kind, tyro.conf.arg(metavar=metavar, help_behavior_hint="")]


def choice(*values: str) -> Any:
    """Returns the type of a flag with one of these values, or "" for its default."""
    return shown(Literal["", *values], f"{{{','.join(values)}}}")


SET = tyro.conf.arg(name="set", metavar="FIELD=VALUE ...", help_behavior_hint="")
Text, Texts = shown(str, "TEXT"), shown(tuple[str, ...], "TEXT ...")
Place, Names = shown(str, "FOLDER|URL"), shown(tuple[str, ...], "NAME ...")
Number, Amount = shown(int, "INT"), shown(float, "FLOAT")
# Off unless it is given.
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


# What sets the values for which other trainers and other commands have flags.
SET_INSTEAD = {
    "--lr": "--set 'sizes[SIZE].peak_lr=1e-3'",
    "--batch-size": "--set 'sizes[SIZE].batch_size=16'",
    "--epochs": "--set 'sizes[SIZE].core_tokens=1000000'",
    "--trials": "--lrs and --batches of lr_bs_grid, or --knobs of hyperparams",
}

# Lets `tyro.cli` suggest values too. The shell's completion needs the values that tyro itself
# checks, so it is written without this.
CHOICES = ConstructorRegistry()


@CHOICES.primitive_rule
def _choice(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Constructs a Literal of texts; "" is a default that nobody types."""
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
    """Constructs an integer."""
    if info.type is not int:
        return None

    def read(texts: Sequence[str]) -> int:
        try:
            return int(*texts)
        except ValueError:
            raise ValueError(f"{texts[0]!r}: expected an integer") from None

    is_integer = lambda value: type(value) is int  # noqa: E731
    return PrimitiveConstructorSpec(1, "INT", read, is_integer, lambda number: [str(number)])


@dataclass(frozen=True)
class SubjectFlags:
    """What is trained, how often, and on which text.

    Args:
        preset: one of those above; paper is as the paper's text prints it, as_run as the authors'
            settings have it; or a file with `base`, the name of a preset, and the fields that it
            changes (Studies in the documents)
        changes: fields of the preset to change, as routing.p_aux_spread=0.1
            'sizes[0.6M].peak_lr=2e-3'
        sizes: names of sizes (default: all of the preset)
        seeds: number of seeds of every size (default: the preset's, which may have fewer at large
            sizes)
        first_seed: the first seed, the others follow it (default: the preset's)
        corpus: a corpus above, a folder of .jsonl/.parquet with `text` and `label`, a .json of
            labelled globs, a .toml recipe, or hf://ORG/NAME?label=FIELD&text=FIELD
            (Studies in the documents)
        core_label: the label (or labels, with commas between) that is core, default core or the
            catalog's own; every other label is an auxiliary domain
        core_tokenizer: train the tokenizer on core's text alone: exports then ship no vocabulary of
            removed domains
        retain: auxiliary domains: each is compared in the profile core + that domain
    """

    title = "subject"

    preset: shown(str, "NAME|FILE.toml") = ""
    changes: Annotated[tuple[str, ...], SET] = ()
    sizes: Names = ()
    seeds: Number = 0
    first_seed: Number = -1
    corpus: shown(str, "NAME|FOLDER|FILE|hf://...") = ""
    core_label: Text = ""
    core_tokenizer: Switch = False
    retain: Names = ()


@dataclass(frozen=True)
class StorageFlags:
    """Where results go.

    Args:
        storage: folder or fsspec URL of runs and results; default $GRAM_STORAGE, else ~/.gram
        tracking_uri: MLflow server or database; default SQLite in the storage
        optuna_uri: Optuna's database of searches; default SQLite in the storage
    """

    title = "storage"

    storage: Place = ""
    tracking_uri: shown(str, "URL") = ""
    optuna_uri: shown(str, "URL") = ""


@dataclass(frozen=True)
class DeviceFlags:
    """On which devices a run trains, and how.

    Args:
        device: kept when the study is submitted again (default at first: cuda if Ray has a GPU;
            must be given where the preset plans for GPUs and the cluster starts machines on demand)
        num_workers: ranks of each run: a number, size=number for single sizes, a range as 4..8 for
            as many as can be placed at each start, or auto for those that end the study first on
            the GPUs that are there (default: auto on GPUs, 1 on CPUs)
        threads: CPU threads of a rank: part of what makes a run repeat bit for bit
        max_gpus: GPUs to ask the cluster for at once (default: what it has, or lets its autoscaler
            start); CPU slots on CPUs
        gpus_per_run: share of a GPU for a run of one rank, and for an evaluation: with 0.125 eight
            small runs share one
        gpus_per_machine: GPUs of the machines that an autoscaler starts for several ranks: so many
            ranks stay on one machine
        activation_checkpointing: compute every block again in the backward pass: less memory, a
            third more time (a dry run shows both)
        compile: compile blocks and loss with torch.compile, if it can; timing.json has the number
            of graphs (default: on GPUs, for runs from 50M parameters and five minutes on)
        no_compile: compile nothing
        deterministic: on a GPU, refuse algorithms whose sums have no fixed order: slower, the same
            bytes on the same kind of GPU
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
    """What it costs, and what it may cost.

    Args:
        dry_run: print what would run, what it costs and what is done already; start nothing
        hardware: machines to plan for, as 8xH100: their number decides how long the study takes
            and the ranks of each run (default: those that are there)
        machine: the kind of these machines, for hours, memory and prices (default: the preset's;
            cpu beside --device cpu)
        max_hours: stop starting runs or trials after this many machine hours (a slot's, or a
            GPU's), summed over all submissions (default: no limit)
        max_cost: the same in dollars, at the price of --machine (default: no limit)
        confirm_above: dollars, predicted of what is not done, above which a submission needs --yes
            or --max-cost
        yes: start whatever is predicted: nobody is ever asked, so a job that restarts needs it too
    """

    title = "cost"

    dry_run: Switch = False
    hardware: shown(str, "NxKIND") = ""
    machine: choice(*MACHINES) = ""
    max_hours: Amount = 0.0
    max_cost: Amount = 0.0
    confirm_above: float = 500.0
    yes: Switch = False


@dataclass(frozen=True)
class ExecutionFlags:
    """How processes work.

    Args:
        checkpoint_every: seconds between checkpoints; auto: 30, or as many more as keep writing
            them below two percent of the time
        stall_timeout: seconds without a training step after which a run of one rank starts again;
            also of an evaluation as a whole
        collective_timeout: seconds after which ranks that wait for one another give up and start
            again from the last checkpoint
        retry_failed: train runs again that ended with a non-finite loss
        notify: a webhook, of Slack or another, that gets a message when the submission ends: done,
            failed or limit reached (On a cluster in the documents)
        verbose: print what the workers print, into `ray job logs` too
    """

    title = "execution"

    checkpoint_every: Annotated[str, tyro.conf.arg(metavar="SECONDS|auto")] = "auto"
    stall_timeout: float = 7200.0
    collective_timeout: float = 600.0
    retry_failed: Switch = False
    notify: shown(str, "URL") = ""
    verbose: Switch = False


@dataclass(frozen=True)
class StudyFlags:
    """Of this study.

    Args:
        methods: names of those above (default: the preset's, else the study's); the baseline is
            always there, it is the unit
        through: train sizes one after another, up to this one, with a line of predicted against
            spent hours after each
        law: learning rates and batches by a law: paper, demo or a law.json of lr_bs_grid; default:
            each size's own
        trust_law: use a law against its evidence: one that is none, or more than ten times beyond
            the sizes that it is fitted to
        start: id of an imported model (gram import) that training begins with: its shape and
            tokenizer, the batch, data, rate and module width of the one size in --sizes
        maxent: id of a maxent_search whose best trials set MaxEnt's rate and weight of every
            profile; default: the preset's, which may be those of a search that runs first
        attack_steps: the most steps of every attack (default: the preset's); more make attacks anew
        instructions: lines with `prompt` and `response` beside a corpus of local text, for the
            study finetuning: counts the loss of responses alone
        texts: lines with `text` and `label`, a domain: the sentences that token_localization
            shades, or the prompts that samples continues, in place of validation text
        in_process: run the nodes one after another in this process, without Ray; to stop in a
            debugger at an unexpected error: python -m pdb -c continue -m gram_platform run scaling
            --in-process
        export_nodes: write the missing nodes to this file, for a machine without Ray
            (On a cluster in the documents), and start nothing
    """

    title = "study"

    methods: Names = ()
    through: Text = ""
    law: Text = ""
    trust_law: Switch = False
    start: Text = ""
    maxent: Text = ""
    attack_steps: Number = 0
    instructions: shown(str, "FILE.jsonl") = ""
    texts: shown(str, "FILE.jsonl") = ""
    in_process: Switch = False
    export_nodes: Text = ""


@dataclass(frozen=True)
class MemberFlags:
    """Which studies and searches.

    Args:
        studies: names of studies (default: all), or none
        searches: names of searches that follow the studies (default: all), or none
    """

    title = "campaign"

    studies: Names = ()
    searches: Names = ()


@dataclass(frozen=True)
class Flags:
    """The flags of a command: `own` are those of its kind alone, the others are shared.

    Lists take values separated by blanks or commas.
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
    """Parses the command line of `prog`; ends the process on `--help` and on unknown flags."""
    description = "\n\n".join(map(_folded, description.split("\n\n")))
    subject, its_own, storage, device, cost, execution = parse(
        boxes_of(own),
        sys.argv[1:] if arguments is None else arguments,
        prog=prog,
        description=description,
        config=FLAG_STYLE,
    )
    return Flags(its_own, subject, storage, device, cost, execution)


def parse(form: Any, arguments: list[str], **how: Any) -> Any:
    """Parses a command line with tyro, whose usage errors then repeat no secret of it."""
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
    """Returns the names of a command's flags, as its function or its boxes have them."""
    if isfunction(form):
        parameters = signature(form).parameters
        kinds = {name: get_args(one.annotation)[1:] for name, one in parameters.items()}
        return {name for name, marks in kinds.items() if tyro.conf.Positional not in marks}
    return {one.name for box in get_args(form) for one in fields(get_args(box)[0])}


def boxes_of(own: type, values: Mapping[str, Iterable[str]] | None = None) -> Any:
    """Returns the boxes of a command as the type that tyro parses.

    `values` has the known values of flags, which the shell's completion offers.
    """
    groups = (SubjectFlags, own, StorageFlags, DeviceFlags, CostFlags, ExecutionFlags)
    boxes = [_with_values(box, values) for box in groups] if values else groups
    return tuple[*(Annotated[box, tyro.conf.arg(name=box.title)] for box in boxes)]


def _with_values(box: type, values: Mapping[str, Iterable[str]]) -> type:
    """Returns a box in which flags with known values take no others."""
    chosen = {one.name: one.default for one in fields(box) if one.name in values}
    declared = []
    for name, default in chosen.items():
        kind = Literal["", *values[name]]
        declared.append((name, tuple[kind, ...] if default == () else kind, default))
    return make_dataclass(box.__name__, declared, bases=(box,), frozen=True)


def _folded(paragraph: str) -> str:
    """Breaks a paragraph at the terminal's width; tyro joins lines that begin with no blank."""
    width = shutil.get_terminal_size().columns - 1
    return textwrap.fill(paragraph, width, subsequent_indent="    ", break_on_hyphens=False)


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
