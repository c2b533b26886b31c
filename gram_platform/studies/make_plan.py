"""Turns a command's flags into the plan of a submission.

Imports only modules that load fast, so that flag errors appear quickly.
"""

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import (
    absolute_place,
    invalid,
    mask_secrets,
    one_of,
    require_choice,
    require_fields,
    require_real,
)
from gram_platform.config.ladder import load_law, require_evidence
from gram_platform.corpora import catalog_names
from gram_platform.corpora.records import read_texts
from gram_platform.engine.execution import Execution, Resources
from gram_platform.methods import METHODS
from gram_platform.methods.measurements import Samples, TokenIncreases
from gram_platform.methods.nodes import BASELINE
from gram_platform.planner import MACHINES, Budget
from gram_platform.planner.ranks import AUTO, BY_DEVICE, Ranks
from gram_platform.store import Store
from gram_platform.store.root import storage_place
from gram_platform.studies.build import from_import, with_nodes
from gram_platform.studies.definition import (
    SOURCES,
    Preset,
    Study,
    on_responses,
    with_preset,
)
from gram_platform.studies.flags import DeviceFlags, Flags, StudyFlags, split_list
from gram_platform.studies.plan import CPU, Choice, Plan, StudyPlan

AUTO_INTERVAL = "auto"
# Eleven days, which torch's clock in nanoseconds can hold.
MAX_TIMEOUT_S = 1e6
# The rest of a webhook's address is often a key.
BEHIND_HOST = re.compile(r"(?<![:/])[/?#].*", re.DOTALL)


def make_plan(study: Study, flags: Flags) -> Plan:
    """Returns the plan of a study with all its nodes. A ValueError names the invalid flag."""
    own = flags.own
    assert isinstance(own, StudyFlags)
    # A misspelt name must not wait for MLflow's import.
    _require_methods(given := split_list(own.methods))
    changes, instructions = flags.subject.changes, ""
    if own.instructions:
        instructions = absolute_place("instructions", own.instructions)
        changes = on_responses(study, changes)
    if own.attack_steps:
        changes = (*changes, f"options.elicitation.num_steps={own.attack_steps}")
    shares = {"recall": own.recall, "precision": own.precision}
    changes += tuple(f"options.{name}={share}" for name, share in shares.items() if share != 1.0)
    part = read_study(study, flags, changes)
    plan = plan_of(flags, (part,))
    methods = given or part.preset.methods or study.methods
    _require_methods(methods)
    methods = (BASELINE, *(m for m in METHODS if m in methods and m != BASELINE))
    sizes = part.choice.sizes
    if own.through:
        require_choice("through", own.through, sizes)
        sizes = sizes[: sizes.index(own.through) + 1]
    part = replace(
        part,
        choice=replace(
            part.choice,
            sizes=sizes,
            instructions=instructions,
            adjacent=split_list(own.adjacent),
        ),
        methods=methods,
        sources={flag: source for flag in SOURCES if (source := getattr(own, flag))},
    )
    if own.in_process and not flags.device.num_workers:
        part = replace(part, ranks=replace(part.ranks, number=1))
    _require_consistent(own, part)
    if own.in_process:
        _require_defaults(flags, OF_RAY, "--in-process")
    if own.start:
        preset = from_import(part.preset, sizes[0], Store(part.choice.storage), own.start)
        part = replace(part, preset=preset, choice=replace(part.choice, sizes=tuple(preset.sizes)))
    part = with_nodes(_by_law(_on_texts(part, own.texts), own.law, own.trust_law))
    lengths = {n.config.num_steps for n in part.entries if n.is_attack}
    if own.attack_steps and lengths != {own.attack_steps}:
        raise invalid("attack_steps", own.attack_steps, "a study that does not vary them")
    if own.adjacent and all(setting.options.precision == 1.0 for setting in part.settings):
        raise invalid(
            "adjacent",
            ", ".join(own.adjacent),
            "also --precision below 1, without which no text has a wrong label",
        )
    return replace(
        plan,
        studies=(part,),
        in_process=own.in_process,
        through=bool(own.through),
        export_nodes=own.export_nodes,
    )


def _require_consistent(own: StudyFlags, part: StudyPlan) -> None:
    sizes, ranks = part.choice.sizes, part.ranks
    if own.start and len(sizes) > 1:
        expected = "one size with --start, for its batch, data and rate"
        raise invalid("sizes", ", ".join(sizes), expected)
    if own.start and ranks.of_size:
        given = ", ".join(f"{size}={number}" for size, number in ranks.of_size)
        raise invalid("num_workers", given, "one number of ranks, or auto, with --start")
    for number in map(ranks.number_of, sizes) if own.in_process else ():
        if number != 1:
            raise invalid("num_workers", number, "1 for every size with --in-process")
    if own.export_nodes and own.start:
        expected = "a study without --start: imported weights are not exported"
        raise invalid("export_nodes", own.export_nodes, expected)
    if own.trust_law and not own.law:
        raise invalid("trust_law", True, "--law with it, the law to trust")
    if own.law:
        part.preset.by_law(load_law(own.law)).require_ranks(sizes, ranks)


