"""The storage's root: opening it, and the directories in it."""

import errno
import json
import os
import secrets
import shutil
import socket
from pathlib import Path

from gram_platform.config import IMPORTED, RECIPE_VERSION
from gram_platform.config.identity import invalid, local_path, short_hash
from gram_platform.corpora.packed import CorruptCorpus, PackedCorpus, open_complete, publish
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.corpora.sources import Progress
from gram_platform.store.directories import EvaluationDirectory, ImportDirectory
from gram_platform.store.files import CorruptFile, Folder
from gram_platform.store.folders import LocalFolder, RemoteFolder, open_folder
from gram_platform.store.runs import RunDirectory

LAYOUT = 1  # of the files described in this package
MIN_FREE_BYTES = 64 * 2**20


class Store:
    """A storage at a local path (`~` expanded) or an fsspec URL. Reading needs no preparation and changes nothing.

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
        """Create the storage if need be and allow writing; returns the store.

        ValueError naming `storage` when it cannot be written, has less than `min_free_bytes` left (local ones) or was
        written by another recipe version, whose runs can be read and would not be comparable.
        """
        self._check_version()
        folder = open_folder(self.root, writable=True)
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
            allowed = f"a place with {min_free_bytes / 2**20:,.0f} MiB free, found {free_bytes / 2**20:,.0f} MiB"
            raise invalid("storage", self.root, allowed)
        self._check_version()  # another process may have created it since
        self._folder = folder
        return self

    def run(self, run_id: str) -> RunDirectory:
        return RunDirectory(self._folder, run_id)

    def evaluation(self, eval_id: str) -> EvaluationDirectory:
        return EvaluationDirectory(self._folder, eval_id)

    def node(self, kind: str, node_id: str) -> RunDirectory | EvaluationDirectory:
        """Of a study's node: `kind` is run or evaluation."""
        return self.run(node_id) if kind == "run" else self.evaluation(node_id)

    def origin(self, run_id: str) -> RunDirectory | ImportDirectory:
        """What holds the weights that a view calls `run_id`: a run, or a model that was imported."""
        return self.imported(run_id) if run_id.startswith(IMPORTED) else self.run(run_id)

    def imported(self, import_id: str) -> ImportDirectory:
        return ImportDirectory(self._folder, import_id)

    def list_imports(self) -> list[str]:
        """The ids of all imported models, sorted."""
        return self._folder.child("imports").list()

    def list_runs(self) -> list[str]:
        """The run_ids of all run directories, sorted."""
        return self._folder.child("runs").list()

    def list_evaluations(self) -> list[str]:
        """The eval_ids of all evaluation directories, sorted."""
        return self._folder.child("evaluations").list()

    def study_dir(self, name: str) -> Folder:
        """The folder of a study, `<storage>/studies/<name>`; its `path` is a directory when the store is local."""
        return self._folder.child("studies", name)

    def list_studies(self) -> list[str]:
        """The names of all studies and searches that have written something, sorted."""
        return self._folder.child("studies").list()

    def search_dir(self, search_id: str) -> Folder:
        """The folder of a search's driver, `<storage>/searches/<search_id>`."""
        return self._folder.child("searches", search_id)

    def list_searches(self) -> list[str]:
        """The ids of all searches, sorted."""
        return self._folder.child("searches").list()

    @property
    def data_root(self) -> Path:
        """A local directory for packed corpora, which are memory-mapped.

        `<storage>/data`, or for an object store one of this machine under `$GRAM_CACHE` (default `~/.cache/gram`).
        """
        if self.is_local:
            return Path(self.root) / "data"
        cache = os.environ.get("GRAM_CACHE", "~/.cache/gram")
        return local_path("GRAM_CACHE", cache) / short_hash(self.root) / "data"

    def data_dir(self, data_id: str) -> Folder:
        """The folder of a packed corpus in the storage, `<storage>/data/<data_id>`; see `data.py`."""
        return self._folder.child("data", data_id)

    def _check_version(self) -> None:
        try:
            stored = self._folder.read_json("store.json")
        except NotADirectoryError as error:
            raise invalid("storage", self.root, "a folder, found a file") from error
        except CorruptFile as error:
            raise invalid("storage", self.root, f"a storage whose store.json is intact ({error})") from error
        if stored is None:
            return
        found = (stored.get("layout"), stored.get("recipe_version"))
        if found != (LAYOUT, RECIPE_VERSION):
            allowed = f"a storage written by recipe version {RECIPE_VERSION}; version {found[1]} (layout {found[0]}) "
            allowed += "is readable, not written"
            raise invalid("storage", self.root, allowed)


