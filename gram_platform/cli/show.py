"""Implements `gram show`: what a storage knows of one run or evaluation."""

import json

from gram_platform.cli.flags import AsJson, Positional, Storage, stored
from gram_platform.config.identity import find_id, flatten
from gram_platform.store import Store


def show_command(node_id: Positional[str], storage: Storage = "", as_json: AsJson = False) -> None:
    """Show what a storage knows of a run or an evaluation: state, studies, config, result, times.

    Args:
        node_id: id of a run or an evaluation, or the beginning of it
        storage: folder or URL of the storage
    """
    shown = describe_node(stored(storage), node_id)
    if as_json:
        print(json.dumps(shown, indent=1, sort_keys=True))
        return
    for part, value in shown.items():
        if not isinstance(value, dict):
            print(f"{part:10} {', '.join(value) if isinstance(value, list) else value}")
            continue
        flat = flatten(value)
        width = max(map(len, flat), default=0)
        print("\n".join([f"\n{part}", *(f"  {key:{width}}  {one}" for key, one in flat.items())]))


def describe_node(store: Store, beginning: str) -> dict[str, object]:
    """Returns id, kind, state, folder, studies, tags, config, result and times; ValueError as `find_id`."""
    listed = {"run": store.list_runs(), "evaluation": store.list_evaluations()}
    kind_of = {node_id: kind for kind, ids in listed.items() for node_id in ids}
    node_id = find_id("node_id", beginning, kind_of, f"a run or an evaluation in {store.root}, as `gram status` prints")
    kind = kind_of[node_id]
    node = store.node(kind, node_id)
    shape = {"entries": [{"id": str}]}
    records = {name: store.study_dir(name).read_spare("study.json", shape) for name in store.list_studies()}
    studies = [n for n, plain in records.items() if any(e["id"] == node_id for e in plain.get("entries", ()))]
    facts = {"id": node_id, "kind": kind, "state": str(node.status()), "folder": node.folder.path, "studies": studies}
    parts = {"tags": node.tags(), "config": node.config(), "result": node.result() or {}, "timing": node.timing()}
    failure = {"failure": found} if kind == "run" and (found := node.failure()) else {}
    return {**facts, **parts, **failure}
