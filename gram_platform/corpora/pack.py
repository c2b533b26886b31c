"""Packs a corpus atomically.

Splits and tokenises the text in parts (`parts.py`). Then writes the sequence files in pieces
(`JoinPiece`). Memory holds at most one part, one piece, and the keys of texts that could be
in training in one domain and in validation in another (`Candidates`).
"""

import errno
import hashlib
import json
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from gram_platform.config.crash_safe import require_plain
from gram_platform.config.identity import hash_file, invalid, without_secrets
from gram_platform.config.routing import domain_permutation
from gram_platform.corpora.packed import (
    HASHED_BYTES,
    LAYOUT_VERSION,
    MOST_LOST,
    SPLITS,
    TOKENIZER,
    PackedCorpus,
    corpus_fingerprint,
    new_staging,
    open_complete,
    publish,
    sequence_path,
    token_dtype,
)
from gram_platform.corpora.parts import (
    KEYS,
    Part,
    PartFiles,
    Workers,
    counts_of,
    in_turn,
    parts_of,
    read_blocks,
    token_path,
    write_tokens,
)
from gram_platform.corpora.recipe import BYTES_PER_TOKEN, MIN_SAMPLED, CorpusRecipe, HubSource
from gram_platform.corpora.records import ChangedText, documents
from gram_platform.corpora.sources import FETCHED, Progress, forget, silent
from gram_platform.corpora.splits import (
    KEY_RANGE,
    Candidates,
    Splitter,
    candidates,
    count_duplicates,
    join_candidates,
    splitter_of,
    thresholds,
)
from gram_platform.corpora.tokenizer import (
    LOST,
    end_of_text_id,
    hub_tokenizer,
    interruptible,
    load_tokenizer,
    require_page,
    require_vocab,
    train_tokenizer,
    with_end,
)

PASSAGE_CHARS = 4096
# KEY_RANGE / golden ratio, whose multiples spread evenly over the range.
GOLDEN = 0x9E3779B97F4A7C15
# Blocks of a sequence file in one piece. Pieces are whole blocks, so no page has two writers.
PIECE_BLOCKS = 128
ARRANGED = ("places.npy", "rows.npy")
# Counts of a sequence file in the manifest.
OF_SEQUENCES = ("num_sequences", "num_documents", "num_tokens")
# A given tokenizer is tested on the first text of up to this many parts.
MOST_TRIED = 64
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare(
    recipe: CorpusRecipe,
    root: Path | str,
    progress: Progress = silent,
    workers: Workers = in_turn,
) -> PackedCorpus:
    """Opens the corpus in `root/<data_id>`. Packs it first if it is missing or incomplete.

    `workers` write parts below `root`, which must be mounted on all their machines. The packed
    bytes do not depend on the workers. If a process is killed, the next call reuses the finished
    parts. `progress` counts bytes of text. Raises ValueError for bad records, if a domain has too
    little text in a split, or if `root` is full or not writable.
    """
    root = Path(root)
    target = root / recipe.data_id
    if (packed := open_complete(target)) is not None:
        return packed
    parts = root / f".parts-{recipe.data_id}"
    require_plain(parts)
    staging = new_staging(root, recipe.data_id)
    files = PartFiles(parts, workers, progress, _num_bytes(recipe))
    try:
        _fill(recipe, root, staging, files)
        publish(staging, target)
    except OSError as error:
        # Another process may have packed the corpus, and removed the parts.
        if open_complete(target) is None:
            if error.errno not in DISK_FULL:
                raise
            shutil.rmtree(parts, ignore_errors=True)
            num_tokens = _num_bytes(recipe) / BYTES_PER_TOKEN
            # Parts, permuted pieces and packed files exist at the same time.
            num_bytes = (2 + recipe.permuted) * num_tokens * token_dtype(recipe.vocab_size).itemsize
            allowed = f"a disk with room for about {num_bytes / 1e9:.3g} GB ({error.strerror})"
            raise invalid("storage", str(root), allowed) from None
    except ValueError as error:
        shutil.rmtree(parts, ignore_errors=True)
        if isinstance(error, ChangedText):
            forget(recipe.units, error.paths, root)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(parts, ignore_errors=True)
    return PackedCorpus.open(target)


def _num_bytes(recipe: CorpusRecipe) -> int:
    return sum(domain.num_bytes for domain in recipe.domains_from)


