"""`gram status`, `compare` and `gc`: what lies in a storage."""

from collections import Counter
from dataclasses import dataclass

from gram_platform.cli.flags import Positional, Storage, stored
from gram_platform.config import evaluation_from_plain, run_from_plain
from gram_platform.flops import total_parameters
from gram_platform.identity import flatten, require_choice
from gram_platform.nodes import view_runs
from gram_platform.planner import GIB, MACHINES, Machine, needs
from gram_platform.store import RunDirectory, Store
from gram_platform.study.dry_run import UTILISATION, disk_bytes
from gram_platform.study.record import load_record


def status_command(storage: Storage = "", study: str = "", machine: str = "cpu") -> None:
    """Every run of a storage: its state, step and speed, and what the planner expects of those that are not complete.

    Args:
        storage: folder or URL of the storage
        study: name of a study that was submitted: only its runs
        machine: whose hours are expected: h200, h100, a100 or cpu
    """
    require_choice("machine", machine, tuple(MACHINES))
    store = stored(storage)
    chosen = load_record(store, study).ids if study else None
    states, lines, left = Counter(), [], []
    for run_id in store.list_runs():
        if chosen is not None and run_id not in chosen:
            continue
        run = store.run(run_id)
        state, tags = run.status(), run.tags()
        states[state] += 1
        names = " ".join(tags[key] for key in ("method", "size", "profile") if key in tags)
        facts = [_where(run, state)]
        if state != "complete":
            left.append(_left(run, MACHINES[machine]))
            facts.append(str(left[-1]))
        lines.append(f"{run_id}  {state:11} {names} s{tags.get('seed', '?')}  {'; '.join(filter(None, facts))}")
    evaluations = [i for i in store.list_evaluations() if chosen is None or i in chosen]
    done = sum(store.evaluation(i).status() == "complete" for i in evaluations)
    print("\n".join(lines))
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no runs"
    print(f"{store.root}: {counts}; {done} of {len(evaluations)} evaluations complete")
    if left:
        hours, largest = sum(one.hours for one in left), max(one.disk_bytes for one in left)
        print(
            f"left to train: {hours:,.3g} {machine} hours at {UTILISATION:.0%} of its rate; "
            f"the largest run takes {largest / GIB:,.3g} GiB of the storage"
        )


@dataclass(frozen=True)
class _Left:
    """Of a run that is not complete: what the planner counts, from its last checkpoint on."""

    parameters: int
    share_done: float  # of its steps
    hours: float
    machine: str
    disk_bytes: int  # at most, while it trains

    def __str__(self) -> str:
        hours, disk = f"{self.hours:,.3g} {self.machine} hours left", f"{self.disk_bytes / GIB:,.3g} GiB of storage"
        return f"{self.parameters:,} parameters, {self.share_done:.0%} of the steps saved, {hours}, {disk}"


def _left(run: RunDirectory, machine: Machine) -> _Left:
    config = run_from_plain(run.config())
    need, share_done = needs(config, 1, machine, UTILISATION), run.committed_step() / config.num_steps
    hours = (1 - share_done) * need.gpu_hours
    return _Left(total_parameters(config.model), share_done, hours, machine.name, disk_bytes(need))


def _where(run: RunDirectory, state: str) -> str:
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
    store = stored(storage)
    left, right = (flatten(store.run(run_id).config()) for run_id in (first, second))
    different = [key for key in sorted({*left, *right}) if left.get(key) != right.get(key)]
    width = max((len(key) for key in different), default=0)
    for key in different:
        print(f"{key:{width}}  {left.get(key, '-')}  ->  {right.get(key, '-')}")
    if not different:
        print("the configs are equal")


def gc_command(storage: Storage = "", dry_run: bool = False) -> None:
    """Remove the weights of finished attacks that nothing starts from: their losses are kept, and are all that counts.

    Args:
        storage: folder or URL of the storage
        dry_run: say what would go, remove nothing
    """
    store = stored(storage)
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
