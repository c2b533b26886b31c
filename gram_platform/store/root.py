"""Opens a storage, gives its directories, and brings packed corpora to this machine."""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gram_platform.config import IMPORTED, RECIPE_VERSION
from gram_platform.config.identity import absolute_place, find_id, invalid, short_hash
from gram_platform.corpora.packed import (
    CorruptCorpus,
    PackedCorpus,
    bytes_of_files,
    cache_folder,
    open_complete,
    parse_manifest,
    publish,
)
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.corpora.sources import Progress, silent
from gram_platform.store.checkpoints import MANIFEST
from gram_platform.store.directories import EvaluationDirectory, ImportDirectory
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.folders import LocalFolder, RemoteFolder, open_folder
from gram_platform.store.listing import Finished, Item, Outcome, concurrently, look
from gram_platform.store.runs import RunDirectory
from gram_platform.store.streaming import fetch_ahead, fetched_rows, full_disk_explained

if TYPE_CHECKING:
    from gram_platform.corpora.parts import Workers
# Imports tokenizers, as `pack` does.

# The version of the storage's file layout.
LAYOUT = 1
DATA_ID = re.compile("[0-9a-f]{12}")
MIN_FREE_BYTES = 64 * 2**20
# In the folder of a study: a folder for each earlier page.
HISTORY = "history"
HISTORY_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d{6}")
NOTHING_AHEAD: Mapping[str, int] = {}


