"""Downloads packed corpora from the storage to this machine, and uploads new corpora.

A permuted corpus in an object store is downloaded in blocks. Reading a training sequence fetches
those of its blocks that are missing or damaged on this machine. All processes on a machine share
one sparse file per domain.
"""

import contextlib
import errno
import hashlib
import os
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import (
    CorruptCorpus,
    PackedCorpus,
    bytes_of_files,
    describe_unspelled,
    open_complete,
    parse_manifest,
    publish,
    sequence_path,
)
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.corpora.sources import Progress, silent
from gram_platform.store.checkpoints import MANIFEST
from gram_platform.store.folders import LocalFolder
from gram_platform.store.remote_folder import CONNECTIONS, RemoteFolder
from gram_platform.store.root import Store

if TYPE_CHECKING:
    # This module imports tokenizers.
    from gram_platform.corpora.parts import Workers

NOTHING_AHEAD: Mapping[str, int] = {}
CONNECTIONS_AHEAD = 4
# Blocks share locks, so that there are few lock files.
NUM_LOCKS = 64


def provide_corpus(
    recipe: CorpusRecipe,
    store: Store,
    progress: Progress = silent,
    workers: "Workers | None" = None,
) -> PackedCorpus:
    """Opens the corpus of a recipe. Packs and uploads it first if the storage lacks it.

    `store` must be open for writing. `workers` are passed to `prepare` and need access to this
    machine's files. Raises the errors of `prepare` and `open_corpus`.
    """
    # Imported here, because a machine that only trains lacks tokenizers.
    from gram_platform.corpora.pack import in_turn, prepare

    pack = partial(prepare, recipe, store.data_root, progress, workers or in_turn)
    if store.is_local:
        return pack()
    stored = store.data_dir(recipe.data_id)
    assert isinstance(stored, RemoteFolder)
    try:
        parse_manifest(stored.read(MANIFEST), stored.file(MANIFEST))
    except (FileNotFoundError, CorruptCorpus):
        _upload(pack(), stored, progress)
    # If two drivers upload at once, both open the last upload.
    return open_corpus(store, recipe.data_id)


def open_corpus(
    store: Store, data_id: str, ahead: Mapping[str, int] = NOTHING_AHEAD
) -> PackedCorpus:
    """Opens a packed corpus on this machine. Downloads it first if it is in an object store.

    Training sequences of a permuted corpus are fetched when they are read. The first
    `ahead[domain]` sequences of each domain are also fetched in the background. Raises ValueError
    if the storage lacks the corpus or has a corrupted copy, or if this machine's disk is full.
    """
    stored, target = store.data_dir(data_id), store.data_root / data_id
    if store.is_local:
        if not target.exists():
            here = f"{socket.gethostname()} sees no data/{data_id}"
            raise _absent(store, f"a file system that every machine mounts, {here}")
        return PackedCorpus.open(target)
    assert isinstance(stored, RemoteFolder)
    try:
        text = stored.read(MANIFEST)
    except FileNotFoundError:
        expected = f"a storage that holds the data of its runs, found no data/{data_id}"
        raise _absent(store, expected) from None
    manifest = parse_manifest(text, stored.file(MANIFEST))
    if (corpus := _copy_of(manifest, target)) is not None:
        return corpus
    with LocalFolder(str(store.data_root), writable=True).lock(f"fetch-{data_id}"):
        if "blocks" in manifest:
            blocks = target.with_name(f"blocks-{data_id}-{hashlib.sha256(text).hexdigest()[:12]}")
            return _open_blocks(stored, text, manifest, blocks, ahead)
        return _copy_of(manifest, target) or _fetch(stored, text, manifest, target)


def lost_text(store: Store, data_id: str) -> list[str]:
    """Returns a warning for each domain whose share of unencodable text exceeds LITTLE_LOST."""
    stored = store.data_dir(data_id)
    try:
        return describe_unspelled(parse_manifest(stored.read(MANIFEST), stored.file(MANIFEST)))
    except (FileNotFoundError, CorruptCorpus):
        return []


