"""Opens and publishes packed corpora.

`pack.prepare` writes a packed corpus once, as a folder:

    manifest.json                 counts, hashes, recipe and fingerprint
    tokenizer.json                the tokenizer that encoded the text
    train/<domain>.bin            [num_sequences, seq_len + 1], little-endian uint16, or uint32
                                  if vocab_size > 65,535
    validation/<domain>.bin

Inputs are columns 0 to seq_len - 1, and targets are columns 1 to seq_len. Row n + 1 starts with the
last token of row n, so each token of a domain except the first is a target exactly once. If the
recipe is `permuted`, each domain's training rows are stored in permuted order, so that a small run
reads only the first rows. This module needs only numpy.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, NotRequired, Protocol, TypedDict

import numpy as np

from gram_platform.config.crash_safe import (
    A_FILE,
    A_LINK,
    kind_of,
    process_is_alive,
    remove_whole,
    this_place,
    unplain,
)
from gram_platform.config.identity import (
    hash_file,
    invalid,
    local_path,
    one_of,
    require_int,
    require_name,
    short_hash,
)
from gram_platform.config.plain import MOST_JSON_BYTES, parse_json

SPLITS = ("train", "validation")
LAYOUT_VERSION = 1
TOKENIZER = "tokenizer.json"


class Sizes(TypedDict):
    num_sequences: int
    num_documents: int


class SplitSizes(TypedDict):
    train: Sizes
    validation: Sizes


class Blocks(TypedDict):
    """The block size in bytes of a permuted corpus's training files, and each block's SHA-256."""

    num_bytes: int
    files: dict[str, list[str]]


class Unspelled(TypedDict):
    # The share of a domain's text that the tokenizer cannot encode.
    share: float


class Manifest(TypedDict):
    """The manifest.json fields that this module reads."""

    data_id: str
    fingerprint: str
    seq_len: int
    vocab_size: int
    tokenizer_bytes: int
    dtype: Literal["<u2", "<u4"]
    domains: dict[str, SplitSizes]
    files: dict[str, str]
    layout: int
    blocks: NotRequired[Blocks]
    unspelled: NotRequired[dict[str, Unspelled]]


# The bytes of a block of a permuted file. Each has its own hash, so it can be fetched alone.
HASHED_BYTES = 1 << 21
# The age at which another machine's unfinished folder counts as abandoned.
STALE_S = 86_400
# Above these shares of a domain's text that the tokenizer cannot encode, packing warns or fails.
LITTLE_LOST, MOST_LOST = 0.01, 0.5


class CorruptCorpus(ValueError):
    """Raised if files of a packed corpus are missing or damaged. Prepare the corpus again."""


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 65_535 else "<u4")


def cache_folder() -> Path:
    """Returns the cache folder: `$GRAM_CACHE` if it is set, otherwise `~/.cache/gram`."""
    return local_path("GRAM_CACHE", os.environ.get("GRAM_CACHE", "~/.cache/gram"))


def sequence_path(split: str, domain: str) -> str:
    return f"{split}/{domain}.bin"


def bytes_of_files(manifest: Mapping, splits: Sequence[str] = SPLITS) -> dict[str, int]:
    """Returns the sizes in bytes of the tokenizer and the sequence files of `splits`, by path."""
    row_bytes = (manifest["seq_len"] + 1) * np.dtype(manifest["dtype"]).itemsize
    sizes = {TOKENIZER: manifest["tokenizer_bytes"]}
    for split, (domain, counts) in product(splits, manifest["domains"].items()):
        sizes[sequence_path(split, domain)] = counts[split]["num_sequences"] * row_bytes
    return sizes


def corpus_fingerprint(files: dict[str, str]) -> str:
    """Hashes the files' paths and SHA-256 digests to 16 hexadecimal digits."""
    listing = json.dumps(sorted(files.items()), separators=(",", ":"))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