def storage_place(storage: str) -> str:
    """Returns the path or URL of the storage: the flag, else $GRAM_STORAGE, else ~/.gram.

    ValueError for a file, and for a place below a folder that this user may not enter.
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
    """A storage at a local path (`~` expanded) or an fsspec URL; reading changes nothing in it.

    `root` is the absolute path or the URL.
    """

    def __init__(self, root: str | os.PathLike) -> None:
        self._folder = open_folder(os.fspath(root))
        self.is_local = isinstance(self._folder, LocalFolder)
        self.root = self._folder.path if self.is_local else os.fspath(root)

    @property
    def writable(self) -> bool:
        return self._folder.writable

    def open_for_writing(self, min_free_bytes: int = MIN_FREE_BYTES) -> "Store":
        """Creates the storage if it does not exist, allows writing, and returns the store.

        ValueError naming `storage` when files cannot be written, when a local one has less than `min_free_bytes` free,
        when it has a link or a pipe in place of a file or folder, or when another recipe version wrote it: those runs
        stay readable, but new ones would not be comparable.
        """
        self._check_version()
        folder = open_folder(self.root, writable=True)
        if isinstance(folder, LocalFolder):
            # Of folders below, each is looked at when it is used.
            folder.require_plain_entries()
        probe = f"probe-{secrets.token_hex(4)}"
        try:
            folder.write(probe, bytes(2**16), durable=False)
            folder.remove(probe)
            if not folder.exists("store.json"):
                folder.create("store.json", b'{"layout":%d,"recipe_version":%d}\n' % (LAYOUT, RECIPE_VERSION))
            free_bytes = shutil.disk_usage(self.root).free if self.is_local else min_free_bytes
        except OSError as error:
            raise invalid("storage", self.root, f"a place where files can be written ({error})") from error
        if free_bytes < min_free_bytes:
            expected = f"a place with {min_free_bytes / 2**20:,.0f} MiB free, found {free_bytes / 2**20:,.0f} MiB"
            raise invalid("storage", self.root, expected)
        # Another process may have created it since.
        self._check_version()
        self._folder = folder
        return self

    def run(self, run_id: str) -> RunDirectory:
        return RunDirectory(self._folder, run_id)

    def evaluation(self, eval_id: str) -> EvaluationDirectory:
        return EvaluationDirectory(self._folder, eval_id)

    def node(self, kind: str, node_id: str) -> RunDirectory | EvaluationDirectory:
        """Gives the directory of a study's node; `kind` is run or evaluation."""
        return self.run(node_id) if kind == "run" else self.evaluation(node_id)

    def finished(self, nodes: Iterable[tuple[str, str]]) -> dict[str, Finished | None]:
        """Returns {id: its result's hash and its tags, or None without a result} of nodes (kind, id).

        One listing in an object store, where a node that nobody has begun may be left out.
        """
        return look(self._folder, (self.node(kind, node_id) for kind, node_id in nodes))

    def concurrently(self, work: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
        """Returns `work(item)` of every item, in order; in threads where each waits for an object store."""
        return concurrently(work, items, self._folder)

    def origin(self, run_id: str) -> RunDirectory | ImportDirectory:
        """Gives the directory of the weights that a view names by `run_id`: of a run, or of an imported model."""
        return self.imported(run_id) if run_id.startswith(IMPORTED) else self.run(run_id)

    def imported(self, import_id: str) -> ImportDirectory:
        return ImportDirectory(self._folder, import_id)

    def list_imports(self) -> list[str]:
        """Lists the ids of all imported models, sorted."""
        return self._folder.child("imports").list()

    def find_run(self, beginning: str) -> str:
        """Returns the run or imported model whose id begins with `beginning`; ValueError for none or several."""
        known = (*self.list_runs(), *self.list_imports())
        return find_id("run_id", beginning, known, f"a run of this storage ({self.root})")

    def list_runs(self) -> list[str]:
        """Lists the run_ids of all run directories, sorted."""
        return self._folder.child("runs").list()

    def nodes(self) -> list[RunDirectory | EvaluationDirectory]:
        """Lists the directories of all runs, then of all evaluations, each sorted by id."""
        return [*map(self.run, self.list_runs()), *map(self.evaluation, self.list_evaluations())]

    def list_evaluations(self) -> list[str]:
        """Lists the eval_ids of all evaluation directories, sorted."""
        return self._folder.child("evaluations").list()

    def study_dir(self, name: str) -> Folder:
        """Gives the folder of a study, `<storage>/studies/<name>`; a local one's `path` is a directory."""
        return self._folder.child("studies", name)

    def history_dirs(self, name: str) -> dict[str, Folder]:
        """Gives the folders of a study's earlier pages by date, the oldest first; nothing else that lies there."""
        history = self.study_dir(name).child(HISTORY)
        return {date: history.child(date) for date in history.list() if HISTORY_DATE.fullmatch(date)}

    def list_studies(self) -> list[str]:
        """Lists the names of all studies and searches that have written files, sorted."""
        return self._folder.child("studies").list()

    def search_dir(self, search_id: str) -> Folder:
        """Gives the folder of a search's driver, `<storage>/searches/<search_id>`."""
        return self._folder.child("searches", search_id)

    def list_searches(self) -> list[str]:
        """Lists the ids of all searches, sorted."""
        return self._folder.child("searches").list()

    @property
    def data_root(self) -> Path:
        """The local directory of packed corpora, which are memory-mapped.

        `<storage>/data`; for an object store a directory of this machine in `$GRAM_CACHE` (default `~/.cache/gram`).
        ValueError if `<storage>/data` is a link.
        """
        if isinstance(self._folder, LocalFolder):
            data = self._folder.child("data")
            data.require_folders()
            return Path(data.path)
        return cache_folder() / short_hash(self.root) / "data"

    def data_dir(self, data_id: str) -> Folder:
        """Gives the folder of a packed corpus in the storage, `<storage>/data/<data_id>`."""
        return self._folder.child("data", data_id)

    def list_data(self) -> list[str]:
        """Lists the data_ids of all packed corpora, sorted."""
        return [name for name in self._folder.child("data").list() if DATA_ID.fullmatch(name)]

    def has_data(self, data_id: str) -> bool:
        """Returns whether a corpus is packed here: its manifest is written last."""
        return self.data_dir(data_id).exists(MANIFEST)

    def _check_version(self) -> None:
        try:
            stored = self._folder.read_json("store.json", {"layout": int, "recipe_version": int})
        except CorruptFile as error:
            remedy = "remove the file, and the next submission writes it again, if this version made the storage"
            raise invalid("storage", self.root, f"an intact store.json ({error}): {remedy}") from error
        except OSError as error:
            raise invalid("storage", self.root, f"a folder that can be read ({error})") from error
        if stored is None:
            return
        found = (stored["layout"], stored["recipe_version"])
        if found != (LAYOUT, RECIPE_VERSION):
            expected = f"a storage of recipe version {RECIPE_VERSION} (layout {LAYOUT}) to write to, found version "
            raise invalid("storage", self.root, f"{expected}{found[1]} (layout {found[0]}), which can only be read")


# -------------------------------------------------------------------------------------------- packed corpora


def provide_corpus(
    recipe: CorpusRecipe, store: Store, progress: Progress | None = None, workers: "Workers | None" = None
) -> PackedCorpus:
    """Makes sure that every machine can open the recipe's corpus: packs it and uploads it if the storage lacks it.

    `store` is open for writing. `workers` see this machine's files, see `prepare`; None: this process packs. Raises the
    errors of `prepare` and `open_corpus`.
    """
    # Imported here: a machine that only trains needs no tokenizers.
    from gram_platform.corpora.pack import prepare

    if store.is_local:
        return prepare(recipe, store.data_root, progress, workers)
    stored = store.data_dir(recipe.data_id)
    assert isinstance(stored, RemoteFolder)
    try:
        parse_manifest(stored.read(MANIFEST), stored.file(MANIFEST))
    except (FileNotFoundError, CorruptCorpus):
        packed = prepare(recipe, store.data_root, progress, workers)
        _upload(packed, stored, progress or silent)
    # Of two drivers at once, both read the last upload.
    return open_corpus(store, recipe.data_id)


def open_corpus(store: Store, data_id: str, ahead: Mapping[str, int] = NOTHING_AHEAD) -> PackedCorpus:
    """Opens the packed corpus on this machine, after fetching it from an object store if need be.

    The training sequences of a permuted corpus are fetched as they are read, and by domain the first `ahead` of them in
    the background. ValueError when the storage lacks it, when the stored copy is corrupted, or when this machine's disk
    is full.
    """
    stored, target = store.data_dir(data_id), store.data_root / data_id
    if store.is_local:
        if not target.exists():
            expected = f"a file system that every machine mounts, {socket.gethostname()} sees no data/{data_id}"
            raise _absent(store, expected)
        return PackedCorpus.open(target)
    assert isinstance(stored, RemoteFolder)
    try:
        text = stored.read(MANIFEST)
    except FileNotFoundError:
        raise _absent(store, f"a storage that holds the data of its runs, found no data/{data_id}") from None
    manifest = parse_manifest(text, stored.file(MANIFEST))
    found = _copy_of(manifest, target)
    if found is not None:
        return found
    with LocalFolder(str(store.data_root), writable=True).lock(f"fetch-{data_id}"):
        if "blocks" in manifest:
            blocks = target.with_name(f"blocks-{data_id}-{hashlib.sha256(text).hexdigest()[:12]}")
            return _open_blocks(stored, text, manifest, blocks, ahead)
        return _copy_of(manifest, target) or _fetch(stored, text, manifest, target)


def _absent(store: Store, expected: str) -> ValueError:
    return invalid("storage", store.root, f"{expected}; submitting the study again packs it")


def _copy_of(manifest: dict, target: Path) -> PackedCorpus | None:
    """Opens this machine's copy if it is whole and has the manifest's fingerprint."""
    corpus = open_complete(target)
    return corpus if corpus is not None and corpus.fingerprint == manifest["fingerprint"] else None


def _upload(corpus: PackedCorpus, stored: RemoteFolder, progress: Progress) -> None:
    files = corpus.manifest["files"]
    sizes = {relative: (corpus.path / relative).stat().st_size for relative in files}
    done, present = 0, set(stored.list())
    for relative, digest in files.items():
        if digest not in present or stored.size(digest) != sizes[relative]:
            stored.upload(digest, str(corpus.path / relative))
        done += sizes[relative]
        progress("uploading", done, sum(sizes.values()))
    stored.write(MANIFEST, (corpus.path / MANIFEST).read_bytes())


def _open_blocks(
    stored: RemoteFolder, text: bytes, manifest: dict, target: Path, ahead: Mapping[str, int]
) -> PackedCorpus:
    """Opens a copy whose training sequences come block by block; downloads its other files unless they are here."""
    with _explained(stored, target):
        rows = fetched_rows(stored, manifest, target)
    try:
        corpus = PackedCorpus.open(target, rows)
    except CorruptCorpus:
        with _explained(stored, target):
            for relative in bytes_of_files(manifest, ("validation",)):
                path = target / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                stored.download(manifest["files"][relative], str(path))
            LocalFolder(str(target), writable=True).write(MANIFEST, text)
            corpus = PackedCorpus.open(target, rows)
    fetch_ahead(rows, ahead)
    return corpus


@contextlib.contextmanager
def _explained(stored: RemoteFolder, folder: Path) -> Iterator[None]:
    """Makes the errors of corrupted files and of a full disk, of a download to `folder`, ValueErrors."""
    try:
        with full_disk_explained(folder.parent):
            yield
    except (CorruptCorpus, FileNotFoundError) as error:
        raise invalid("storage", stored.path, f"intact data, found corrupted files ({error})") from error


def _fetch(stored: RemoteFolder, text: bytes, manifest: dict, target: Path) -> PackedCorpus:
    """Downloads beside the target, continuing a dead process's download; verifies; renames into place."""
    partial = target.with_name(f".fetch-{target.name}")
    try:
        with _explained(stored, partial):
            for relative, digest in manifest["files"].items():
                (partial / relative).parent.mkdir(parents=True, exist_ok=True)
                stored.download(digest, str(partial / relative))
            (partial / MANIFEST).write_bytes(text)
            PackedCorpus.open(partial)
    except ValueError:
        # The next fetch starts over.
        shutil.rmtree(partial)
        raise
    if open_complete(target) is not None:
        # It is other data, of an earlier storage at the same URL.
        shutil.rmtree(target)
    publish(partial, target)
    return PackedCorpus.open(target)
