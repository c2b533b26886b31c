"""Implements `gram status`, `show`, `compare` and `gc`, which inspect a storage."""

import os
from collections import Counter
from itertools import groupby

from gram_platform.cli.flags import (
    AsJson,
    MachineName,
    Positional,
    Storage,
    find_run,
    open_existing,
)
from gram_platform.cli.tables import say_json, say_rows
from gram_platform.config import State, View, evaluation_from_plain, run_from_plain
from gram_platform.config.crash_safe import missing_right
from gram_platform.config.flops import GIB, total_parameters
from gram_platform.config.identity import differing_fields, find_id, flatten, invalid
from gram_platform.config.terminal import one_line, say
from gram_platform.methods import method_key, seed_key, size_key
from gram_platform.methods.nodes import node_name, view_runs
from gram_platform.planner import MACHINES, Machine, needs
from gram_platform.store import EvaluationDirectory, RunDirectory, Store
from gram_platform.store.checkpoints import NUM_CHECKPOINTS_KEPT, collect_denied
from gram_platform.store.directories import CONFIG
from gram_platform.store.leases import GONE_AFTER_S
from gram_platform.store.root import StudyEntries, describe_cordoned, read_cordoned
from gram_platform.studies.flags import Switch, Text

MOST_LISTED = 200


def status_command(
    storage: Storage = "",
    study: Text = "",
    machine: MachineName = "cpu",
    full: Switch = False,
    as_json: AsJson = False,
) -> None:
    """List every run of a storage: state, step, speed, and what unfinished runs still need.

    Runs are sorted by study, size, method, profile and seed. A run that several studies share is
    listed once, under all their names. If there are more than 200 runs, the numbers of runs by
    study, size, method and state come first, and only failed and interrupted runs are listed. The
    last lines show machines that a study's last submission avoided because a device failed a test.

    Args:
        study: a submitted study, to list only its runs (default: all)
        machine: machine type for the estimate of remaining hours
        full: list all runs, even if there are more than 200
    """
    store = open_existing(storage)
    chosen = None
    if study:
        # Imports MLflow and pandas.
        from gram_platform.pages.results.record import load_record

        chosen = load_record(store, study).ids
    studies = [study] if study else store.list_studies()
    studies_of, rows, left = _studies_of(store), [], []
    for run_id in store.list_runs():
        if chosen is not None and run_id not in chosen:
            continue
        run = store.run(run_id)
        state, tags = run.status(), run.tags()
        if state == State.ABSENT and not run.folder.exists(CONFIG):
            # A foreign or an incomplete folder.
            continue
        facts = [_where(run, state)]
        if state != State.COMPLETE:
            text, *needed = _left(run, MACHINES[machine])
            left += [needed] if needed else []
            facts.append(text)
        name, of = node_name("run", run_id, tags), studies_of.get(run_id, [])
        about = "; ".join(filter(None, facts))
        row = {"id": run_id, "state": str(state), "name": name, "about": about, "studies": of}
        tagged = (tags.get(tag, "") for tag in ("size", "method", "profile", "seed"))
        size, method, profile, seed = tagged
        order = size_key(size), method_key(method), profile, seed_key(seed)
        rows.append(((not of, of, *order, name, run_id), row, (size, method, str(state))))
    rows.sort(key=lambda each: each[0])
    num_of_kind = Counter((", ".join(row["studies"]) or "no study", *kind) for _, row, kind in rows)
    rows = [row for _, row, _ in rows]
    evaluations = [i for i in store.list_evaluations() if chosen is None or i in chosen]
    done = sum(store.evaluation(i).status() == State.COMPLETE for i in evaluations)
    if as_json:
        counted = {"complete": done, "total": len(evaluations)}
        needed = {"machine": machine, "hours": sum(hours for hours, _ in left)}
        cordoned = {name: read_cordoned(store, name) for name in studies}
        document = {"runs": rows, "evaluations": counted, "left": needed, "cordoned": cordoned}
        say_json({"storage": store.root, **document})
        return
    listed = rows
    if len(rows) > MOST_LISTED and not full:
        say_rows([[*kind, f"{number:,}"] for kind, number in num_of_kind.items()])
        listed = [row for row in rows if row["state"] in (State.FAILED, State.INTERRUPTED)]
    for of, group in groupby(listed, lambda row: row["studies"]):
        if studies_of:
            say(f"{', '.join(of) or 'no study'}:")
        say_rows([[row[name] for name in ("id", "state", "name", "about")] for row in group])
    states = Counter(row["state"] for row in rows)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no runs"
    say(f"{store.root}: {counts}; {done} of {len(evaluations)} evaluations complete")
    if left:
        total, largest = sum(hours for hours, _ in left), max(num_bytes for _, num_bytes in left)
        say(
            f"left to train: {total:,.3g} {machine} hours by the planner; "
            f"the largest run takes {largest / GIB:,.3g} GiB of the storage"
        )
    for name in studies:
        for line in describe_cordoned(store, name):
            say(one_line(f"{name}: {line}"))


def _studies_of(store: Store) -> dict[str, list[str]]:
    studies: dict[str, list[str]] = {}
    for name in store.list_studies():
        entries = store.study_dir(name).read_spare("study.json", StudyEntries).get("entries", ())
        for node_id in {entry["id"] for entry in entries}:
            studies.setdefault(node_id, []).append(name)
    return studies