# Flags without an effect in this process, and on CPUs.
OF_RAY = ("max_gpus", "gpus_per_machine", "stall_timeout", "collective_timeout", "verbose")
OF_GPUS = ("gpus_per_run", "gpus_per_machine", "no_compile", "deterministic")


def _require_defaults(flags: Flags, names: Iterable[str], beside: str) -> None:
    given, usual = (vars(boxes.device) | vars(boxes.execution) for boxes in (flags, Flags()))
    for name in names:
        if given[name] != usual[name]:
            raise invalid(name, given[name], f"no value: it has no effect with {beside}")


def _require_methods(methods: Iterable[str]) -> None:
    for method in methods:
        require_choice("methods", method, METHODS)


def _on_texts(part: StudyPlan, place: str) -> StudyPlan:
    if not place:
        return part
    measurement = part.preset.measurement
    if not isinstance(measurement, TokenIncreases | Samples):
        expected = f"no file: {part.study.name}, unlike samples, measures no chosen texts"
        raise invalid("texts", place, expected)
    measurement = replace(measurement, texts=read_texts(place))
    return replace(part, preset=replace(part.preset, measurement=measurement))


def _by_law(part: StudyPlan, name: str, is_trusted: bool) -> StudyPlan:
    if not name:
        return part
    law, preset, doubts = load_law(name), part.preset, ()
    parameters = {s: total_parameters(preset.sizes[s].dense()) for s in part.choice.sizes}
    if is_trusted:
        doubts = law.doubts(parameters)
    else:
        require_evidence(law, name, parameters)
    return replace(part, preset=preset.by_law(law), law_doubts=doubts)


def read_study(study: Study, flags: Flags, changes: tuple[str, ...]) -> StudyPlan:
    """Reads the flags shared by studies and searches into a plan that has no nodes yet."""
    given, device, cost = flags.subject, flags.device, flags.cost
    study, name, changes = with_preset(study, given.preset or study.default_preset, changes)
    preset = study.presets[name]
    sizes = split_list(given.sizes) or tuple(preset.sizes)
    for size in sizes:
        if size not in preset.sizes:
            owners = [name for name, other in study.presets.items() if size in other.sizes]
            advice = f". --preset {' or '.join(owners)} has it" * bool(owners)
            raise invalid("sizes", size, one_of(size, preset.sizes) + advice)
    _, hardware = read_hardware(cost.hardware)
    given_machine = hardware or cost.machine
    if device.device == CPU and given_machine not in ("", CPU):
        expected = "no value or cpu with --device cpu, which plans for CPUs"
        raise invalid("hardware" if hardware else "machine", given_machine, expected)
    if hardware and cost.machine not in ("", hardware):
        raise invalid("machine", cost.machine, f"no value with --hardware {cost.hardware}")
    machine = CPU if device.device == CPU else hardware or cost.machine or preset.machine
    require_choice("machine", machine, MACHINES)
    ranks = read_ranks(device.num_workers)
    ranks = replace(ranks, machine=MACHINES[machine], checkpointing=device.activation_checkpointing)
    require_fields("", given, 0, "seeds", high=1000)
    require_fields("", given, -1, "first_seed", high=2**31)
    choice = Choice(
        sizes=tuple(size for size in preset.sizes if size in sizes),
        seeds=given.seeds,
        first_seed=given.first_seed,
        retain=split_list(given.retain),
        corpus=corpus_place(given.corpus, preset),
        core_label=given.core_label,
        core_tokenizer=given.core_tokenizer,
        storage=storage_place(flags.storage.storage),
    )
    preset.require_ranks(choice.sizes, ranks)
    return StudyPlan(study, name, tuple(map(mask_secrets, changes)), preset, choice, ranks)


def plan_of(flags: Flags, studies: Sequence[StudyPlan]) -> Plan:
    """Plans a submission of `studies` with the storage, device, cost and execution flags."""
    first, device, cost, execution = studies[0], flags.device, flags.cost, flags.execution
    require_fields("", cost, 0, "max_hours", "max_cost", "confirm_above")
    require_fields("", device, 0, "max_gpus")
    require_fields("", device, 1, "threads", "gpus_per_machine")
    require_fields("", device, 0, "gpus_per_run", high=1, open_low=True)
    for name in ("collective_timeout", "stall_timeout"):
        require_fields("", execution, 0, name, high=MAX_TIMEOUT_S, open_low=True)
    if device.device == CPU:
        _require_defaults(flags, OF_GPUS, "--device cpu")
    require_webhook(execution.notify)
    if device.max_gpus and first.ranks.most:
        given = " ".join(device.num_workers)
        expected = "one number: a range cannot be combined with --max-gpus"
        raise invalid("num_workers", given, expected)
    every_s, share = _checkpoint_interval(execution.checkpoint_every)
    budget = Budget(cost.max_hours, cost.max_cost, first.machine.dollars_per_hour)
    return Plan(
        tuple(studies),
        tracking_place(flags.storage.tracking_uri, first.choice.storage),
        Execution(
            first.choice.storage,
            num_threads=device.threads,
            checkpoint_every_s=every_s,
            commit_share=share,
            collective_timeout_s=execution.collective_timeout,
            stall_timeout_s=execution.stall_timeout,
            activation_checkpointing=device.activation_checkpointing,
            deterministic=device.deterministic,
        ),
        Resources(
            cpus_per_rank=float(device.threads),
            gpus_per_run=device.gpus_per_run,
            gpus_per_machine=device.gpus_per_machine,
            max_gpus=device.max_gpus,
        ),
        budget,
        math.inf if cost.yes or cost.max_cost else cost.confirm_above,
        device=device.device,
        retry_failed=execution.retry_failed,
        verbose=execution.verbose,
        dry_run=cost.dry_run,
        notify=execution.notify,
        optuna_uri=flags.storage.optuna_uri,
        num_slots=read_hardware(cost.hardware)[0],
        compiled=_read_compile(device),
    )