def _absent(store: Store, expected: str) -> ValueError:
    return invalid("storage", store.root, f"{expected}; submitting the study again packs it")


def _copy_of(manifest: dict, target: Path) -> PackedCorpus | None:
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
    with _explain_damage(stored, target):
        rows = open_rows(stored, manifest, target)
    try:
        corpus = PackedCorpus.open(target, rows)
    except CorruptCorpus:
        with _explain_damage(stored, target):
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
def _explain_damage(stored: RemoteFolder, folder: Path) -> Iterator[None]:
    try:
        with explain_full_disk(folder.parent):
            yield
    except (CorruptCorpus, FileNotFoundError) as error:
        expected = f"intact data, found corrupted files ({error})"
        raise invalid("storage", stored.path, expected) from error


def _fetch(stored: RemoteFolder, text: bytes, manifest: dict, target: Path) -> PackedCorpus:
    partial = target.with_name(f".fetch-{target.name}")
    try:
        with _explain_damage(stored, partial):
            for relative, digest in manifest["files"].items():
                (partial / relative).parent.mkdir(parents=True, exist_ok=True)
                stored.download(digest, str(partial / relative))
            (partial / MANIFEST).write_bytes(text)
            PackedCorpus.open(partial)
    except ValueError:
        # Otherwise the next fetch would continue damaged files.
        shutil.rmtree(partial)
        raise
    # An earlier storage at the same URL had other data.
    if open_complete(target) is not None:
        shutil.rmtree(target)
    publish(partial, target)
    return PackedCorpus.open(target)


