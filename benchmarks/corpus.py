"""Measures preparing a corpus against `tokenizers` encoding the same texts, and the memory that it
takes."""

import json
import multiprocessing
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from gram_platform.corpora import Packing, prepare, resolve, stories
from gram_platform.corpora.parts import BATCH_CHARS
from gram_platform.corpora.recipe import CorpusRecipe
from gram_platform.corpora.stories import stories_source, story
from gram_platform.corpora.tokenizer import load_tokenizer, train_tokenizer

SHAPE = {"seq_len": 256, "vocab_size": 4096}
TOPICS = stories.TOPICS[:5]
NUM_ROUNDS = 3
FILE_DOCUMENTS = 2000


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Measures the rate at 12 MB (full: 120 MB), and peak memory at 4 and 12 MB (full: 40 MB and 1
    GB)."""
    folder, scale = Path(settings.storage), 10 if settings.full else 1
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    large, small = folder / "large", folder / "small"
    num_bytes = write_corpus(large, 12_000_000 * scale)
    write_corpus(small, 4_000_000 * scale)
    measured = rate(folder, large, tokenizer, num_bytes, NUM_ROUNDS)
    if settings.full:
        write_corpus(large, 1_000_000_000)
    return [measured, _memory(folder, small, large)]


def write_tokenizer(path: Path) -> Path:
    """Trains a BPE on the stories."""
    source = stories_source(dict.fromkeys(TOPICS, 400), 64, 0.5)
    texts = [story(source, topic, index) for topic in TOPICS for index in range(400)]
    path.write_text(train_tokenizer(texts, SHAPE["vocab_size"]).to_str())
    return path


def write_corpus(folder: Path, num_bytes: int) -> int:
    """Writes stories as .jsonl files of `text` and `label` until they hold `num_bytes` of text;
    returns the bytes."""
    folder.mkdir(exist_ok=True)
    source, written, index = stories_source(dict.fromkeys(TOPICS, 1), 64, 0.5), 0, 0
    while written < num_bytes:
        with (folder / f"{index:07d}.jsonl").open("wb") as file:
            for _ in range(FILE_DOCUMENTS):
                index, topic = index + 1, TOPICS[index % len(TOPICS)]
                text = story(source, topic, index)
                written += len(text.encode())
                file.write(json.dumps({"text": text, "label": topic}).encode() + b"\n")
    return written


def recipe_of(corpus: Path, tokenizer: Path) -> CorpusRecipe:
    return resolve(corpus, Packing(core_label=TOPICS[0], tokenizer=str(tokenizer), **SHAPE))


def rate(
    folder: Path, corpus: Path, tokenizer: Path, num_bytes: int, num_rounds: int
) -> BenchmarkResult:
    """Times encoding the texts, then resolving and preparing the corpus from its files without a
    cache, each round."""
    texts = [text for path in sorted(corpus.iterdir()) for text in _texts(path)]
    batches, encoder = _batches(texts), load_tokenizer(tokenizer)
    ours, theirs, resolving = [], [], []
    for number in range(num_rounds):
        theirs.append(_timed(lambda: _encode(encoder, batches)))
        started = time.perf_counter()
        recipe = recipe_of(corpus, tokenizer)
        resolving.append(time.perf_counter() - started)
        root = folder / f"packed-{number}"
        ours.append(resolving[-1] + _timed(lambda recipe=recipe, root=root: prepare(recipe, root)))
    return BenchmarkResult(
        name="preparing a corpus",
        unit="MB/s",
        values=tuple(num_bytes / spent / 1e6 for spent in ours),
        references=tuple(num_bytes / spent / 1e6 for spent in theirs),
        against="tokenizers.encode_batch_fast alone, texts in memory",
        aim=Aim("at least", 0.8),
        details={
            "num_bytes": num_bytes,
            "of which reading for the recipe, s": resolving,
            "in all, s": ours,
        },
    )


def _texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_bytes().splitlines()]


def _batches(texts: list[str]) -> list[list[str]]:
    """Groups texts into batches of as many characters as `prepare` encodes at once."""
    batches, num_chars = [[]], 0
    for text in texts:
        batches[-1].append(text)
        num_chars += len(text)
        if num_chars >= BATCH_CHARS:
            batches.append([])
            num_chars = 0
    return batches


def _encode(tokenizer: Tokenizer, batches: list[list[str]]) -> None:
    for batch in batches:
        tokenizer.encode_batch_fast(batch, add_special_tokens=False)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _memory(folder: Path, small: Path, large: Path) -> BenchmarkResult:
    peaks = [
        peak_mb(corpus, folder / "tokenizer.json", folder / f"packed-{corpus.name}")
        for corpus in (large, small)
    ]
    sizes = [sum(path.stat().st_size for path in corpus.iterdir()) for corpus in (large, small)]
    return BenchmarkResult(
        name="memory of preparing",
        unit="MB",
        values=(peaks[0],),
        references=(peaks[1],),
        against=f"a corpus of {sizes[1] / 1e6:.0f} MB; this one has {sizes[0] / 1e6:.0f} MB",
        aim=Aim("at most", 1.1),
    )


def peak_mb(corpus: Path, tokenizer: Path, root: Path) -> float:
    """Returns the peak resident memory, in MB, of a process that prepares the corpus."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_prepare_apart, corpus, tokenizer, root).result()


def _prepare_apart(corpus: Path, tokenizer: Path, root: Path) -> float:
    prepare(recipe_of(corpus, tokenizer), root)
    # The maximum of getrusage includes the parent's memory.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024