def _read_compile(device: DeviceFlags) -> bool | None:
    """Returns True to compile all runs, False for none, None for those GPU runs that gain time.

    Without flags, returns None. With --deterministic, returns False: torch.compile times kernels,
    and in another run may choose kernels that round sums differently.
    """
    if device.compile and device.no_compile:
        raise invalid("no_compile", True, "no value with --compile")
    if device.compile and device.deterministic:
        raise invalid("deterministic", True, "no value with --compile")
    return device.compile or (False if device.no_compile or device.deterministic else None)


def _checkpoint_interval(given: str) -> tuple[float, float]:
    """Returns (seconds between checkpoints, largest share of time that writing may take).

    A share of 0 means no limit.
    """
    if given == AUTO_INTERVAL:
        return 30.0, 0.02
    try:
        seconds = float(given)
        require_real("checkpoint_every", seconds, 0.0, open_low=True)
    except ValueError as error:
        expected = f"seconds above 0, or {AUTO_INTERVAL}"
        raise invalid("checkpoint_every", given, expected) from error
    return seconds, 0.0


def tracking_place(uri: str, storage: str) -> str:
    """Returns MLflow's URI, by default SQLite in the storage. Makes SQLite paths absolute."""
    from gram_platform.tracking import default_tracking_uri
    from gram_platform.tracking.connection import require_tracking_uri
    from gram_platform.tracking.database import with_absolute_path

    if not uri:
        return default_tracking_uri(storage)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return with_absolute_path("tracking_uri", uri)
    require_tracking_uri(uri)
    return uri


def corpus_place(corpus: str, preset: Preset) -> str:
    """Returns a corpus name, or an absolute path if `corpus` exists or looks like a path."""
    if not corpus and preset.corpus in catalog_names():
        return preset.corpus
    corpus = corpus or preset.corpus
    is_place = os.sep in corpus or corpus.startswith((".", "~")) or Path(corpus).exists()
    return absolute_place("corpus", corpus) if is_place else corpus


def read_hardware(text: str) -> tuple[int, str]:
    """Parses --hardware, such as 8xH100, into (number, machine). "" gives (0, "")."""
    if not text:
        return 0, ""
    number, _, kind = text.lower().partition("x")
    if not re.fullmatch("[1-9][0-9]{0,5}", number) or kind not in MACHINES:
        expected = f"a number and one of {', '.join(MACHINES)}, as 8xH100"
        raise invalid("hardware", text, expected)
    return int(number), kind


def read_ranks(texts: tuple[str, ...]) -> Ranks:
    """Parses --num-workers. By default, the planner chooses on GPUs, and CPUs have one rank."""
    ends_of: dict[str, tuple[int, int]] = {}
    for text in split_list(texts):
        size, _, value = text.rpartition("=")
        if size in ends_of:
            raise invalid("num_workers", " ".join(texts), f"one number for {size or 'all sizes'}")
        ends = value.split("..", 1)
        numbers = [int(n) if n.isascii() and n.isdigit() else 0 for n in ends]
        if value == "auto":
            numbers = [AUTO]
        elif min(numbers) < len(ends) or numbers != sorted(numbers):
            expected = "a number of ranks, a range as 4..8, or auto; for one size as size=number"
            raise invalid("num_workers", text, expected)
        ends_of[size] = numbers[0], numbers[-1]
    most = tuple((size, most) for size, (fewest, most) in ends_of.items() if most > fewest)
    number, _ = ends_of.pop("", (BY_DEVICE, 0))
    of_size = tuple((size, fewest) for size, (fewest, _) in ends_of.items())
    return Ranks(number, of_size, most=most)


def require_webhook(url: str) -> None:
    """Raises ValueError if `url` is invalid. "" is valid. The error hides all after the host."""
    try:
        parts = urlsplit(url)
        is_address = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError:
        is_address = False
    if url and not (is_address and url.isascii() and not re.search(r"[\s@'\"\x00-\x1f\x7f]", url)):
        expected = "an address such as https://host/path, without user, password, quotes and blanks"
        raise invalid("notify", BEHIND_HOST.sub("/***", mask_secrets(url)), expected)
