"""Training sequences in an object store, fetched block by block when a run first reads a row of them.

Processes of a machine share a file for each domain, as long as the stored one, with holes where a block is not here.
Each process compares a block's SHA-256 with the manifest's before it reads a row of it, and fetches it if they differ.
"""

import contextlib
import errno
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import sequence_path
from gram_platform.store.folders import LocalFolder
from gram_platform.store.listing import concurrently
from gram_platform.store.remote_folder import CONNECTIONS, RemoteFolder

# Connections for what is fetched before a run reads it.
CONNECTIONS_AHEAD = 4
# Blocks share locks, so that a machine keeps few files.
NUM_LOCKS = 64


class FetchedBlocks:
    """This machine's copy of one stored file, in blocks of equal size except the last."""

    def __init__(self, path: Path, num_bytes: int, block_bytes: int, hashes: Sequence[str], fetch: Callable):
        """`hashes`: the SHA-256 of every block; `fetch(first, stop)` returns these bytes of the stored file."""
        self.path, self.block_bytes, self.num_bytes = path, block_bytes, num_bytes
        self._hashes, self._fetch = hashes, fetch
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        # The file closes it together with this object.
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        if os.fstat(self._file.fileno()).st_size < num_bytes:
            os.ftruncate(self._file.fileno(), num_bytes)
        # Never shortens: a process that maps a file cut short is killed.
        self._is_here = np.zeros(len(hashes), dtype=bool)
        self._locks = LocalFolder(str(path.parent), writable=True)

    @property
    def is_whole(self) -> bool:
        return bool(self._is_here.all())

    def bring(self, number: int) -> None:
        """Returns when the block is here and intact.

        ValueError when the storage's copy is damaged or this machine's disk is full, OSError when the storage cannot be
        reached.
        """
        if not self._is_here[number] and not self._is_intact(number):
            with self._locks.lock(f"fetch-{number % NUM_LOCKS}"):
                if not self._is_intact(number):
                    # Another process or thread may have fetched it meanwhile.
                    self._fill(number)
        self._is_here[number] = True

    def bring_all(self, numbers: Iterable[int]) -> None:
        """Does `bring` for each block, several at once."""
        absent = [number for number in numbers if not self._is_here[number]]
        if absent:
            with ThreadPoolExecutor(min(CONNECTIONS, len(absent))) as connections:
                list(connections.map(self.bring, absent))

    def _range(self, number: int) -> tuple[int, int]:
        """Returns where the block begins and ends."""
        return number * self.block_bytes, min((number + 1) * self.block_bytes, self.num_bytes)

    def _is_intact(self, number: int, block: bytes | None = None) -> bool:
        """Compares the hash of the block, by default as it is here, with the manifest's."""
        if block is None:
            start, stop = self._range(number)
            block = os.pread(self._file.fileno(), stop - start, start)
        return hashlib.sha256(block).hexdigest() == self._hashes[number]

    def _fill(self, number: int) -> None:
        start, stop = self._range(number)
        block = self._fetch(start, stop)
        if not self._is_intact(number, block):
            raise invalid("storage", str(self.path), f"intact data, found another block {number} in the storage")
        view = memoryview(block)
        with full_disk_explained(self.path.parent):
            while view:
                # One call may write less.
                written = os.pwrite(self._file.fileno(), view, start)
                view, start = view[written:], start + written


class FetchedRows:
    """The training sequences of a domain, token ids [num_sequences, seq_len + 1]; a row is fetched when it is read."""

    def __init__(self, blocks: FetchedBlocks, shape: tuple[int, int], dtype: np.dtype):
        self.blocks = blocks
        self._array = np.memmap(blocks.path, dtype, mode="r", shape=shape) if shape[0] else np.empty(shape, dtype)
        self._row_bytes = shape[1] * dtype.itemsize

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Returns the sequences of a slice, or of an int array of rows that are not negative."""
        if not self.blocks.is_whole:
            wanted = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
            self.blocks.bring_all(self._blocks_of(wanted))
        return self._array[rows]

    def _blocks_of(self, rows: np.ndarray) -> list[int]:
        size = self.blocks.block_bytes
        first, last = rows * self._row_bytes // size, ((rows + 1) * self._row_bytes - 1) // size
        # A row's first block and those that it may reach into.
        between = np.arange((self._row_bytes - 1) // size + 2)
        return np.unique((first[:, None] + between).clip(max=last[:, None])).tolist()

    def first(self, num_rows: int) -> list[int]:
        """Returns the numbers of the blocks that hold the first rows."""
        return list(range(-(-min(num_rows, len(self)) * self._row_bytes // self.blocks.block_bytes)))


def fetched_rows(stored: RemoteFolder, manifest: Mapping, folder: Path) -> dict[str, FetchedRows]:
    """Opens every domain's training sequences of a permuted corpus, in a local folder that belongs to this manifest.

    ValueError when the manifest's rows are not those of the stored files.
    """
    names = {domain: sequence_path("train", domain) for domain in manifest["domains"]}
    digests = [manifest["files"][name] for name in names.values()]
    sizes = dict(zip(names, concurrently(stored.size, digests, stored), strict=True))
    dtype, rows = np.dtype(manifest["dtype"]), {}
    for domain, counts in manifest["domains"].items():
        name, shape = names[domain], (counts["train"]["num_sequences"], manifest["seq_len"] + 1)
        path, num_bytes = folder / name, shape[0] * shape[1] * dtype.itemsize
        block_bytes, hashes = manifest["blocks"]["num_bytes"], manifest["blocks"]["files"].get(name, ())
        if len(hashes) != -(-num_bytes // block_bytes):
            raise invalid("storage", stored.path, f"a manifest with a hash for each block of {name}")
        if sizes[domain] != num_bytes:
            raise invalid("storage", stored.path, f"{num_bytes} bytes of {name}, as its rows take, not {sizes[domain]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        fetch = partial(stored.read_range, manifest["files"][name])
        rows[domain] = FetchedRows(FetchedBlocks(path, num_bytes, block_bytes, hashes, fetch), shape, dtype)
    return rows


def fetch_ahead(rows: Mapping[str, FetchedRows], num_rows: Mapping[str, int]) -> None:
    """Begins to fetch the first `num_rows` of domains, the smallest first, in threads that end with the process."""
    left: queue.SimpleQueue[tuple[FetchedBlocks, int]] = queue.SimpleQueue()
    for domain in sorted(num_rows, key=lambda name: num_rows[name]):
        for number in rows[domain].first(num_rows[domain]):
            left.put((rows[domain].blocks, number))
    for _ in range(min(CONNECTIONS_AHEAD, left.qsize())):
        threading.Thread(target=_bring_each, args=(left,), name="fetch ahead", daemon=True).start()


def _bring_each(left: "queue.SimpleQueue[tuple[FetchedBlocks, int]]") -> None:
    """Brings blocks until none is left, or one fails: then the run meets the error itself when it reads the block.

    A process that ends makes drivers of object stores fail with a RuntimeError.
    """
    with contextlib.suppress(queue.Empty, OSError, ValueError, RuntimeError):
        while True:
            blocks, number = left.get_nowait()
            blocks.bring(number)


@contextlib.contextmanager
def full_disk_explained(place: Path) -> Iterator[None]:
    """Makes the error of a full disk a ValueError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        expected = f"enough free space, found a full disk ({error.strerror}); $GRAM_CACHE names another folder"
        raise invalid("storage", str(place), expected) from error
