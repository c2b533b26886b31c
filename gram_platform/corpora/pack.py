"""From a recipe to a packed corpus: split, tokenise, concatenate, cut, write; in constant memory, and all or nothing
(see `staging.py`).
"""

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from gram_platform.corpora.documents import documents
from gram_platform.corpora.packed import (
    LAYOUT_VERSION,
    SPLITS,
    PackedCorpus,
    corpus_fingerprint,
    sequence_path,
    sha256_file,
    token_dtype,
)
from gram_platform.corpora.recipe import BYTES_PER_TOKEN, CorpusRecipe, HubSource
from gram_platform.corpora.sequences import SequenceFile, write_sequences
from gram_platform.corpora.sources import Progress
from gram_platform.corpora.splits import KEY_RANGE, Splitter
from gram_platform.corpora.staging import complete, new_staging, publish
from gram_platform.corpora.tokenizer import (
    hub_tokenizer,
    load_tokenizer,
    require_vocab,
    train_tokenizer,
)
from gram_platform.identity import invalid

REPORT_CHARS = 1 << 20  # of text between two reports of progress
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare(recipe: CorpusRecipe, root: Path | str, progress: Progress | None = None) -> PackedCorpus:
    """Packs the corpus into `root/<data_id>` and opens it; does nothing when it is there and complete.

    `progress(what, done, total)` is called now and then, with bytes of text. Raises ValueError for bad records, for a
    domain without a sequence in one of its splits, and for a root that cannot be written or is full.
    """
    root = Path(root)
    target = root / recipe.data_id
    ready = complete(target)
    if ready is not None:
        return ready
    staging = new_staging(root, recipe.data_id)
    try:
        _fill(recipe, root, staging, progress or (lambda what, done, total: None))
        publish(staging, target)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise _disk_full(recipe, root, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return PackedCorpus.open(target)


def _disk_full(recipe: CorpusRecipe, root: Path, error: OSError) -> ValueError:
    num_tokens = sum(d.num_bytes for d in recipe.domains_from) / BYTES_PER_TOKEN
    needed_gb = num_tokens * token_dtype(recipe.vocab_size).itemsize / 1e9
    return invalid("storage", str(root), f"a disk with room for about {needed_gb:.3g} GB ({error.strerror})")


def _fill(recipe: CorpusRecipe, root: Path, staging: Path, progress: Progress) -> None:
    """Writes all files of the packed corpus into `staging`, the manifest last."""
    units = recipe.units
    if isinstance(recipe.source, HubSource):
        from gram_platform.corpora.hub import fetch

        units = fetch(recipe.source, root / "hub", progress)

    def read(what: str) -> Iterator[tuple[str, str]]:
        return _reported(documents(recipe, units), what, sum(d.num_bytes for d in recipe.domains_from), progress)

    splitter = Splitter(recipe, lambda: read("splitting"))
    tokenizer = _tokenizer(recipe, splitter, read)
    (staging / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    writers, duplicates = write_sequences(recipe, staging, tokenizer, splitter, read("packing"))
    _write_manifest(recipe, staging, writers, duplicates)


def _reported(
    stream: Iterator[tuple[str, str]], what: str, total: int, progress: Progress
) -> Iterator[tuple[str, str]]:
    done = since = 0
    for domain, text in stream:
        since += len(text)
        if since > REPORT_CHARS:
            done, since = done + since, 0
            progress(what, min(done, total), total)
        yield domain, text
    progress(what, total, total)


def _tokenizer(recipe: CorpusRecipe, splitter: Splitter, read: Callable) -> Tokenizer:
    """The recipe's tokenizer, checked against its vocabulary; a BPE is trained on a sample of training documents."""
    given = recipe.tokenizer
    if given.kind == "hub":
        tokenizer = hub_tokenizer(given.source)
    elif given.kind == "file":
        if sha256_file(recipe.tokenizer_path) != given.source:
            raise invalid("tokenizer", str(recipe.tokenizer_path), "the file the recipe was made with: it has changed")
        tokenizer = load_tokenizer(recipe.tokenizer_path)
    else:
        share = min(1.0, given.sample_bytes / sum(d.num_bytes for d in recipe.domains_from))
        tokenizer = train_tokenizer(_sample(read("training the tokenizer"), splitter, share), recipe.vocab_size)
    require_vocab(tokenizer, recipe.vocab_size)
    return tokenizer


def _sample(stream: Iterator[tuple[str, str]], splitter: Splitter, share: float) -> Iterator[str]:
    """About `share` of the training documents, by their hash (turned, so that it is independent of the split)."""
    for domain, text in stream:
        key = splitter.key(text)
        turned = (key << 32 | key >> 32) % KEY_RANGE
        if turned < share * KEY_RANGE and splitter.split(domain, key) == "train":
            yield text


def _write_manifest(
    recipe: CorpusRecipe, staging: Path, writers: dict[tuple[str, str], SequenceFile], duplicates: dict[str, int]
) -> None:
    files = {sequence_path(*pair): writer.close() for pair, writer in writers.items()}
    for (split, domain), writer in writers.items():
        if writer.num_sequences == 0:
            found = f"{writer.num_documents} documents, {writer.num_tokens} tokens in {split}"
            raise invalid(f"label {domain!r}", found, f"enough text for a sequence of {recipe.seq_len + 1} tokens")
    files["tokenizer.json"] = sha256_file(staging / "tokenizer.json")
    counts = ("num_sequences", "num_documents", "num_tokens")
    domains = {d: {s: {c: getattr(writers[s, d], c) for c in counts} for s in SPLITS} for d in recipe.domains}
    manifest = {
        "layout": LAYOUT_VERSION,
        "data_id": recipe.data_id,
        "recipe": recipe.plain(),
        "seq_len": recipe.seq_len,
        "vocab_size": recipe.vocab_size,
        "dtype": token_dtype(recipe.vocab_size).str,
        "domains": domains,
        "duplicates_across_splits": duplicates["texts_in_both_splits"],
        "duplicates": duplicates,
        "tokenizer_sha256": files["tokenizer.json"],
        "tokenizer_bytes": (staging / "tokenizer.json").stat().st_size,
        "fingerprint": corpus_fingerprint(files),
        "files": files,
    }
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