class TokenRows(Protocol):
    """Token ids [num_sequences, seq_len + 1], in an array or fetched when they are indexed."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class PackedCorpus:
    """A packed corpus that is open for reading.

    `fetched` maps domains to training sequences that are read from an object store. It is None if
    all files are on this machine.
    """

    path: Path
    manifest: dict = field(repr=False)
    fetched: Mapping[str, TokenRows] | None = field(default=None, repr=False)

    @classmethod
    def open(
        cls, path: Path | str, fetched: Mapping[str, TokenRows] | None = None
    ) -> "PackedCorpus":
        """Opens a folder and checks file sizes. Each machine hashes unchanged files only once.

        Raises CorruptCorpus if the manifest is unreadable, or if a file is missing or does not
        match the manifest. Raises ValueError for a symbolic link.
        """
        path = Path(path)
        for folder in (path, *(path / split for split in SPLITS)):
            _require_no_link(folder)
        corpus = cls(path, _read_manifest(path), fetched)
        for relative, num_bytes in corpus._bytes_here.items():
            target = path / relative
            if (kind := _require_no_link(target)) != A_FILE:
                raise CorruptCorpus(f"{target} is {kind or 'missing'}: prepare the corpus again")
            if (size := target.stat().st_size) != num_bytes:
                raise CorruptCorpus(
                    f"{target} has {size} bytes, its manifest says {num_bytes}: prepare it again"
                )
        corpus._verify_once()
        return corpus

    @property
    def data_id(self) -> str:
        return self.manifest["data_id"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Messages about skipped records and about text that the tokenizer cannot encode."""
        counts = self.manifest.get("skipped", {})
        left_out = (f"{row}: left out {n:,} records without a field" for row, n in counts.items())
        return (*left_out, *describe_unspelled(self.manifest))

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def is_permuted(self) -> bool:
        recipe = self.manifest.get("recipe")
        return isinstance(recipe, dict) and recipe.get("permuted") is True

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains: core, then the auxiliary domains sorted by name."""
        counts = self.manifest["domains"].items()
        return tuple(d for d, splits in counts if splits["validation"]["num_sequences"])

    @property
    def seq_len(self) -> int:
        return self.manifest["seq_len"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["vocab_size"]

    @property
    def tokenizer_path(self) -> Path:
        return self.path / TOKENIZER

    def num_sequences(self, split: str, domain: str) -> int:
        return self._counts(split, domain)["num_sequences"]

    def train(self, domain: str) -> TokenRows:
        return self.sequences("train", domain)

    def validation(self, domain: str) -> np.ndarray:
        """Memory-maps a domain's validation sequences [num_sequences, seq_len + 1] as read-only."""
        return self._map("validation", domain)

    def sequences(self, split: str, domain: str) -> TokenRows:
        """Returns a domain's token ids in a split, [num_sequences, seq_len + 1]."""
        self._counts(split, domain)
        if split == "train" and self.fetched is not None:
            return self.fetched[domain]
        return self._map(split, domain)

    def _map(self, split: str, domain: str) -> np.memmap:
        shape = (self.num_sequences(split, domain), self.seq_len + 1)
        target = self.path / sequence_path(split, domain)
        return np.memmap(target, dtype=np.dtype(self.manifest["dtype"]), mode="r", shape=shape)

    def verify(self) -> None:
        """Raises CorruptCorpus unless all files on this machine match the manifest's SHA-256."""
        for relative in self._bytes_here:
            digest, expected = hash_file(self.path / relative), self.manifest["files"][relative]
            if digest != expected:
                raise CorruptCorpus(
                    f"{self.path / relative} has SHA-256 {digest}, its manifest says {expected}"
                )
        if corpus_fingerprint(self.manifest["files"]) != self.fingerprint:
            raise CorruptCorpus(
                f"{self.path}: the manifest's fingerprint does not follow from its files"
            )

    def _verify_once(self) -> None:
        files = [os.stat(self.path / relative) for relative in self._bytes_here]
        stats = [(f.st_dev, f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for f in files]
        name = short_hash([stats, self.manifest["files"], self.fingerprint])
        marker = cache_folder() / "verified" / name
        if not marker.exists():
            self.verify()
            # Without the marker, the next process merely verifies again.
            with contextlib.suppress(OSError):
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()

    def _counts(self, split: str, domain: str) -> dict[str, int]:
        if domain not in self.manifest["domains"]:
            raise invalid("domain", domain, one_of(domain, self.domains))
        return self.manifest["domains"][domain][split]

    @property
    def _bytes_here(self) -> dict[str, int]:
        return bytes_of_files(self.manifest, SPLITS if self.fetched is None else ("validation",))


def describe_unspelled(manifest: Mapping) -> list[str]:
    return [
        f"domain {domain}: the tokenizer cannot spell {lost['share']:.1%} of its text"
        for domain, lost in manifest.get("unspelled", {}).items()
        if lost["share"] > LITTLE_LOST
    ]


def _require_no_link(path: Path) -> str:
    """Returns a path's file type. Rejects links, which could point outside the storage."""
    if (kind := kind_of(path)) == A_LINK:
        raise unplain(path, kind, "packed data themselves")
    return kind


def _read_manifest(path: Path) -> dict:
    target = path / "manifest.json"
    try:
        if _require_no_link(target) != A_FILE:
            raise FileNotFoundError
        with target.open("rb") as file:
            return parse_manifest(file.read(MOST_JSON_BYTES + 1), target)
    except FileNotFoundError:
        raise CorruptCorpus(f"{path} is not a packed corpus: it has no manifest.json") from None


def parse_manifest(text: bytes, where: object) -> dict:
    """Parses a manifest. Raises CorruptCorpus if it is damaged or has another layout version."""
    try:
        manifest = parse_json(text, Manifest)
        counts = {name: manifest[name] for name in ("seq_len", "vocab_size", "tokenizer_bytes")}
        for domain, splits in manifest["domains"].items():
            counts |= {
                f"domains.{domain}.{s}.{name}": n for s in SPLITS for name, n in splits[s].items()
            }
        for name, number in counts.items():
            require_int(name, number, 0, 2**63 - 1)
        for domain in manifest["domains"]:
            require_name("domain", domain)
        if manifest["files"].keys() != bytes_of_files(manifest).keys():
            raise invalid(
                "files",
                sorted(manifest["files"])[:4],
                f"{TOKENIZER} and one file a domain and split",
            )
        if "blocks" in manifest:
            require_int("blocks.num_bytes", manifest["blocks"]["num_bytes"], 1, 2**30)
    except ValueError as error:
        raise CorruptCorpus(f"{where} cannot be read ({error}): prepare the corpus again") from None
    if manifest["layout"] != LAYOUT_VERSION:
        raise CorruptCorpus(
            f"{where} has layout {manifest['layout']}, this version reads layout {LAYOUT_VERSION}"
        )
    return manifest


def split_documents(rows: np.ndarray, end_of_text: int) -> list[np.ndarray]:
    """Splits rows [N, seq_len + 1] into complete documents, without end-of-text tokens."""
    stream = np.concatenate([rows[:, :-1].reshape(-1), rows[-1, -1:]])
    ends = np.flatnonzero(stream == end_of_text)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    return [stream[start:end] for start, end in zip(starts, ends, strict=True)]


def prompts_and_truths(
    rows: np.ndarray,
    end_of_text: int,
    wanted: Sequence[int],
    num_prompt_tokens: int,
    num_tokens: int,
) -> list[tuple[list[int], list[int]]]:
    """Returns (prompt, continuation) of the `wanted` documents, as token ids.

    A prompt has `num_prompt_tokens` tokens, and a continuation at most `num_tokens`. `wanted`
    contains indices into the list of documents with more than `num_prompt_tokens` tokens.
    Raises ValueError if an index is too large.
    """
    long_enough = [d for d in split_documents(rows, end_of_text) if len(d) > num_prompt_tokens]
    if max(wanted) >= len(long_enough):
        documents = f"the {len(long_enough)} documents of more than {num_prompt_tokens} tokens"
        raise invalid("continuations.documents", tuple(wanted), f"numbers below {documents}")
    stop = num_prompt_tokens + num_tokens
    documents = [long_enough[index].tolist() for index in wanted]
    return [(tokens[:num_prompt_tokens], tokens[num_prompt_tokens:stop]) for tokens in documents]


def open_complete(target: Path) -> PackedCorpus | None:
    """Opens a packed corpus. Returns None if files are missing or damaged."""
    try:
        return PackedCorpus.open(target)
    except CorruptCorpus:
        return None


def new_staging(root: Path, data_id: str) -> Path:
    """Creates a folder for this packing attempt, and deletes folders of abandoned attempts."""
    place = short_hash(this_place())
    staging = root / f".{data_id}.{place}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(f".{data_id}.*"):
            if _is_abandoned(old, place):
                remove_whole(old)
        staging.mkdir()
    except OSError as error:
        raise invalid(
            "storage", str(root), f"a folder that can be written ({error.strerror})"
        ) from None
    return staging


def _is_abandoned(staging: Path, place: str) -> bool:
    pid = staging.name.split(".")[-2]
    try:
        if f".{place}.{pid}." in staging.name:
            return not process_is_alive(int(pid))
        written = max(path.stat().st_mtime for path in (staging, *staging.rglob("*")))
        return time.time() - written > STALE_S
    except (FileNotFoundError, ValueError):
        # The folder was renamed or removed meanwhile, or its name has another form.
        return False


def publish(staging: Path, target: Path) -> None:
    """Renames a finished folder to `target`, unless a complete corpus is already there."""
    for _ in range(3):
        try:
            staging.rename(target)
            return
        except OSError:
            if not target.exists():
                raise
        if open_complete(target) is not None:
            return
        broken = target.with_name(f"{staging.name}.broken")
        target.rename(broken)
        remove_whole(broken)
    raise OSError(f"{target} keeps coming back incomplete: is another program writing there?")