def _left(run: RunDirectory, machine: Machine) -> tuple[str, float, int] | tuple[str]:
    """Returns a run's needs (text, hours, bytes of storage), or (error,) for a broken config."""
    try:
        config = run.config_as(run_from_plain)
    except ValueError:
        return ("its config.json cannot be read: submit again",)
    need, share_done = needs(config, 1, machine), run.read_committed_step() / config.num_steps
    hours, num_bytes = (1 - share_done) * need.gpu_hours, need.disk_bytes(NUM_CHECKPOINTS_KEPT)
    text = f"{total_parameters(config.model):,} parameters, {share_done:.0%} of the steps saved, "
    text += f"{hours:,.3g} {machine.name} hours left, {num_bytes / GIB:,.3g} GiB of storage"
    return text, hours, num_bytes


def _where(run: RunDirectory, state: State) -> str:
    if state == State.FAILED:
        return run.failure()["message"]
    if state == State.COMPLETE:
        timing = run.timing()
        if "tokens_per_second" not in timing:
            return "times unknown, because its complete.json is damaged"
        return f"{timing['elapsed_s']:.0f} s, {timing['tokens_per_second']:,.0f} tokens/s"
    beat = run.progress()
    if not beat:
        return ""
    return f"step {beat['step']}/{beat['num_steps']}, {beat['tokens_per_second']:,.0f} tokens/s"


def show_command(node_id: Positional[str], storage: Storage = "", as_json: AsJson = False) -> None:
    """Show all facts about a run or an evaluation: state, studies, config, result, times.

    Args:
        node_id: beginning of the id of a run or an evaluation
    """
    store = open_existing(storage)
    nodes = {node.node_id: node for node in store.nodes()}
    allowed = f"a run or an evaluation in {store.root}, as `gram status` prints"
    node_id = find_id("node_id", node_id, nodes, allowed)
    node, kind = nodes[node_id], nodes[node_id].kind
    facts = {
        "id": node_id,
        "name": node_name(kind, node_id, node.tags()),
        "kind": kind,
        "state": str(node.status()),
        "folder": node.folder.path,
        "studies": _studies_of(store).get(node_id, []),
        "tags": node.tags(),
        "config": node.config(),
        "result": node.result() or {},
        "timing": node.timing(),
    }
    failure = node.failure() if kind == "run" else None
    facts |= {"failure": failure} if failure else {}
    if as_json:
        say_json(facts)
        return
    for part, value in facts.items():
        if not isinstance(value, dict):
            say(f"{part:10} {', '.join(value) if isinstance(value, list) else value}")
            continue
        say(f"\n{part}")
        if flat := flatten(value):
            say_rows([("", *pair) for pair in flat.items()])


def compare_command(
    first: Positional[str], second: Positional[str], storage: Storage = "", as_json: AsJson = False
) -> None:
    """Print the differences between the configs of two runs, field by field.

    Args:
        first: beginning of a run's id or name
        second: beginning of another run's id or name
    """
    store = open_existing(storage)
    ids = [find_run(store, run) for run in (first, second)]
    left, right = (flatten(store.run(run_id).config()) for run_id in ids)
    different = differing_fields([left, right])
    if as_json:
        fields = {key: [left.get(key), right.get(key)] for key in different}
        say_json({"runs": ids, "fields": fields})
    elif different:
        say_rows([(key, left.get(key, "-"), "->", right.get(key, "-")) for key in different])
    else:
        say("the configs are equal")


def gc_command(storage: Storage = "", dry_run: Switch = False) -> None:
    """Remove unneeded weights of finished attacks, and leftovers of killed processes.

    The losses of the attacks are kept.

    Args:
        dry_run: only report; remove nothing
    """
    store = open_existing(storage)
    if not dry_run:
        store.open_for_writing()
    needed = {run for node in store.nodes() for run in view_runs(_find_needed_view(node))}
    num_runs, num_bytes, num_checkpoints = 0, 0, 0
    barred: list = []
    for run in map(store.run, store.list_runs()):
        num_checkpoints += run.num_superfluous()
        if not dry_run:
            barred += run.remove_remains()
        if "elicited" in run.tags() and run.run_id not in needed and run.result() is not None:
            with collect_denied(barred):
                num_bytes += 0 if dry_run else run.drop_weights()
                num_runs += run.has_weights() if dry_run else 1
    if not dry_run:
        folders = [n.folder for n in store.nodes()]
        folders += [store.import_dir(import_id).folder for import_id in store.list_imports()]
        for name in store.list_studies():
            folders += [store.study_dir(name), *store.history_dirs(name).values()]
        folders += [store.search_dir(search_id) for search_id in store.list_searches()]
        for folder in folders:
            with collect_denied(barred):
                folder.remove_temporaries(GONE_AFTER_S)
    what = (
        "would lose their weights"
        if dry_run
        else f"attacks without weights, {num_bytes / 1e6:,.1f} MB freed now"
    )
    left = f"; {num_checkpoints} checkpoints left by killed processes" if num_checkpoints else ""
    say(f"{store.root}: {num_runs} {what}{left}")
    if barred:
        lines = [f"{e}: {missing_right(os.path.dirname(e.filename or './-'))}" for e in barred]
        raise PermissionError("not removed:\n" + "\n".join(lines))


def _find_needed_view(node: RunDirectory | EvaluationDirectory) -> View | None:
    """Returns the view that a node needs, or None if the node is done or needs no view.

    Raises ValueError if the config cannot be read.
    """
    if node.result() is not None or not node.folder.exists(CONFIG):
        return None
    try:
        if isinstance(node, RunDirectory):
            return node.config_as(run_from_plain).start
        return node.config_as(evaluation_from_plain).view
    except ValueError as error:
        why = f"nothing is removed while it is unknown what the {node.kind} needs ({error})"
        allowed = f"a readable config, {why}: submit again, or remove its folder"
        raise invalid("config", node.folder.file(CONFIG), allowed) from error
