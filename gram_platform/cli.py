"""The `gram` command: prepare a corpus, look at a storage, compare runs, catch MLflow up, rebuild a report."""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro

from gram_platform.config import evaluation_from_plain, run_from_plain
from gram_platform.corpora import check, prepare, resolve
from gram_platform.identity import invalid, require_choice
from gram_platform.nodes import view_runs
from gram_platform.searches.command import ACTIONS, give_order, search_lines
from gram_platform.store import Store
from gram_platform.study.flags import absolute_place
from gram_platform.study.record import load_record
from gram_platform.study.results import read_results, summary_text, write_results
from gram_platform.tracking import Tracker, TrackingUnavailable, default_tracking_uri

DEFAULT_STORAGE = "~/.gram"
Storage = Annotated[str, tyro.conf.arg(help="folder or URL of the storage; default $GRAM_STORAGE, else ~/.gram")]
TrackingUri = Annotated[str, tyro.conf.arg(help="MLflow server or database; default SQLite in the storage")]
Positional = tyro.conf.Positional


def prepare_command(
    corpus: Positional[str],
    out: str = "",
    core_label: str = "",
    seq_len: int = 1024,
    vocab_size: int = 50_304,
    tokenizer: str = "",
    check_only: Annotated[bool, tyro.conf.arg(name="check")] = False,
) -> None:
    """Pack a corpus: a catalog name, a folder or file of .jsonl/.parquet, or a .json of labelled globs.

    Args:
        corpus: what to pack
        out: folder of the packed corpus, in a subfolder named by its data_id
        core_label: the label (or labels) that are core
        seq_len: tokens of a sequence
        vocab_size: of a tokenizer trained on the corpus, or an upper bound of a given one
        tokenizer: a tokenizer.json or a name on the hub; default: train one on the corpus
        check_only: open one record of every source and validate its fields, pack nothing
    """
    if check_only:
        _check_sources(corpus)
        return
    if not out:
        raise invalid("out", out, "a folder for the packed corpus")
    root = Path(out).expanduser()
    recipe = resolve(
        corpus,
        core_label=core_label or None,
        seq_len=seq_len,
        vocab_size=vocab_size,
        tokenizer=tokenizer or None,
        cache_dir=root,
        progress=_report,
    )
    packed = prepare(recipe, root, _report)
    print(f"{root / recipe.data_id}  fingerprint {packed.fingerprint}")
    for domain in packed.domains:
        counts = [f"{packed.num_sequences(split, domain):,} {split}" for split in ("train", "validation")]
        print(f"  {domain:20} {' and '.join(counts)} sequences of {packed.seq_len} tokens")


def _check_sources(corpus: str) -> None:
    results = check(corpus)
    for result in results:
        state = "ok" if result.ok else "FAILED"
        marked = "verified" if result.verified else "not verified"
        print(f"{state:6}  {result.source}  [{result.label}] ({marked})  {result.found}")
    if not all(result.ok for result in results):
        raise SystemExit(1)


def status_command(storage: Storage = "", study: str = "") -> None:
    """Every run of a storage: its state, step and speed; with --study only that study's.

    Args:
        storage: folder or URL of the storage
        study: name of a study that was submitted
    """
    store = _store(storage)
    chosen = load_record(store, study).ids if study else None
    states, lines = Counter(), []
    for run_id in store.list_runs():
        if chosen is not None and run_id not in chosen:
            continue
        run = store.run(run_id)
        state, tags = run.status(), run.tags()
        states[state] += 1
        names = " ".join(tags[key] for key in ("method", "size", "profile") if key in tags)
        lines.append(f"{run_id}  {state:11} {names} s{tags.get('seed', '?')}  {_where(run, state)}")
    evaluations = [i for i in store.list_evaluations() if chosen is None or i in chosen]
    done = sum(store.evaluation(i).status() == "complete" for i in evaluations)
    print("\n".join(lines))
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no runs"
    print(f"{store.root}: {counts}; {done} of {len(evaluations)} evaluations complete")


def _where(run, state: str) -> str:
    if state == "failed":
        return run.failure()["message"]
    if state == "complete":
        timing = run.timing()
        return f"{timing['elapsed_s']:.0f} s, {timing['tokens_per_second']:,.0f} tokens/s"
    beat = run.progress()
    if not beat:
        return ""
    return f"step {beat['step']}/{beat['num_steps']}, {beat['tokens_per_second']:,.0f} tokens/s"


def compare_command(first: Positional[str], second: Positional[str], storage: Storage = "") -> None:
    """The difference of two runs' configs, field by field.

    Args:
        first: a run id
        second: another
        storage: folder or URL of the storage
    """
    store = _store(storage)
    left, right = (flatten(store.run(run_id).config()) for run_id in (first, second))
    different = [key for key in sorted({*left, *right}) if left.get(key) != right.get(key)]
    width = max((len(key) for key in different), default=0)
    for key in different:
        print(f"{key:{width}}  {left.get(key, '-')}  ->  {right.get(key, '-')}")
    if not different:
        print("the configs are equal")