def _fill(recipe: CorpusRecipe, root: Path, staging: Path, files: PartFiles) -> None:
    tokenizer, units, skipped = _open_tokenizer(recipe), recipe.units, {}
    if isinstance(recipe.source, HubSource):
        from gram_platform.corpora.hub import fetch

        units, skipped = fetch(recipe.source, root / FETCHED, files.progress, files.workers)
    # The recipe is sent to every worker.
    parts, recipe = parts_of(recipe, units), replace(recipe, units=())
    splitter = _splitter(recipe, parts, files)
    if tokenizer is None:
        tokenizer = _train_tokenizer(recipe, splitter, parts, files)
    else:
        firsts = (islice(documents(recipe, part), 1) for part in parts[:MOST_TRIED])
        pages = (text for _, text in chain.from_iterable(firsts))
        require_page(tokenizer, recipe.tokenizer_name, pages)
    text = tokenizer.to_str(pretty=True)
    (staging / TOKENIZER).write_text(text, encoding="utf-8")
    write = partial(write_tokens, recipe, splitter, text)
    tokens = files.write("packing", write, parts, text, splitter.digest)
    unspelled, keys = _sum_unspelled(recipe, tokens), staging / "keys.tmp"
    with keys.open("wb") as file:
        for folder in tokens:
            file.writelines(read_blocks(folder / KEYS, counts_of(folder)["keys"]))
    counted = {"duplicates": count_duplicates(keys), "skipped": skipped}
    counted |= {"unspelled": unspelled} if unspelled else {}
    written = _write_sequences(recipe, staging, tokens, files)
    _write_manifest(recipe, staging, written, counted)


def _sum_unspelled(recipe: CorpusRecipe, folders: Sequence[Path]) -> dict[str, dict]:
    lost, found = [counts_of(folder).get("lost", {}) for folder in folders], {}
    for domain in recipe.pools:
        counts = np.sum([part.get(domain, (0,) * len(LOST)) for part in lost], axis=0)
        share = float((counts[:2] / np.maximum(1, counts[2:])).max())
        if share > MOST_LOST:
            allowed = f"one that can spell domain {domain!r}, of whose text it lacks {share:.1%}"
            raise invalid("tokenizer", recipe.tokenizer_name, allowed)
        if share:
            found[domain] = {"share": share, **dict(zip(LOST, counts.tolist(), strict=True))}
    return found


def _splitter(recipe: CorpusRecipe, parts: Sequence[Part], files: PartFiles) -> Splitter:
    """Creates the corpus's `Splitter`.

    If all domains have the same validation share, reads only the parts with held-out text.
    """
    differ = len(set(thresholds(recipe).values())) > 1
    read = [part for part in parts if differ or any(unit.held_out for unit in part)]
    folders = files.write("splitting", partial(_write_candidates, recipe), read)
    return splitter_of(recipe, [Candidates(**np.load(folder / "keys.npz")) for folder in folders])


def _write_candidates(recipe: CorpusRecipe, part: Part, folder: Path) -> None:
    found = [candidates(recipe, documents(recipe, (unit,)), unit.held_out) for unit in part]
    np.savez(folder / "keys.npz", **join_candidates(found)._asdict())


def _open_tokenizer(recipe: CorpusRecipe) -> Tokenizer | None:
    given = recipe.tokenizer
    if given.is_trained:
        return None
    if given.kind == "hub":
        tokenizer = hub_tokenizer(given.source)
    else:
        if hash_file(recipe.tokenizer_path) != given.source:
            allowed = "the unchanged file that the recipe was made with"
            raise invalid("tokenizer", str(recipe.tokenizer_path), allowed)
        tokenizer = load_tokenizer(recipe.tokenizer_path)
    require_vocab(tokenizer, recipe.vocab_size, recipe.tokenizer_name)
    end_of_text_id(tokenizer, given.end_of_text)
    require_page(tokenizer, recipe.tokenizer_name)
    return with_end(tokenizer, given.end_of_text) if given.end_of_text else tokenizer


def _train_tokenizer(
    recipe: CorpusRecipe, splitter: Splitter, parts: Sequence[Part], files: PartFiles
) -> Tokenizer:
    write = partial(_write_sample, recipe, splitter)
    folders = files.write("sampling for the tokenizer", write, parts, splitter.digest)
    samples = (json.loads((folder / "texts.json").read_text()) for folder in folders)
    texts = chain.from_iterable(samples)
    first = next(texts, None)
    if first is None:
        raise invalid(
            "sample_bytes", recipe.tokenizer.sample_bytes, "enough bytes to hold some text"
        )
    size = min(recipe.tokenizer.sample_bytes, files.num_bytes)
    return interruptible(
        partial(train_tokenizer, vocab_size=recipe.vocab_size),
        chain((first,), texts),
        lambda s: files.progress(f"training the tokenizer, {s:.0f} s", size, None),
    )


