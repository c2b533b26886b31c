"""From a recipe to a packed corpus: split, tokenise, concatenate, cut, write; in constant memory, and all or nothing
(see `staging.py`).
"""

import errno
import json
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from gram_platform.config.identity import invalid
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
from gram_platform.corpora.recipe import BYTES_PER_TOKEN, MIN_SAMPLED, CorpusRecipe
from gram_platform.corpora.rows import HubSource
from gram_platform.corpora.sequences import SequenceFile, write_sequences
from gram_platform.corpora.sources import Progress
from gram_platform.corpora.splits import KEY_RANGE, Splitter
from gram_platform.corpora.staging import complete, new_staging, publish
from gram_platform.corpora.tokenizer import (
    hub_tokenizer,
    load_tokenizer,
    require_usable,
    train_tokenizer,
)

REPORT_CHARS = 1 << 20  # of text between two reports of progress
PASSAGE_CHARS = 4096  # of long documents in a tokenizer's sample; fewer where they would be much of the sample
GOLDEN = 0x9E3779B97F4A7C15  # KEY_RANGE over the golden ratio: its multiples spread evenly over the range
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
    tokenizer, units, skipped = _given_tokenizer(recipe), recipe.units, {}
    if isinstance(recipe.source, HubSource):
        from gram_platform.corpora.hub import fetch

        fetched = fetch(recipe.source, root / "hub", progress)
        units, skipped = fetched.units, fetched.skipped

    def read(what: str) -> Iterator[tuple[str, str]]:
        return _reported(documents(recipe, units), what, sum(d.num_bytes for d in recipe.domains_from), progress)

    held_out = tuple(unit for unit in units if unit.held_out)
    splitter = Splitter(recipe, lambda: read("splitting"), documents(recipe, held_out) if held_out else ())
    if tokenizer is None:
        tokenizer = _trained_tokenizer(recipe, splitter, read("training the tokenizer"))
    (staging / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    writers, duplicates = write_sequences(recipe, staging, tokenizer, splitter, read("packing"))
    _write_manifest(recipe, staging, writers, {"duplicates": duplicates, "skipped": skipped})


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


def _given_tokenizer(recipe: CorpusRecipe) -> Tokenizer | None:
    """The recipe's tokenizer, checked, before anything long begins; None if it has to be trained."""
    given = recipe.tokenizer
    if given.is_trained:
        return None
    if given.kind == "hub":
        tokenizer = hub_tokenizer(given.source)
    else:
        if sha256_file(recipe.tokenizer_path) != given.source:
            raise invalid(
                "tokenizer",
                str(recipe.tokenizer_path),
                "the unchanged file that the recipe was made with",
            )
        tokenizer = load_tokenizer(recipe.tokenizer_path)
    require_usable(tokenizer, recipe.vocab_size)
    return tokenizer


def _trained_tokenizer(recipe: CorpusRecipe, splitter: Splitter, stream: Iterator[tuple[str, str]]) -> Tokenizer:
    """A BPE of a sample of the training documents; raises ValueError when nothing is in it."""
    sample = _sample(recipe, splitter, stream)
    first = next(sample, None)
    if first is None:
        raise invalid("sample_bytes", recipe.tokenizer.sample_bytes, "enough bytes to hold some text")
    return train_tokenizer(chain((first,), sample), recipe.vocab_size)


def _sample(recipe: CorpusRecipe, splitter: Splitter, stream: Iterator[tuple[str, str]]) -> Iterator[str]:
    """About `sample_bytes` of the training documents, by their hash (turned, so that it is independent of the split).

    `bpe` takes whole documents. `bpe-passages` decides for each passage: the numbers of a document's passages go round
    the range of keys in steps of the golden ratio, so of every long document there is the same share.
    """
    trained = recipe.tokenizer
    limit = min(1.0, trained.sample_bytes / sum(d.num_bytes for d in recipe.domains_from)) * KEY_RANGE
    size = max(1, min(PASSAGE_CHARS, trained.sample_bytes // MIN_SAMPLED))
    for domain, text in stream:
        key = splitter.key(text)
        if splitter.split(domain, key) != "train":
            continue
        turned = (key << 32 | key >> 32) % KEY_RANGE
        step = len(text) if trained.kind == "bpe" else size
        for number, start in enumerate(range(0, len(text), step)):
            if (turned + number * GOLDEN) % KEY_RANGE < limit:
                yield text[start : start + step]


def _write_manifest(
    recipe: CorpusRecipe, staging: Path, writers: dict[tuple[str, str], SequenceFile], counted: dict[str, dict]
) -> None:
    files = {sequence_path(*pair): writer.close() for pair, writer in writers.items()}
    for (split, domain), writer in writers.items():
        if writer.num_sequences == 0:
            found = f"{writer.num_documents} documents, {writer.num_tokens} tokens in {split}"
            allowed = f"enough text for a sequence of {recipe.seq_len + 1} tokens there (equal documents share a split)"
            raise invalid(f"label {domain!r}", found, allowed)
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
        "duplicates_across_splits": counted["duplicates"]["texts_in_both_splits"],
        **counted,
        "tokenizer_sha256": files["tokenizer.json"],
        "tokenizer_bytes": (staging / "tokenizer.json").stat().st_size,
        "fingerprint": corpus_fingerprint(files),
        "files": files,
    }
    (staging / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
