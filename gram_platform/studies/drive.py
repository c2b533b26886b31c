"""Executes a plan, from packing the corpora to writing the last table."""

from collections.abc import Callable
from pkgutil import resolve_name

from gram_platform.config.endings import DONE, FAILED, TIME_IS_UP, worst
from gram_platform.config.identity import invalid, local_path
from gram_platform.config.terminal import say
from gram_platform.engine.handover import missing_nodes, write_nodes
from gram_platform.pages.index import write_index
from gram_platform.pages.link_page import LINK_PAGE, link_page
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.studies.dry_run import describe
from gram_platform.studies.observers import Observers
from gram_platform.studies.packing import pack_corpora, require_supply
from gram_platform.studies.plan import Plan, predict, price, sharing
from gram_platform.studies.workplace import (
    choose_device,
    executor_at,
    find_left,
    open_workplace,
    require_gpu,
    with_ranks,
)
from gram_platform.tracking.connection import explain_opening


def drive(plan: Plan) -> int:
    """Executes the missing nodes, and writes tables and reports. Returns the exit code.

    A dry run only describes the nodes. Raises ValueError for bad input before training starts.
    """
    if plan.dry_run:
        say(describe(plan))
        return DONE
    if plan.report_only:
        return write_again(plan)
    require_supply(plan.studies)
    if plan.export_nodes:
        return export_nodes(plan)
    store = Store(plan.storage).open_for_writing()
    plan = plan.on(choose_device(plan, store))
    approve_cost(plan, store)
    require_gpu(plan, store)
    plan, _ = with_ranks(plan, store)
    pack_corpora(plan, store)
    say_heads(plan, store)
    observers = observers_of(plan, store)
    with observers.lease, observers:
        at = open_workplace(plan, store, observers.say)
        with executor_at(at, plan.retry_failed) as executor:
            observers.begin(at, executor)
            for event in executor.events(observers.source()):
                observers.see(event)
                if observers.limit_reached():
                    executor.is_stopping = True
        # Ray Tune executes a search's trials, and calls the observers.
        observers.run_trials(at)
        observers.flush()
        code = worst(sum_up(observers), observers.write_tables())
    return finish(observers, code)


def observers_of(plan: Plan, store: Store) -> Observers:
    return resolve_name(plan.studies[0].observers)(plan, store)


def write_again(plan: Plan) -> int:
    """Rewrites a search's report from the storage. Returns the exit code."""
    store = Store(plan.storage).open_for_writing()
    pack_corpora(plan, store)
    say_heads(plan, store)
    observers = observers_of(plan, store)
    return finish(observers, observers.write_tables())


def approve_cost(plan: Plan, store: Store) -> None:
    """Prints the predicted price of the missing nodes.

    Raises ValueError if the price exceeds --confirm-above. There is no prompt, because a Ray
    job has no terminal.
    """
    if plan.is_approved or not (work := find_left(plan, store)):
        return
    say(predict(work))
    if (dollars := price(work)[1]) > plan.confirm_above:
        expected = (
            f"--yes, since ${dollars:,.2f} are more than --confirm-above {plan.confirm_above:g}, or"
            " --max-cost DOLLARS, at which nothing more is started"
        )
        raise invalid("yes", False, expected)


def say_heads(plan: Plan, store: Store) -> None:
    for part in plan.studies:
        say(f"{part.head} on {part.choice.corpus} (data {part.data_id})")
    say(f"storage {store.root}")
    if len(plan.studies) > 1:
        say(sharing(plan.studies))
    for part in plan.studies:
        for doubt in part.law_doubts:
            say(f"law {part.sources['law']}, against its evidence: {doubt}")


def export_nodes(plan: Plan) -> int:
    """Writes the missing nodes to the --export-nodes file. Returns the exit code."""
    (part,), path = plan.studies, local_path("export_nodes", plan.export_nodes)
    nodes = missing_nodes(part.nodes, Store(plan.storage))
    try:
        write_nodes(path, nodes, part.corpora)
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise invalid("export_nodes", str(path), expected) from error
    say(f"{path}: {len(nodes)} of {len(part.nodes)} nodes")
    return DONE


def sum_up(observers: Observers) -> int:
    """Prints failures, counts and whether a limit was reached. Returns the exit code."""
    failures = observers.failures()
    for line in [*failures, f"\n{observers.counts()}"]:
        observers.say(line)
    if limit := observers.limit_reached() if observers.is_unfinished else "":
        observers.say(f"limit: {limit}; submit again with a higher one to go on")
    return worst(TIME_IS_UP if limit else DONE, FAILED if failures else DONE)


def finish(observers: Observers, code: int) -> int:
    """Writes the storage's index. Notifies the webhook if execution began.

    Returns `code`, the exit code.
    """
    uri = observers.plan.tracking_uri
    refresh_site(observers.store, uri, observers.say)
    observers.say(f"{'MLflow':12} {explain_opening(uri)}")
    if observers.has_begun:
        observers.notify(code, observers.counts(), len(observers.failures()))
    return code


def refresh_site(store: Store, tracking_uri: str, say: Callable[[str], None]) -> None:
    """Writes the storage's index. Also writes LINK_PAGE if it is missing and MLflow has no server.

    Reports link to LINK_PAGE, which explains how to open MLflow. Prints errors instead of raising
    them.
    """
    try:
        root = open_folder(store.root, writable=True)
        if not tracking_uri.startswith("http") and not root.exists(LINK_PAGE):
            root.write(LINK_PAGE, link_page("", explain_opening(tracking_uri)), durable=False)
        say(f"{'site':12} {write_index(store)}")
    except (OSError, ValueError) as error:
        say(f"the site was not built ({error}); `gram report` builds it")
