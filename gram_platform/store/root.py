"""Opens a storage, returns its directories, and finds which nodes have a result."""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeVar

from gram_platform.config import IMPORTED, RECIPE_VERSION, View
from gram_platform.config.identity import absolute_place, find_id, invalid, short_hash
from gram_platform.corpora.packed import cache_folder
from gram_platform.store.directories import (
    CONFIG,
    RESULT,
    SOURCE_HASHES,
    TAGS,
    EvaluationDirectory,
    ImportDirectory,
    NodeDirectory,
)
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.folders import LocalFolder, RemoteFolder, open_folder
from gram_platform.store.runs import RunDirectory

LAYOUT = 1
DATA_ID = re.compile("[0-9a-f]{12}")
MIN_FREE_BYTES = 64 * 2**20
# In a search's folder: the best parameters.
BEST = "best.json"
HISTORY = "history"
HISTORY_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d{6}")
FOLDERS = {"run": "runs", "evaluation": "evaluations"}
# Caches an object store's results, tags and configs, so that only changed files are read.
INDEX = "index.json"
THREADS = 32

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class StoreFacts(TypedDict):
    layout: int
    recipe_version: int


@dataclass(frozen=True)
class Finished:
    """What the storage contains about a node that has a result.

    `sha256` is the hash of the result. `weights_sha256` is the hash of a run's weights, or "" for
    an evaluation. `sources` is {run or import id: hash of the weights that were used for the
    result}. `has_config` is true if the config is intact.
    """

    sha256: str
    tags: Mapping[str, str]
    has_config: bool
    weights_sha256: str
    sources: Mapping[str, str]


@dataclass(frozen=True)
class IndexEntry(Finished):
    """A node in the index of a remote storage. `versions` is {file name: version} of its files."""

    versions: Mapping[str, str]


def storage_place(storage: str) -> str:
    """Returns the storage's absolute path or its URL.

    If `storage` is "", this is $GRAM_STORAGE or ~/.gram. Raises ValueError if the path is a file or
    is inaccessible to this user.
    """
    place = absolute_place("storage", storage or os.environ.get("GRAM_STORAGE") or "~/.gram")
    try:
        is_file = Path(place).is_file()
    except PermissionError as error:
        raise invalid("storage", place, f"a folder that can be read ({error})") from error
    if is_file:
        raise invalid("storage", place, "a folder, found a file")
    return place


