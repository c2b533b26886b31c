"""Looks which nodes of a storage have a result; in an object store by one listing of runs and one of evaluations.

A listing gives every file a version, which changes when the file is written again. `index.json` keeps what results,
tags and configs said at which versions, so that only a new or changed one is read. It saves requests; without it all
are read.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from gram_platform.store.directories import CONFIG, RESULT, TAGS, NodeDirectory
from gram_platform.store.files import Folder
from gram_platform.store.folders import RemoteFolder

INDEX = "index.json"
INDEX_SHAPE = {str: {"versions": {str: str}, "sha256": str, "tags": {str: str}, "config_sha256": str}}
FOLDERS = {"run": "runs", "evaluation": "evaluations"}
# Threads that wait for an object store.
THREADS = 32

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Finished:
    """A node with a result: the result's hash, the node's tags, and the hash of its config ("" without one)."""

    sha256: str
    tags: Mapping[str, str]
    config_sha256: str


def concurrently(work: Callable[[Item], Outcome], items: Iterable[Item], folder: Folder) -> list[Outcome]:
    """Returns `work(item)` of every item, in order; in threads where each waits for an object store."""
    if not isinstance(folder, RemoteFolder):
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(work, items))


def look(root: Folder, nodes: Iterable[NodeDirectory]) -> dict[str, Finished | None]:
    """Returns {id: what its result says, or None without one} of nodes in the storage's folder `root`.

    A node whose folder does not exist may be left out.
    """
    if not isinstance(root, RemoteFolder):
        return {node.node_id: _read(node) for node in nodes}
    listed = {
        f"{kind}/{node_id}": versions
        for kind, folder in FOLDERS.items()
        for node_id, versions in root.child(folder).versions((RESULT, TAGS, CONFIG)).items()
    }
    before = root.read_spare(INDEX, INDEX_SHAPE)
    index = {key: entry for key, entry in before.items() if entry["versions"] == listed.get(key)}
    present = {key: node for node in nodes if (key := f"{node.kind}/{node.node_id}") in listed}
    unread = [key for key in present if key not in index]
    for key, found in zip(unread, concurrently(lambda key: _read(present[key]), unread, root), strict=True):
        if found is not None:
            index[key] = {"versions": listed[key], **vars(found), "tags": dict(found.tags)}
    if root.writable and index != before:
        root.write_json(INDEX, index)
    known = {key: Finished(entry["sha256"], entry["tags"], entry["config_sha256"]) for key, entry in index.items()}
    return {node.node_id: known.get(key) for key, node in present.items()}


def _read(node: NodeDirectory) -> Finished | None:
    result = node.result()
    return None if result is None else Finished(result["sha256"], node.tags(), node.config_sha256())