MANIFEST = "manifest.json"


def provide_corpus(recipe: CorpusRecipe, store: Store, progress: Progress | None = None) -> PackedCorpus:
    """The recipe's corpus, where every machine can open it: found in the storage, else packed here and uploaded.

    `store` is open for writing. Raises what `prepare` and `open_corpus` do.
    """
    from gram_platform.corpora.pack import prepare  # here, because a machine that only trains needs no tokenizers

    if store.is_local:
        return prepare(recipe, store.data_root, progress)
    stored = store.data_dir(recipe.data_id)
    assert isinstance(stored, RemoteFolder)
    if stored.exists(MANIFEST):
        return open_corpus(store, recipe.data_id)
    corpus = prepare(recipe, store.data_root, progress)
    _upload(corpus, stored, progress or (lambda what, done, total: None))
    return open_corpus(store, recipe.data_id)  # of two drivers at once, all read what the last one left


def open_corpus(store: Store, data_id: str) -> PackedCorpus:
    """The packed corpus on this machine, fetched from an object store if this machine lacks it.

    ValueError when the storage does not have it, when what it has is corrupted, or when this machine's disk is full.
    """
    target = store.data_root / data_id
    if store.is_local:
        if not target.exists():
            raise _absent(store, data_id, f"a file system that every machine mounts ({socket.gethostname()} sees no")
        return PackedCorpus.open(target)
    stored = store.data_dir(data_id)
    assert isinstance(stored, RemoteFolder)
    try:
        text = stored.read(MANIFEST)
    except FileNotFoundError:
        raise _absent(store, data_id, "a storage with the data of its runs (it has no") from None
    manifest = json.loads(text)
    found = _copy_of(manifest, target)
    if found is not None:
        return found
    with LocalFolder(str(store.data_root), writable=True).lock(f"fetch-{data_id}"):
        return _copy_of(manifest, target) or _fetch(stored, text, target)


def _absent(store: Store, data_id: str, allowed: str) -> ValueError:
    return invalid("storage", store.root, f"{allowed} data/{data_id}); submitting the study again makes it")


def _copy_of(manifest: dict, target: Path) -> PackedCorpus | None:
    """This machine's copy, if it is whole and the very data of the manifest."""
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


def _fetch(stored: RemoteFolder, manifest: bytes, target: Path) -> PackedCorpus:
    """Downloads beside the target, continuing what a process that died has left; verifies; renames into place."""
    partial = target.with_name(f".fetch-{target.name}")
    try:
        for relative, digest in json.loads(manifest)["files"].items():
            (partial / relative).parent.mkdir(parents=True, exist_ok=True)
            stored.download(digest, str(partial / relative))
        (partial / MANIFEST).write_bytes(manifest)
        PackedCorpus.open(partial).verify()
    except (CorruptCorpus, FileNotFoundError) as error:
        shutil.rmtree(partial)  # the next one begins again
        raise invalid("storage", stored.path, f"a storage whose data is intact ({error})") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.rmtree(partial)
        allowed = f"a folder ($GRAM_CACHE) with room for the data ({error.strerror})"
        raise invalid("storage", str(target.parent), allowed) from error
    if open_complete(target) is not None:  # other data, of a storage that lay under the same URL
        shutil.rmtree(target)
    publish(partial, target)
    return PackedCorpus.open(target)
