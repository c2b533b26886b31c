"""Implements `gram eval`, `export`, `import`, `serve` and `token`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gram_platform.cli.flags import (
    Positional,
    RunText,
    Storage,
    TrackingUri,
    find_run,
    open_existing,
    report_progress,
)
from gram_platform.config import IMPORTED
from gram_platform.config.endings import outlive_output
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import (
    invalid,
    local_path,
    one_of,
    require_int,
    require_name,
    require_real,
)
from gram_platform.config.terminal import say
from gram_platform.release import MAX_WEIGHTS_BYTES
from gram_platform.release.selection import available_modules, parse_modules, parse_sources
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.store.root import storage_place
from gram_platform.studies.flags import Names, Number, Place, Switch, Text, show_as


def eval_command(
    run_id: RunText,
    tasks: Names,
    profiles: tuple[str, ...] = ("core", "all"),
    include_path: Place = "",
    limit: Number = 0,
    num_fewshot: Number = -1,
    storage: Storage = "",
    device: Literal["cpu", "cuda"] = "cpu",
    precision: Literal["float32", "bfloat16"] = "float32",
    out: Place = "",
) -> None:
    """Evaluate profiles of a run on tasks of the LM Evaluation Harness (needs the extra `eval`).

    Scores are stored and reused. If a small model only guesses, its accuracy says little. Compare
    the bits per byte of the right answers instead.

    Args:
        run_id: beginning of a complete run's id or name
        tasks: task names, such as wmdp_bio mmlu hellaswag
        profiles: profiles to compare, such as core, core+virology or all
        include_path: folder with your own task files (.yaml)
        limit: number of documents of each task, starting with the first (default: all)
        num_fewshot: number of solved examples before each question (default: as the task defines)
        device: cpu or cuda
        precision: float32 or bfloat16
        out: .csv file to write the table to
    """
    from gram_platform.analysis.tables import frame_text, table_csv
    from gram_platform.release.task_scores import Benchmark, parse_profile, score_profiles

    require_int("limit", limit, 0)
    require_int("num_fewshot", num_fewshot, -1)
    if not tasks or not profiles:
        raise invalid("profiles" if tasks else "tasks", (), "one or more names")
    place = local_path("out", out) if out else None
    if place is not None:
        written = place if place.exists() else place.parent
        if place.is_dir() or not place.parent.is_dir() or not os.access(written, os.W_OK):
            raise invalid("out", str(place), "a file that can be written, in a folder that exists")
    store = open_existing(storage)
    model = available_modules(store, find_run(store, run_id))
    store.run(model.run_id).require_result()
    views = {name: parse_profile(model, name) for name in dict.fromkeys(profiles)}
    benchmark = Benchmark(tuple(dict.fromkeys(tasks)), include_path, num_fewshot, limit).validate()
    table = score_profiles(store.open_for_writing(), views, benchmark, device, precision, print)
    if place is not None:
        place.write_text(table_csv(table), encoding="utf-8")
    say(f"\n{frame_text(table, missing='nan')}")


def export_command(
    run_id: RunText,
    out: Place = "",
    modules: show_as(str | None, "TEXT") = None,
    all_modules: Switch = False,
    sources: Text = "",
    storage: Storage = "",
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_file_gb: float = MAX_WEIGHTS_BYTES / 1e9,
    check: Literal["own", "transformers"] = "own",
    push: Text = "",
    register: Text = "",
    tracking_uri: TrackingUri = "",
) -> None:
    """Write a view as a stock checkpoint (StarCoder2 or Llama).

    The checkpoint has no weights of modules that are switched off.

    Args:
        run_id: beginning of the id or name of a complete run or imported model
        out: a new or empty folder
        modules: modules to switch on, such as virology,lisp=0.5; "" is core alone
        all_modules: switch on every module
        sources: run to take a module from if several runs trained it (FT-LoRA, FT-MLP), such as
            virology=RUN_ID
        dtype: data type of the checkpoint
        max_file_gb: maximum size of a file; larger checkpoints are split
        check: `own` compares the files with the view; `transformers` also runs the files in the
            library transformers
        push: ORG/NAME of the Hugging Face repository to upload to; new repositories are private
        register: model in MLflow's registry that gets the checkpoint as a new version
    """
    from gram_platform.release.card import card_subject, card_text
    from gram_platform.release.export import CARD, RECORD, ExportRequest, export_view
    from gram_platform.release.profile_numbers import profile_numbers
    from gram_platform.release.publishing import push_export, require_hub

    if not out:
        raise invalid("out", out, "a folder for the checkpoint")
    place = local_path("out", out)
    require_real("max_file_gb", max_file_gb, 0.0, open_low=True)
    if push:
        require_hub(push)
    store = open_existing(storage)
    model = available_modules(store, find_run(store, run_id))
    if modules is None and not all_modules and model.modules:
        raise invalid(
            "modules",
            modules,
            f'names of {", ".join(model.modules)}, "" for core alone, or --all-modules',
        )
    if modules is not None and all_modules:
        raise invalid("modules", modules, "no value with --all-modules")
    wanted = dict.fromkeys(model.modules, 1.0) if all_modules else parse_modules(modules or "")
    origins = {domain: store.find_run(run) for domain, run in parse_sources(sources).items()}
    if register:
        require_name("register", register)
        if model.run_id.startswith(IMPORTED):
            allowed = "no name for an imported model, which has no run in MLflow"
            raise invalid("register", register, allowed)
    elif tracking_uri:
        raise invalid("tracking_uri", tracking_uri, "no value without --register")
    export = ExportRequest(model.view(wanted, origins), dtype, round(max_file_gb * 1e9), check)
    subject = card_subject(store, export.view, dtype, profile_numbers(store, export.view), push)

    def write_card(folder: Path, part: str, agreements: tuple) -> None:
        card = card_text(subject, part, agreements).encode()
        open_folder(str(folder), writable=True).write(CARD, card)

    exported = export_view(store, export, place, write_card, report_progress)
    for name, agreements in exported.agreements.items():
        for agreement in agreements:
            say(f"{name + ': ' if name else ''}{agreement}")
    size = f"{exported.num_bytes / 1e6:,.1f} MB of tensors"
    say(f"{exported.folder}: {size if exported.is_new else 'already exported; card rewritten'}")
    tags = {}
    if push:
        address, commit = push_export(exported.folder, push)
        tags = {"gram.hub": push, "gram.hub_commit": commit}
        say(f"{push}: commit {commit} at {address}")
    if register:
        from gram_platform.tracking import Tracker, default_tracking_uri

        tracker = Tracker(tracking_uri or default_tracking_uri(store.root))
        run, record = store.run(export.view.run_id), exported.folder / RECORD
        version = tracker.register_export(run, export.view, register, record, tags)
        say(f"{register}: version {version} in MLflow at {tracker.tracking_uri}")


def import_command(
    checkpoint: Positional[show_as(str, "FOLDER")],
    storage: Storage = "",
    seq_len: show_as(int | None, "INT") = None,
) -> None:
    """Import a StarCoder2 or Llama checkpoint into a storage, so that runs can start from it.

    Args:
        checkpoint: a folder with config.json and safetensors files
        storage: folder or URL of the storage; created if absent
        seq_len: sequence length of runs that start from the model; default: the model's maximum
    """
    from gram_platform.release.importing import import_checkpoint, read_config

    folder = local_path("checkpoint", checkpoint)
    read_config(folder)
    store = Store(storage_place(storage)).open_for_writing()
    imported = import_checkpoint(folder, store, seq_len, report_progress)
    model = imported.model
    for note in imported.notes:
        say(f"note: {note}")
    say(
        f"{total_parameters(model):,} parameters: {model.num_layers} layers, width {model.d_model},"
        f" MLP {model.d_mlp}, {model.num_heads} heads ({model.num_kv_heads} key-value),"
        f" vocabulary {model.vocab_size:,}, sequences of {model.seq_len}"
    )
    state = "imported" if imported.is_new else "already imported"
    say(f"{imported.import_id}: {state}; start studies from it: --start {imported.import_id}")


def serve_command(
    run_id: RunText,
    policy: str = "policy.toml",
    storage: Storage = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int = 1,
    rows: int = 64,
    waiting: int = 512,
    max_requests: int = 64,
    deadline: float = 60.0,
    precision: Literal["float32", "bfloat16"] = "float32",
    device: Literal["cpu", "cuda"] = "cpu",
    threads: int = 1,
    ray_address: Text = "",
) -> None:
    """Serve a run over HTTP, with the modules that a caller's API token allows, until Ctrl-C.

    Args:
        run_id: a complete run, such as a GRAM run
        policy: file that maps API tokens to profiles, and profiles to modules
        host: address to listen on; the default accepts only callers on this machine, so a
            container behind a proxy needs another address
        port: port to listen on; 0 picks a free port
        replicas: number of processes, each with its own copy of the model
        rows: number of completions that one replica generates at once
        waiting: maximum number of waiting requests; further ones are rejected with status 429
        max_requests: maximum number of running and waiting requests of an API token, unless the
            policy sets another number; further ones are rejected with status 429
        deadline: seconds after which a request is abandoned
        precision: float32 or bfloat16
        device: cpu or cuda
        threads: CPU threads per replica
        ray_address: a Ray cluster whose head is this machine; default: $RAY_ADDRESS, else a private
            cluster
    """
    from gram_platform.release.serving.command import Service, load_granting, serve_until_stopped
    from gram_platform.release.serving.engine import EngineLimits

    require_int("threads", threads, 1)
    store = open_existing(storage)
    service = Service(
        store.root,
        run_id,
        str(local_path("policy", policy)),
        host,
        port,
        EngineLimits(rows, waiting, deadline),
        replicas,
        ray_address,
        precision,
        device,
        threads,
        max_requests,
    )
    load_granting(service.policy)
    outlive_output()
    serve_until_stopped(replace(service, run_id=find_run(store, run_id)), say)


def token_command(
    name: Positional[show_as(str, "NAME")],
    profiles: Names,
    policy: str = "policy.toml",
    default: Text = "",
    metrics: Switch = False,
    max_requests: show_as(int | None, "INT") = None,
) -> None:
    """Create an API token, add its hash to a policy, and print the token, which is not stored.

    Args:
        name: the owner's name, for the policy and logs
        profiles: profiles that the token may use
        policy: the policy file, which must define these profiles
        default: profile for requests that do not choose one; required with several profiles
        metrics: allow the token to read /metrics
        max_requests: maximum number of the token's running and waiting requests; default:
            --max-requests of `gram serve`
    """
    from gram_platform.release.serving.policy_file import add_token

    if not profiles:
        raise invalid("profiles", profiles, "at least one profile of the policy")
    if len(profiles) > 1 and not default:
        raise invalid("default", default, one_of(default, profiles))
    say(add_token(policy, name, profiles, default or profiles[0], metrics, max_requests))
