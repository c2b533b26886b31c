"""`gram search`: the searches of a storage, and orders to their drivers."""

from gram_platform.config.identity import invalid, require_choice
from gram_platform.store import Store
from gram_platform.store.leases import is_fresh, read_lease
from gram_platform.studies.searches.control import CANCELLED, PAUSED, RUNNING, order, ordered

ORDERS = {"pause": PAUSED, "resume": RUNNING, "cancel": CANCELLED}
ACTIONS = ("list", *ORDERS)


def search_lines(store: Store) -> list[str]:
    """One line a search: id, name, preset, and what its driver does."""
    lines = []
    for search_id in store.list_searches():
        folder = store.search_dir(search_id)
        facts, lease = folder.read_json("search.json") or {}, read_lease(folder)
        state = f"{ordered(folder)}, led by {lease['owner']}" if is_fresh(lease) else "no driver"
        lines.append(f"{search_id}  {facts.get('name', '?'):16} {facts.get('preset', '?'):8} {state}")
    return lines


def give_order(store: Store, action: str, search: str) -> str:
    """Tells the driver of a search, by id or name, to pause, resume or cancel; the search's id.

    ValueError for another action, an unknown or ambiguous search, or one that nobody leads.
    """
    require_choice("action", action, tuple(ORDERS))
    names = {i: (store.search_dir(i).read_json("search.json") or {}).get("name") for i in store.list_searches()}
    found = [i for i, name in names.items() if search in (i, name)]
    led = [i for i in found if is_fresh(read_lease(store.search_dir(i)))]
    if len(led) != 1:
        known = ", ".join(f"{i} ({name})" for i, name in names.items() if i in led or not led) or "none"
        raise invalid("search", search, f"one search that a driver leads, by id or name; there are: {known}")
    order(store.search_dir(led[0]), ORDERS[action])
    return led[0]
