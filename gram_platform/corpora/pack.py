"""Packs a corpus, all or nothing: splits and tokenises part by part, then joins and cuts.

The largest part and the keys that decide the split bound the memory.
"""

import errno
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
    block_digests,
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
    checked_blocks,
    counts_of,
    in_turn,
    parts_of,
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
    joined,
    shares_differ,
    splitter_of,
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

# Characters of a passage in a tokenizer's sample; fewer if the sample is small.
PASSAGE_CHARS = 4096
# KEY_RANGE / golden ratio, whose multiples spread evenly over the range.
GOLDEN = 0x9E3779B97F4A7C15
# Bytes of rows that are put in order at once.
BUCKET_BYTES = 1 << 26
# The manifest's counts of every file of sequences.
OF_SEQUENCES = ("num_sequences", "num_documents", "num_tokens")
# The most parts whose first text a given tokenizer is tried on.
MOST_TRIED = 64
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare(
    recipe: CorpusRecipe,
    root: Path | str,
    progress: Progress = silent,
    workers: Workers = in_turn,
) -> PackedCorpus:
    """Packs a corpus into `root/<data_id>`, unless it is there and complete, and opens it.

    `workers` write parts below `root`, which they all mount; any workers write the same bytes. A
    process that is killed leaves its parts for the next one. Calls `progress(activity, done,
    total)` after each part, in bytes of text. ValueError for bad records, a domain without a
    sequence in a split, and a root that cannot be written or is full.
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
        # Another process may be first, and have removed the parts.
        if open_complete(target) is None:
            if error.errno not in DISK_FULL:
                raise
            shutil.rmtree(parts, ignore_errors=True)
            raise _disk_full(recipe, root, error) from None
    except ValueError as error:
        shutil.rmtree(parts, ignore_errors=True)
        if isinstance(error, ChangedText):
            forget(recipe.units, error.paths, root)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(parts, ignore_errors=True)
    return PackedCorpus.open(target)


def _disk_full(recipe: CorpusRecipe, root: Path, error: OSError) -> ValueError:
    num_tokens = _num_bytes(recipe) / BYTES_PER_TOKEN
    # Parts and packed files are there at the same time.
    needed_gb = 2 * num_tokens * token_dtype(recipe.vocab_size).itemsize / 1e9
    return invalid(
        "storage", str(root), f"a disk with room for about {needed_gb:.3g} GB ({error.strerror})"
    )


def _num_bytes(recipe: CorpusRecipe) -> int:
    return sum(domain.num_bytes for domain in recipe.domains_from)


def _fill(recipe: CorpusRecipe, root: Path, staging: Path, files: PartFiles) -> None:
    """Writes all files of the packed corpus into `staging`, the manifest last."""
    tokenizer, units, skipped = _given_tokenizer(recipe), recipe.units, {}
    if isinstance(recipe.source, HubSource):
        from gram_platform.corpora.hub import fetch

        units, skipped = fetch(recipe.source, root / FETCHED, files.progress, files.workers)
    # The recipe goes to every worker.
    parts, recipe = parts_of(recipe, units), replace(recipe, units=())
    splitter = _splitter(recipe, parts, files)
    if tokenizer is None:
        tokenizer = _trained_tokenizer(recipe, splitter, parts, files)
    else:
        firsts = (islice(documents(recipe, part), 1) for part in parts[:MOST_TRIED])
        pages = (text for _, text in chain.from_iterable(firsts))
        require_page(tokenizer, recipe.tokenizer_name, pages)
    text = tokenizer.to_str(pretty=True)
    (staging / TOKENIZER).write_text(text, encoding="utf-8")
    write = partial(write_tokens, recipe, splitter, text)
    tokens = files.write("packing", write, parts, text, splitter.digest)
    unspelled = _unspelled(recipe, tokens)
    counted = {"duplicates": _count_duplicates(tokens, staging / "keys.tmp"), "skipped": skipped}
    counted |= {"unspelled": unspelled} if unspelled else {}
    written = _write_sequences(recipe, staging, tokens, files.workers)
    _write_manifest(recipe, staging, written, counted)


def _unspelled(recipe: CorpusRecipe, folders: Sequence[Path]) -> dict[str, dict]:
    """Adds up what the tokenizer lost, by domain; ValueError if it lost most of a domain's text."""
    lost, found = [counts_of(folder).get("lost", {}) for folder in folders], {}
    for domain in recipe.domains:
        counts = np.sum([part.get(domain, (0,) * len(LOST)) for part in lost], axis=0)
        share = float((counts[:2] / np.maximum(1, counts[2:])).max())
        if share > MOST_LOST:
            allowed = f"one that can spell domain {domain!r}, of whose text it lacks {share:.1%}"
            raise invalid("tokenizer", recipe.tokenizer_name, allowed)
        if share:
            found[domain] = {"share": share, **dict(zip(LOST, counts.tolist(), strict=True))}
    return found