def _write_sample(recipe: CorpusRecipe, splitter: Splitter, part: Part, folder: Path) -> None:
    """Writes the training texts of a part that are in the tokenizer's sample.

    A text is a document, or a passage for the kind `bpe-passages`. A text is in the sample if its
    key is below a limit. The key of a document or its first passage is the document's key for the
    split, rotated by 32 bits to make the sample independent of the split. The key of each
    later passage is larger by GOLDEN, so that long documents are sampled in equal shares.
    """
    trained, texts = recipe.tokenizer, []
    sampled = {domain.name: domain.num_bytes for domain in recipe.sample_domains}
    limit = min(1.0, trained.sample_bytes / sum(sampled.values())) * KEY_RANGE
    size = max(1, min(PASSAGE_CHARS, trained.sample_bytes // MIN_SAMPLED))
    for domain, text in documents(recipe, part):
        key = splitter.key(text)
        if domain not in sampled or splitter.are_validation([domain], np.uint64([key])):
            continue
        rotated = (key << 32 | key >> 32) % KEY_RANGE
        step = len(text) if trained.kind == "bpe" else size
        for number, start in enumerate(range(0, len(text), step)):
            if (rotated + number * GOLDEN) % KEY_RANGE < limit:
                texts.append(text[start : start + step])
    (folder / "texts.json").write_text(json.dumps(texts))


@dataclass(frozen=True)
class JoinPiece:
    """A byte range of a sequence file, and the rows that overlap it."""

    # (split, domain) of the file.
    pair: tuple[str, str]
    # Start and end (exclusive) of the bytes, and of the rows.
    span: tuple[int, int]
    rows: tuple[int, int]
    # The number of rows in the whole file.
    num_rows: int
    # (path, tokens, checksum, documents) of each part's file with tokens of these rows.
    files: tuple[tuple[Path, int, int, int], ...]
    # How many tokens of the first file precede the rows.
    num_skipped: int


def _pieces(recipe: CorpusRecipe, pair: tuple[str, str], files: Sequence[tuple]) -> list[JoinPiece]:
    seq_len, pieces = recipe.seq_len, []
    row_bytes = (seq_len + 1) * token_dtype(recipe.vocab_size).itemsize
    starts = np.cumsum([0, *(num_tokens for _, num_tokens, *_ in files)]).tolist()
    num_rows = (starts[-1] - 1) // seq_len
    for start in range(0, num_rows * row_bytes, PIECE_BLOCKS * HASHED_BYTES):
        stop = min(start + PIECE_BLOCKS * HASHED_BYTES, num_rows * row_bytes)
        first, after = start // row_bytes, -(-stop // row_bytes)
        file = bisect_right(starts, first * seq_len) - 1
        found = tuple(files[file : bisect_left(starts, after * seq_len + 1)])
        skipped = first * seq_len - starts[file]
        pieces.append(JoinPiece(pair, (start, stop), (first, after), num_rows, found, skipped))
    return pieces


def _cut_rows(recipe: CorpusRecipe, piece: JoinPiece) -> np.ndarray:
    """Reads a piece's rows [N, seq_len + 1]. Each row starts with the previous row's last token."""
    blocks = (read_blocks(path, checksum) for path, _, checksum, _ in piece.files)
    raw = b"".join(chain.from_iterable(blocks))
    tokens = np.frombuffer(raw, token_dtype(recipe.vocab_size))[piece.num_skipped :]
    windows = np.lib.stride_tricks.sliding_window_view(tokens, recipe.seq_len + 1)
    return windows[:: recipe.seq_len][: piece.rows[1] - piece.rows[0]]


def _arrange(recipe: CorpusRecipe, piece: JoinPiece, folder: Path) -> None:
    """Sorts a piece's rows by their positions in the permuted file. Writes positions and rows."""
    order = domain_permutation(recipe.data_id, piece.pair[1], piece.num_rows, inverse=True)
    places = order(np.arange(*piece.rows))
    by_place = np.argsort(places)
    for name, found in zip(ARRANGED, (places, _cut_rows(recipe, piece)), strict=True):
        np.save(folder / name, found[by_place])


def _write_sequences(
    recipe: CorpusRecipe, staging: Path, folders: Sequence[Path], files: PartFiles
) -> dict[str, dict]:
    """Writes the sequence files of all domains and splits. Returns each file's counts and hashes.

    Raises ValueError if a file would have no row. Only the validation file of a
    separately packed part may be empty, because the whole domain's file has its validation text.
    """
    pairs = [(split, domain) for split in SPLITS for domain in recipe.pools]
    parts = {pair: [] for pair in pairs}
    for folder in folders:
        for *pair, num_documents, num_tokens, checksum in counts_of(folder)["files"]:
            found = (token_path(folder, *pair), num_tokens, checksum, num_documents)
            parts[tuple(pair)].append(found)
    written = {}
    for (split, domain), found in parts.items():
        num_tokens, num_documents = (sum(part[place] for part in found) for place in (1, 3))
        is_needed = split == "train" or domain in recipe.domains
        if num_tokens <= recipe.seq_len and is_needed:
            counted = f"{num_documents} documents, {num_tokens} tokens in {split}"
            allowed = f"text for {recipe.seq_len + 1} tokens there (equal documents share a split)"
            raise invalid(f"label {domain!r}", counted, allowed)
        numbers = (max(0, num_tokens - 1) // recipe.seq_len, num_documents, num_tokens)
        path = sequence_path(split, domain)
        written[path] = dict(zip(OF_SEQUENCES, numbers, strict=True)) | {"blocks": []}
        (staging / split).mkdir(exist_ok=True)
        (staging / path).touch()
    pieces = [piece for pair in pairs for piece in _pieces(recipe, pair, parts[pair])]
    permuted = [piece for piece in pieces if recipe.permuted and piece.pair[0] == "train"]
    arranged = files.write("arranging", partial(_arrange, recipe), permuted)
    folders_of = {}
    for piece, folder in zip(permuted, arranged, strict=True):
        folders_of.setdefault(piece.pair, []).append(folder)
    blocks = dict(files.workers(partial(_write_piece, recipe, staging, folders_of), pieces))
    for index, piece in enumerate(pieces):
        written[sequence_path(*piece.pair)]["blocks"] += blocks[index]
    paths = list(written)
    for index, digest in files.workers(hash_file, [staging / path for path in paths]):
        written[paths[index]]["sha256"] = digest
    return written


def _write_piece(
    recipe: CorpusRecipe,
    staging: Path,
    folders_of: Mapping[tuple, Sequence[Path]],
    piece: JoinPiece,
) -> list[str]:
    (first, after), folders = piece.rows, folders_of.get(piece.pair, ())
    rows = np.empty((after - first, recipe.seq_len + 1), token_dtype(recipe.vocab_size))
    if not folders:
        rows[:] = _cut_rows(recipe, piece)
    for folder in folders:
        places, found = (np.load(folder / name, mmap_mode="r") for name in ARRANGED)
        here = slice(*np.searchsorted(places, piece.rows))
        rows[places[here] - first] = found[here]
    start, stop = (byte - first * rows[0].nbytes for byte in piece.span)
    raw = memoryview(rows).cast("B")[start:stop]
    with (staging / sequence_path(*piece.pair)).open("r+b") as file:
        file.seek(piece.span[0])
        file.write(raw)
    places = range(0, len(raw), HASHED_BYTES) if folders else ()
    return [hashlib.sha256(raw[place : place + HASHED_BYTES]).hexdigest() for place in places]


def _write_manifest(
    recipe: CorpusRecipe, staging: Path, written: Mapping[str, dict], counted: Mapping[str, dict]
) -> None:
    paths = (sequence_path(split, domain) for split in SPLITS for domain in recipe.pools)
    files = {path: written[path]["sha256"] for path in paths}
    files[TOKENIZER] = hash_file(staging / TOKENIZER)
    domains = {
        d: {s: {c: written[sequence_path(s, d)][c] for c in OF_SEQUENCES} for s in SPLITS}
        for d in recipe.pools
    }
    manifest = {
        "layout": LAYOUT_VERSION,
        "data_id": recipe.data_id,
        "recipe": without_secrets(recipe.plain()),
        "seq_len": recipe.seq_len,
        "vocab_size": recipe.vocab_size,
        "dtype": token_dtype(recipe.vocab_size).str,
        "domains": domains,
        "duplicates_across_splits": counted["duplicates"]["texts_in_both_splits"],
        **counted,
        "tokenizer_sha256": files[TOKENIZER],
        "tokenizer_bytes": (staging / TOKENIZER).stat().st_size,
        "fingerprint": corpus_fingerprint(files),
        "files": files,
    }
    if recipe.permuted:
        blocks = {path: found["blocks"] for path, found in written.items() if found["blocks"]}
        manifest["blocks"] = {"num_bytes": HASHED_BYTES, "files": blocks}
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