class Store:
    """A storage at a local path (`~` expanded) or an fsspec URL.

    The storage is read-only until `open_for_writing` is called. `root` is its absolute path or URL.
    """

    def __init__(self, root: str | os.PathLike) -> None:
        self._folder = open_folder(os.fspath(root))
        self.is_local = isinstance(self._folder, LocalFolder)
        self.root = self._folder.path if self.is_local else os.fspath(root)

    @property
    def writable(self) -> bool:
        return self._folder.writable

    def open_for_writing(self, min_free_bytes: int = MIN_FREE_BYTES) -> "Store":
        """Makes this store writable and returns it. Creates the storage if it does not exist.

        Raises ValueError if files cannot be written, and the errors of `require_known_layout`. A
        local storage needs `min_free_bytes` of free space, and no link or pipe in its root.
        """
        self.require_known_layout()
        folder = open_folder(self.root, writable=True)
        if isinstance(folder, LocalFolder):
            folder.require_plain_entries()
        probe = f"probe-{secrets.token_hex(4)}"
        try:
            folder.write(probe, bytes(2**16), durable=False)
            folder.remove(probe)
            if not folder.exists("store.json"):
                folder.create(
                    "store.json", b'{"layout":%d,"recipe_version":%d}\n' % (LAYOUT, RECIPE_VERSION)
                )
            free_bytes = shutil.disk_usage(self.root).free if self.is_local else min_free_bytes
        except OSError as error:
            expected = f"a place where files can be written ({error})"
            raise invalid("storage", self.root, expected) from error
        if free_bytes < min_free_bytes:
            needed, free = (f"{number / 2**20:,.0f} MiB" for number in (min_free_bytes, free_bytes))
            raise invalid("storage", self.root, f"a place with {needed} free, found {free}")
        self._folder = folder
        return self

    def run(self, run_id: str) -> RunDirectory:
        return RunDirectory(self._folder.child("runs", run_id), run_id)

    def evaluation(self, eval_id: str) -> EvaluationDirectory:
        return EvaluationDirectory(self._folder.child("evaluations", eval_id), eval_id)

    def node(self, kind: str, node_id: str) -> RunDirectory | EvaluationDirectory:
        return self.run(node_id) if kind == "run" else self.evaluation(node_id)

    def read_finished(self, nodes: Iterable[tuple[str, str]]) -> dict[str, Finished | None]:
        """Returns {id: Finished}, with None for nodes that have no result.

        `nodes` are (kind, id) pairs. In an object store, lists all runs and all evaluations once,
        and reads only nodes that are not in the index or have changed. Nodes without any files are
        then absent from the returned dict.
        """
        directories = (self.node(kind, node_id) for kind, node_id in nodes)
        folder = self._folder
        if not isinstance(folder, RemoteFolder):
            return {node.node_id: _read_finished(node) for node in directories}
        listed = {
            f"{kind}/{node_id}": versions
            for kind, name in FOLDERS.items()
            for node_id, versions in folder.child(name).versions((RESULT, TAGS, CONFIG)).items()
        }
        before = folder.read_spare(INDEX, dict[str, IndexEntry])
        index = {key: entry for key, entry in before.items() if entry.versions == listed.get(key)}
        present = {
            key: node for node in directories if (key := f"{node.kind}/{node.node_id}") in listed
        }
        unread = [key for key in present if key not in index]
        read = self.concurrently(lambda key: _read_finished(present[key]), unread)
        for key, finished in zip(unread, read, strict=True):
            if finished is not None:
                index[key] = IndexEntry(**vars(finished), versions=listed[key])
        if folder.writable and index != before:
            folder.write_json(INDEX, index)
        return {node.node_id: index.get(key) for key, node in present.items()}

    def concurrently(self, work: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
        """Returns `[work(item) for item in items]`. Uses threads for an object store."""
        if self.is_local:
            return [work(item) for item in items]
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(work, items))

    def origin(self, run_id: str) -> RunDirectory | ImportDirectory:
        """Returns the directory of the run or imported model with this id."""
        return self.import_dir(run_id) if run_id.startswith(IMPORTED) else self.run(run_id)

    def source_weights(self, view: View | None) -> dict[str, str]:
        """Reads {id: weights_sha256} of the runs and imports that a view uses.

        Raises ValueError if one of them has no result.
        """
        ids = sorted({view.run_id, *view.origins.values()}) if view else ()
        return {i: self.origin(i).require_result()["weights_sha256"] for i in ids}

    def explain_outdated(self, result: Mapping) -> str:
        """Names a source whose weights changed after `result` was computed, or returns "".

        Ignores sources that no longer have a result.
        """
        for run_id, before in result.get(SOURCE_HASHES, {}).items():
            now = self.origin(run_id).result()
            if now is not None and now["weights_sha256"] != before:
                return f"made from other weights of {run_id} than it has now"
        return ""

    def current_result(self, node: RunDirectory | EvaluationDirectory) -> dict | None:
        """Returns a node's result. Returns None if the result is missing or outdated."""
        result = node.result()
        return None if result is None or self.explain_outdated(result) else result

    def set_outdated_aside(self, node: RunDirectory | EvaluationDirectory) -> None:
        """Sets a node's result aside if it is outdated.

        Call this after reading the sources' new weights. If reading fails, the old result stays.
        """
        if reason := self.explain_outdated(node.result() or {}):
            node.set_result_aside(reason)

    def import_dir(self, import_id: str) -> ImportDirectory:
        return ImportDirectory(self._folder.child("imports", import_id), import_id)

    def list_imports(self) -> list[str]:
        return self._folder.child("imports").list()

    def find_run(self, beginning: str) -> str:
        """Returns the run or import id that begins with `beginning`.

        Raises the errors of `find_id`.
        """
        ids = (*self.list_runs(), *self.list_imports())
        return find_id("run_id", beginning, ids, f"a run in {self.root}, as `gram status` prints")

    def list_runs(self) -> list[str]:
        return self._folder.child("runs").list()

    def nodes(self) -> list[RunDirectory | EvaluationDirectory]:
        return [*map(self.run, self.list_runs()), *map(self.evaluation, self.list_evaluations())]

    def list_evaluations(self) -> list[str]:
        return self._folder.child("evaluations").list()

    def study_dir(self, name: str) -> Folder:
        return self._folder.child("studies", name)

    def history_dirs(self, name: str) -> dict[str, Folder]:
        """Returns {date: folder} of a study's earlier reports, the oldest first."""
        history = self.study_dir(name).child(HISTORY)
        return {
            date: history.child(date) for date in history.list() if HISTORY_DATE.fullmatch(date)
        }

    def list_studies(self) -> list[str]:
        return self._folder.child("studies").list()

    def search_dir(self, search_id: str) -> Folder:
        return self._folder.child("searches", search_id)

    def list_searches(self) -> list[str]:
        return self._folder.child("searches").list()

    @property
    def data_root(self) -> Path:
        """The local directory of packed corpora, which are memory-mapped.

        This is `<storage>/data`, or for an object store a directory in `$GRAM_CACHE` (default
        `~/.cache/gram`). Raises ValueError if `<storage>/data` is a link or a file.
        """
        if isinstance(self._folder, LocalFolder):
            data = self._folder.child("data")
            data.require_folders()
            return Path(data.path)
        return cache_folder() / short_hash(self.root) / "data"

    def data_dir(self, data_id: str) -> Folder:
        return self._folder.child("data", data_id)

    def list_data(self) -> list[str]:
        return [name for name in self._folder.child("data").list() if DATA_ID.fullmatch(name)]

    def require_known_layout(self) -> None:
        """Raises ValueError if store.json is damaged or has another layout or recipe version."""
        try:
            stored = self._folder.read_json("store.json", StoreFacts)
        except CorruptFile as error:
            expected = f"an intact store.json ({error}): remove it, and submit to write it again"
            raise invalid("storage", self.root, expected) from error
        except OSError as error:
            raise invalid("storage", self.root, f"a folder that can be read ({error})") from error
        if stored is None:
            return
        layout, recipe = stored["layout"], stored["recipe_version"]
        if (layout, recipe) != (LAYOUT, RECIPE_VERSION):
            expected = (
                f"layout {LAYOUT} and recipe version {RECIPE_VERSION}, found {layout} and {recipe}:"
                " train again in a new storage, or use the version that made this one"
            )
            raise invalid("storage", self.root, expected)