def _splitter(recipe: CorpusRecipe, parts: Sequence[Part], files: PartFiles) -> Splitter:
    """Reads keys: of all parts if domains hold out different shares, otherwise of held-out text."""
    read = [part for part in parts if shares_differ(recipe) or any(unit.held_out for unit in part)]
    folders = files.write("splitting", partial(_write_candidates, recipe), read)
    return splitter_of(recipe, [Candidates(**np.load(folder / "keys.npz")) for folder in folders])


def _write_candidates(recipe: CorpusRecipe, part: Part, folder: Path) -> None:
    found = [candidates(recipe, documents(recipe, (unit,)), unit.held_out) for unit in part]
    np.savez(folder / "keys.npz", **joined(found)._asdict())


def _given_tokenizer(recipe: CorpusRecipe) -> Tokenizer | None:
    """Loads and checks the recipe's tokenizer before any long work; None if it is to be trained."""
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


def _trained_tokenizer(
    recipe: CorpusRecipe, splitter: Splitter, parts: Sequence[Part], files: PartFiles
) -> Tokenizer:
    """Trains a BPE on a sample of the training documents; ValueError for an empty sample."""
    write = partial(_write_sample, recipe, splitter)
    folders = files.write("sampling for the tokenizer", write, parts, splitter.digest)
    samples = (json.loads((folder / "texts.json").read_text()) for folder in folders)
    texts = chain.from_iterable(samples)
    first = next(texts, None)
    if first is None:
        allowed = "enough bytes to hold some text"
        raise invalid("sample_bytes", recipe.tokenizer.sample_bytes, allowed)
    size = min(recipe.tokenizer.sample_bytes, files.num_bytes)
    return interruptible(
        partial(train_tokenizer, vocab_size=recipe.vocab_size),
        chain((first,), texts),
        lambda s: files.progress(f"training the tokenizer, {s:.0f} s", size, None),
    )


def _write_sample(recipe: CorpusRecipe, splitter: Splitter, part: Part, folder: Path) -> None:
    texts = list(_sample(recipe, splitter, documents(recipe, part)))
    (folder / "texts.json").write_text(json.dumps(texts))