def flatten(plain: object, prefix: str = "") -> dict[str, object]:
    """Nested JSON as {dotted path: scalar}; items of a list that have a name or domain are keyed by it."""
    if isinstance(plain, Mapping):
        items = plain.items()
    elif isinstance(plain, list):
        items = [(_item_key(item, index), item) for index, item in enumerate(plain)]
    else:
        return {prefix: plain}
    flat: dict[str, object] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _item_key(item: object, index: int) -> str:
    if isinstance(item, Mapping):
        return str(item.get("name") or item.get("domain") or index)
    return str(index)


def sync_command(storage: Storage = "", tracking_uri: TrackingUri = "") -> None:
    """Bring MLflow up to the run directories; sending again changes nothing.

    Args:
        storage: folder or URL of the storage
        tracking_uri: MLflow server or database
    """
    store = _store(storage)
    tracker = Tracker(tracking_uri or default_tracking_uri(store.root))
    tracker.prepare_database()
    counts = tracker.sync(store)
    print(f"{tracker.tracking_uri}: {counts['sent']} sent, {counts['unchanged']} unchanged")


def report_command(study: Positional[str], storage: Storage = "", tracking_uri: TrackingUri = "") -> None:
    """Build a study's table and report again from what is stored, and print the table.

    Args:
        study: name of a study that was submitted, such as scaling
        storage: folder or URL of the storage
        tracking_uri: MLflow server or database
    """
    store = _store(storage).open_for_writing()
    record = load_record(store, study)
    uri = tracking_uri or default_tracking_uri(store.root)
    results = read_results(record, store, uri)
    if results is None:
        raise invalid("study", study, "one with a complete baseline and its evaluation")
    failures = {i: failure["message"] for i in record.ids if (failure := store.run(i).failure())}
    paths = write_results(record, store, results, failures, Tracker(uri) if results.source == "MLflow" else None)
    print(summary_text(record, results))
    print("\n".join(f"{name:12} {path}" for name, path in paths.items()))
    print(f"read from {results.source}")


def search_command(action: Positional[str] = "list", search: Positional[str] = "", storage: Storage = "") -> None:
    """The searches of a storage, or an order to the driver of one.

    Args:
        action: list; pause (start no more trials), resume, or cancel (end now; submitting again goes on)
        search: id or name of the search
        storage: folder or URL of the storage
    """
    require_choice("action", action, ACTIONS)
    store = _store(storage)
    if action == "list":
        print("\n".join(search_lines(store)) or f"{store.root}: no searches")
        return
    search_id = give_order(store.open_for_writing(), action, search)
    print(f"{action}: {search_id} is told")


def gc_command(storage: Storage = "", dry_run: bool = False) -> None:
    """Remove the weights of finished attacks that nothing starts from: their losses are kept, and are all that counts.

    Args:
        storage: folder or URL of the storage
        dry_run: say what would go, remove nothing
    """
    store = _store(storage)
    if not dry_run:
        store.open_for_writing()
    needed = _needed_weights(store)
    num_runs, num_bytes = 0, 0
    for run_id in store.list_runs():
        run = store.run(run_id)
        if "elicited" not in run.tags() or run_id in needed or run.result() is None:
            continue
        num_runs += 1
        num_bytes += 0 if dry_run else run.drop_weights()
    what = "would lose their weights" if dry_run else f"attacks without weights, {num_bytes / 1e6:,.1f} MB freed now"
    print(f"{store.root}: {num_runs} {what}")


def _needed_weights(store: Store) -> set[str]:
    """Runs that an unfinished run starts from or an unfinished evaluation looks at."""
    runs, evaluations = map(store.run, store.list_runs()), map(store.evaluation, store.list_evaluations())
    starts = [run_from_plain(run.config()).start for run in runs if run.result() is None]
    views = [evaluation_from_plain(e.config()).view for e in evaluations if e.result() is None]
    return {run_id for view in (*starts, *views) for run_id in view_runs(view)}


def _store(storage: str) -> Store:
    """A storage to read; ValueError when there is none at that place."""
    place = absolute_place("storage", storage or os.environ.get("GRAM_STORAGE") or DEFAULT_STORAGE)
    store = Store(place)
    if store.is_local and not Path(store.root).is_dir():
        raise invalid("storage", place, "a folder that exists")
    return store


def _report(what: str, done: int, total: int | None) -> None:
    if sys.stderr.isatty():
        share = f" {done / total:.0%}" if total else ""
        print(f"\r{what}:{share} {done / 1e6:,.1f} MB   ", end="", file=sys.stderr, flush=True)


COMMANDS = {
    "prepare": prepare_command,
    "status": status_command,
    "compare": compare_command,
    "sync": sync_command,
    "report": report_command,
    "search": search_command,
    "gc": gc_command,
}


def main(arguments: list[str] | None = None) -> None:
    """Exit code 0: done; 1: something that was asked about is not right; 2: bad input or MLflow is away."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=arguments, prog="gram", description=__doc__)
    except (ValueError, TrackingUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