class EntryId(TypedDict):
    id: str


class StudyEntries(TypedDict):
    entries: list[EntryId]


def _read_finished(node: NodeDirectory) -> Finished | None:
    result = node.result()
    return (
        None
        if result is None
        else Finished(
            sha256=result["sha256"],
            tags=node.tags(),
            has_config=node.has_config(),
            weights_sha256=result.get("weights_sha256", ""),
            sources=result.get(SOURCE_HASHES, {}),
        )
    )


# A file in a study's folder, absent if no machine was left out.
CORDONED = "cordoned.json"
# Larger Unix times cannot be formatted as a date.
MOST_SECONDS = 2**37


class Cordoned(TypedDict):
    message: str
    time: float


def write_cordoned(store: Store, study: str, machines: Sequence[Mapping]) -> None:
    """Stores a study's cordoned machines. Each dict has at least the fields of `Cordoned`."""
    folder = store.study_dir(study)
    if machines:
        folder.write_json(CORDONED, {"machines": list(machines)})
    else:
        folder.remove(CORDONED)


def read_cordoned(store: Store, study: str) -> list[dict]:
    machines = store.study_dir(study).read_spare(CORDONED, dict[str, list[Cordoned]])
    return [
        machine for machine in machines.get("machines", []) if 0 <= machine["time"] < MOST_SECONDS
    ]


def describe_cordoned(store: Store, study: str) -> list[str]:
    """Returns one line per cordoned machine, with the date and the reason."""
    return [
        time.strftime("Left out since %Y-%m-%d %H:%M UTC: ", time.gmtime(machine["time"]))
        + f"{machine['message']}."
        for machine in read_cordoned(store, study)
    ]