def _sample(
    recipe: CorpusRecipe, splitter: Splitter, stream: Iterator[tuple[str, str]]
) -> Iterator[str]:
    """Yields a part's share of the sample of the training documents, chosen by their keys.

    Keys are rotated by 32 bits, so that the sample is independent of the split. `bpe` takes whole
    documents. `bpe-passages` takes the same share of every long document: consecutive passages step
    through the range of keys by the golden ratio.
    """
    trained = recipe.tokenizer
    sampled = {domain.name: domain.num_bytes for domain in recipe.sampled_from}
    limit = min(1.0, trained.sample_bytes / sum(sampled.values())) * KEY_RANGE
    size = max(1, min(PASSAGE_CHARS, trained.sample_bytes // MIN_SAMPLED))
    for domain, text in stream:
        key = splitter.key(text)
        if domain not in sampled or splitter.split(domain, key) != "train":
            continue
        rotated = (key << 32 | key >> 32) % KEY_RANGE
        step = len(text) if trained.kind == "bpe" else size
        for number, start in enumerate(range(0, len(text), step)):
            if (rotated + number * GOLDEN) % KEY_RANGE < limit:
                yield text[start : start + step]


def _count_duplicates(folders: Sequence[Path], path: Path) -> dict[str, int]:
    with path.open("wb") as keys:
        for folder in folders:
            keys.writelines(checked_blocks(folder / KEYS, counts_of(folder)["keys"]))
    return count_duplicates(path)


def cut_rows(tokens: Iterable[np.ndarray], seq_len: int) -> Iterator[np.ndarray]:
    """Cuts a stream of tokens into rows [N, seq_len + 1] that overlap by one; drops the rest."""
    rest = None
    for found in tokens:
        stream = found if rest is None else np.concatenate([rest, found])
        num_rows = max(0, (len(stream) - 1) // seq_len)
        if num_rows:
            windows = np.lib.stride_tricks.sliding_window_view(stream, seq_len + 1)
            yield np.ascontiguousarray(windows[::seq_len][:num_rows])
        rest = stream[num_rows * seq_len :].copy()


def in_order(
    rows: Iterable[np.ndarray], positions: Callable[[np.ndarray], np.ndarray], folder: Path
) -> Iterator:
    """Yields rows [N, width] by their position (int64, 0 to number of rows), a function of indices.

    Writes them to files of `BUCKET_BYTES` of positions below `folder`, and reads one after another.
    """
    first, paths, size = 0, {}, 0
    for block in _joined_to(BUCKET_BYTES, rows):
        kind = np.dtype([("position", "<i8"), ("row", block.dtype, (block.shape[1],))])
        size = max(1, BUCKET_BYTES // kind.itemsize)
        found = positions(np.arange(first, first + len(block)))
        order, placed = np.argsort(found), np.empty(len(block), kind)
        placed["position"], placed["row"] = found[order], block[order]
        starts = np.flatnonzero(np.diff(placed["position"] // size, prepend=-1))
        for piece in np.split(placed, starts[1:]):
            number = int(piece["position"][0]) // size
            paths[number] = folder / f"{number}.tmp"
            with paths[number].open("ab") as file:
                file.write(piece.tobytes())
        first += len(block)
    for number in sorted(paths):
        placed = np.fromfile(paths[number], kind)
        paths[number].unlink()
        found = np.empty_like(placed["row"])
        found[placed["position"] - number * size] = placed["row"]
        yield found


def _joined_to(num_bytes: int, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Joins arrays that follow one another until they have `num_bytes`."""
    held: list[np.ndarray] = []
    for block in blocks:
        held.append(block)
        if sum(array.nbytes for array in held) >= num_bytes:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _write_sequences(
    recipe: CorpusRecipe, staging: Path, folders: Sequence[Path], workers: Workers
) -> dict[str, dict]:
    """Joins the parts' tokens into a file below `staging` for each domain and split.

    Returns each file's counts and hashes; ValueError for a file without a sequence.
    """
    pairs = [(split, domain) for split in SPLITS for domain in recipe.domains]
    counts = {pair: np.zeros(2, np.int64) for pair in pairs}
    for folder in folders:
        for split, domain, *numbers, _ in counts_of(folder)["files"]:
            counts[split, domain] += numbers
    for (split, domain), (num_documents, num_tokens) in counts.items():
        if num_tokens <= recipe.seq_len:
            found = f"{num_documents} documents, {num_tokens} tokens in {split}"
            allowed = f"text for {recipe.seq_len + 1} tokens there (equal documents share a split)"
            raise invalid(f"label {domain!r}", found, allowed)
        (staging / split).mkdir(exist_ok=True)
    written = {}
    for index, found in workers(partial(_join, recipe, staging, folders), pairs):
        numbers = dict(zip(OF_SEQUENCES[1:], counts[pairs[index]].tolist(), strict=True))
        written[sequence_path(*pairs[index])] = numbers | found
    return written


def _join(
    recipe: CorpusRecipe, staging: Path, folders: Sequence[Path], pair: tuple[str, str]
) -> dict:
    """Writes the sequences of a (split, domain) from all parts; returns their number and hashes."""
    (split, domain), dtype = pair, token_dtype(recipe.vocab_size)
    files = [
        (token_path(folder, *pair), num_tokens, checksum)
        for folder in folders
        for s, d, _, num_tokens, checksum in counts_of(folder)["files"]
        if (s, d) == pair
    ]
    blocks = (block for path, _, checksum in files for block in checked_blocks(path, checksum))
    rows = cut_rows((np.frombuffer(block, dtype) for block in blocks), recipe.seq_len)
    target, digest, num_rows = staging / sequence_path(*pair), hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(dir=staging) as scratch:
        is_permuted = recipe.permuted and split == "train"
        if is_permuted:
            size = (sum(num_tokens for _, num_tokens, _ in files) - 1) // recipe.seq_len
            order = domain_permutation(recipe.data_id, domain, size, inverse=True)
            rows = in_order(rows, order, Path(scratch))
        with target.open("wb") as file:
            for block in rows:
                raw = block.tobytes()
                digest.update(raw)
                file.write(raw)
                num_rows += len(block)
    return {
        "num_sequences": num_rows,
        "sha256": digest.hexdigest(),
        "blocks": block_digests(target, HASHED_BYTES) if is_permuted else [],
    }


def _write_manifest(
    recipe: CorpusRecipe, staging: Path, written: Mapping[str, dict], counted: Mapping[str, dict]
) -> None:
    paths = (sequence_path(split, domain) for split in SPLITS for domain in recipe.domains)
    files = {path: written[path]["sha256"] for path in paths}
    files[TOKENIZER] = hash_file(staging / TOKENIZER)
    domains = {
        d: {s: {c: written[sequence_path(s, d)][c] for c in OF_SEQUENCES} for s in SPLITS}
        for d in recipe.domains
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