class FetchedRows:
    """The training sequences of a domain as an array of token ids [num_sequences, seq_len + 1].

    A row is one sequence, fetched when it is read. `path` is the local copy of the stored file. The
    file is split into blocks of `block_bytes` bytes (the last may be shorter). `hashes` are the
    SHA-256 of the blocks. `fetch(start, stop)` reads a byte range of the stored file.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int],
        dtype: np.dtype,
        block_bytes: int,
        hashes: Sequence[str],
        fetch: Callable[[int, int], bytes],
    ):
        self.path, self._block_bytes = path, block_bytes
        self._row_bytes = shape[1] * dtype.itemsize
        self._num_bytes = shape[0] * self._row_bytes
        self._hashes, self._fetch = hashes, fetch
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        # The file is never shortened, because that would kill processes that map it.
        if os.fstat(self._file.fileno()).st_size < self._num_bytes:
            os.ftruncate(self._file.fileno(), self._num_bytes)
        self._is_here = np.zeros(len(hashes), dtype=bool)
        self._locks = LocalFolder(str(path.parent), writable=True)
        self._array = (
            np.memmap(path, dtype, mode="r", shape=shape) if shape[0] else np.empty(shape, dtype)
        )

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Returns the sequences at `rows`, a slice or an array of non-negative int indices."""
        if not self._is_here.all():
            numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
            absent = [block for block in self._blocks_of(numbers) if not self._is_here[block]]
            if absent:
                with ThreadPoolExecutor(min(CONNECTIONS, len(absent))) as connections:
                    list(connections.map(self.bring, absent))
        return self._array[rows]

    def _blocks_of(self, rows: np.ndarray) -> list[int]:
        size = self._block_bytes
        first, last = rows * self._row_bytes // size, ((rows + 1) * self._row_bytes - 1) // size
        # A row's first block, and the blocks after it that the row may extend into.
        between = np.arange((self._row_bytes - 1) // size + 2)
        return np.unique((first[:, None] + between).clip(max=last[:, None])).tolist()

    def first(self, num_rows: int) -> list[int]:
        """Returns the indices of the blocks that contain the first `num_rows` rows."""
        return list(range(-(-min(num_rows, len(self)) * self._row_bytes // self._block_bytes)))

    def bring(self, number: int) -> None:
        """Fetches the block with index `number` if this machine has no intact copy of it.

        Raises ValueError if the stored block is damaged or this machine's disk is full, and OSError
        if the storage cannot be reached.
        """
        if not self._is_here[number] and not self._is_intact(number):
            with self._locks.lock(f"fetch-{number % NUM_LOCKS}"):
                if not self._is_intact(number):
                    self._fill(number)
        self._is_here[number] = True

    def _range(self, number: int) -> tuple[int, int]:
        return number * self._block_bytes, min((number + 1) * self._block_bytes, self._num_bytes)

    def _is_intact(self, number: int, block: bytes | None = None) -> bool:
        if block is None:
            start, stop = self._range(number)
            block = os.pread(self._file.fileno(), stop - start, start)
        return hashlib.sha256(block).hexdigest() == self._hashes[number]

    def _fill(self, number: int) -> None:
        start, stop = self._range(number)
        block = self._fetch(start, stop)
        if not self._is_intact(number, block):
            expected = f"intact data, found another block {number} in the storage"
            raise invalid("storage", str(self.path), expected)
        view = memoryview(block)
        with explain_full_disk(self.path.parent):
            while view:
                # One call may write only a part.
                written = os.pwrite(self._file.fileno(), view, start)
                view, start = view[written:], start + written


def open_rows(stored: RemoteFolder, manifest: Mapping, folder: Path) -> dict[str, FetchedRows]:
    """Opens the training sequences of a permuted corpus. Returns FetchedRows by domain.

    `folder` is a local folder with only sequences of this manifest's corpus. Raises ValueError if
    block hashes are missing or a stored file has the wrong size.
    """
    names = {domain: sequence_path("train", domain) for domain in manifest["domains"]}
    digests = [manifest["files"][name] for name in names.values()]
    with ThreadPoolExecutor(CONNECTIONS) as connections:
        sizes = dict(zip(names, connections.map(stored.size, digests), strict=True))
    dtype, rows = np.dtype(manifest["dtype"]), {}
    for domain, counts in manifest["domains"].items():
        name, shape = names[domain], (counts["train"]["num_sequences"], manifest["seq_len"] + 1)
        path, num_bytes = folder / name, shape[0] * shape[1] * dtype.itemsize
        block_bytes = manifest["blocks"]["num_bytes"]
        hashes = manifest["blocks"]["files"].get(name, ())
        if len(hashes) != -(-num_bytes // block_bytes):
            expected = f"a manifest with a hash for each block of {name}"
            raise invalid("storage", stored.path, expected)
        if sizes[domain] != num_bytes:
            expected = f"{num_bytes} bytes of {name}, as its rows take, not {sizes[domain]}"
            raise invalid("storage", stored.path, expected)
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch = partial(stored.read_range, manifest["files"][name])
        rows[domain] = FetchedRows(path, shape, dtype, block_bytes, hashes, fetch)
    return rows


def fetch_ahead(rows: Mapping[str, FetchedRows], num_rows: Mapping[str, int]) -> None:
    left: queue.SimpleQueue[tuple[FetchedRows, int]] = queue.SimpleQueue()
    for domain in sorted(num_rows, key=lambda name: num_rows[name]):
        for number in rows[domain].first(num_rows[domain]):
            left.put((rows[domain], number))
    for _ in range(min(CONNECTIONS_AHEAD, left.qsize())):
        threading.Thread(target=_bring_each, args=(left,), name="fetch ahead", daemon=True).start()


def _bring_each(left: "queue.SimpleQueue[tuple[FetchedRows, int]]") -> None:
    """Fetches queued blocks until the queue is empty or a fetch fails.

    Suppresses OSError and ValueError, which a later read of the block raises again. Suppresses
    RuntimeError, which object store drivers raise while the process exits.
    """
    with contextlib.suppress(queue.Empty, OSError, ValueError, RuntimeError):
        while True:
            rows, number = left.get_nowait()
            rows.bring(number)


@contextlib.contextmanager
def explain_full_disk(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        expected = "enough free space, found a full disk"
        expected += f" ({error.strerror}); $GRAM_CACHE names another folder"
        raise invalid("storage", str(place), expected) from error
