"""From what a user names (`--corpus`, `--core-label`) to a recipe."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gram_platform.config import CORE, UNLABELLED, is_unlabelled
from gram_platform.config.identity import (
    invalid,
    local_path,
    require_int,
    require_metric_name,
    require_name,
    require_real,
)
from gram_platform.corpora import catalog, stories
from gram_platform.corpora.installed import INSTALLED, installed_text
from gram_platform.corpora.recipe import (
    MAX_VALIDATION,
    MIN_SAMPLED,
    CorpusRecipe,
    DomainRecipe,
    FilesSource,
    HubRow,
    HubSource,
    StoriesSource,
    TokenizerRecipe,
    validation_bytes,
    whole_parts,
)
from gram_platform.corpora.sources import Progress, Scan, content_of, find_units, scan_units
from gram_platform.corpora.stories import mean_story_bytes, stories_source
from gram_platform.corpora.tokenizer import DEFAULT_SAMPLE_BYTES, tokenizer_recipe

# What is fetched beyond one epoch: a wrong estimate of bytes per token, and with partial labels 6% of core and 10% of
# an auxiliary domain, where rounding to whole windows weighs more (measured on the paper presets' plans).
CORE_MARGIN, AUX_MARGIN = 1.10, 1.20
UNKNOWN = 1.25  # of the bytes thought to be available: asks for all of a row


@dataclass(frozen=True)
class Need:
    """What a size trains on, and what is held out of every domain."""

    core_tokens: int
    aux_share: float  # tokens of all auxiliary domains together over core's, spread evenly
    validation_sequences: int
    validation_fraction: float
    seq_len: int

    def __post_init__(self) -> None:
        require_int("core_tokens", self.core_tokens, 1)
        require_real("aux_share", self.aux_share, 0.0, 1.0, open_low=True)

    def num_bytes(self, domain: str, num_auxiliary: int, bytes_per_token: float, has_held_out: bool) -> float:
        """Bytes of a domain's text, validation included: the inverse of `CorpusRecipe.validation_share`."""
        tokens = self.core_tokens * (CORE_MARGIN if domain == CORE else AUX_MARGIN * self.aux_share / num_auxiliary)
        trained = tokens * bytes_per_token
        floor = validation_bytes(self.validation_sequences, self.seq_len)
        if has_held_out:
            return trained + floor
        return max(trained / (1 - self.validation_fraction), trained + floor, floor / MAX_VALIDATION)


def hub_amounts(
    rows: tuple[HubRow, ...], domains: Mapping[str, tuple[str, ...]], need: Need
) -> tuple[HubSource, tuple[DomainRecipe, ...]]:
    """The rows with their bytes, and the domains with what those are expected to give.

    `domains`: the labels of each, core among them. A row of several labels is taken to hold as much of each.
    """
    domain_of = {label: domain for domain, labels in domains.items() for label in labels}
    has_held_out = any(row.held_out for row in rows)
    parts = {d: _parts(rows, labels) for d, labels in domains.items()}
    rates = {d: _bytes_per_token(rows, part) for d, part in parts.items()}
    tokens = {d: need.num_bytes(d, len(domains) - 1, rates[d], has_held_out) / rates[d] for d in domains}
    num_bytes = []
    for row in rows:
        most = whole_parts(UNKNOWN * row.available_tokens * row.bytes_per_token)
        wanted = max(tokens[d] / sum(parts[d]) for d in {domain_of[label] for label in row.all_labels})
        wanted_bytes = most if row.held_out else whole_parts(wanted * row.share * row.bytes_per_token)
        num_bytes.append(min(wanted_bytes, most) if most else wanted_bytes)
    source = HubSource(rows, tuple(num_bytes))
    return source, tuple(_amount_of(source, d, labels, rates[d]) for d, labels in domains.items())


def _parts(rows: tuple[HubRow, ...], labels: tuple[str, ...]) -> tuple[float, ...]:
    """Of each row: the share of the corpus's tokens that is of these labels and split."""
    return tuple(0.0 if row.held_out else row.share * _fraction(row, labels) for row in rows)


def _fraction(row: HubRow, labels: tuple[str, ...]) -> float:
    return sum(label in labels for label in row.all_labels) / len(row.all_labels)


def _bytes_per_token(rows: tuple[HubRow, ...], parts: tuple[float, ...]) -> float:
    return sum(row.bytes_per_token * part for row, part in zip(rows, parts, strict=True)) / sum(parts)


def _amount_of(source: HubSource, name: str, labels: tuple[str, ...], bytes_per_token: float) -> DomainRecipe:
    split = held_out = 0.0
    for row, num_bytes in zip(source.rows, source.expected_bytes, strict=True):
        of_labels = num_bytes * _fraction(row, labels)
        held_out, split = held_out + row.held_out * of_labels, split + (not row.held_out) * of_labels
    return DomainRecipe(name, labels, 0, round(split), bytes_per_token, round(held_out))


CoreLabel = str | tuple[str, ...] | None  # the label, or labels, of core


def catalog_names() -> tuple[str, ...]:
    """Names that `resolve` knows without looking at the disk."""
    return tuple(sorted((*catalog.STORIES, *catalog.HUB, INSTALLED)))


def resolve(
    corpus: str | Path,
    *,
    core_label: CoreLabel = None,
    seq_len: int,
    vocab_size: int,
    tokenizer: str | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.05,
    validation_sequences: int = 32,
    core_tokens: int = 0,
    aux_share: float = 0.0,
    sample_bytes: int = DEFAULT_SAMPLE_BYTES,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> CorpusRecipe:
    """The recipe of a corpus; for local files this reads each once (cached in `cache_dir` by path, size and time).

    `corpus`: a catalog name; a folder or file of .jsonl or .parquet (plain, .gz, .zst) with `text` and `label`; or a
    .json file of labelled globs. `core_label`: the label, or labels (a tuple, or separated by commas), pooled in core;
    every other label is an auxiliary domain. `seq_len` in tokens, `validation_*`: see `CorpusRecipe.validation_share`.
    `core_tokens`, `aux_share`: of the hub, so much text as training on this many core tokens and on auxiliary ones of
    that share of them needs (0: what the catalog says); other corpora are taken whole.
    `installed` is written as one local file into `cache_dir`, from this Python's packages, and read like any other.
    Raises ValueError for an unknown corpus or core label, for bad records (file and line), for labels that cannot be
    domains, for local domains of a single document, and for a tokenizer's file that does not fit.
    """
    hub = catalog.HUB.get(str(corpus))
    given = tokenizer or (hub.tokenizer if hub and hub.tokenizer else None)
    tokenizer_from, tokenizer_path = tokenizer_recipe(given, vocab_size, sample_bytes)
    common = {
        "tokenizer": tokenizer_from,
        "tokenizer_path": tokenizer_path,
        "seq_len": seq_len,
        "vocab_size": vocab_size,
        "split_seed": split_seed,
        "validation_fraction": validation_fraction,
        "validation_sequences": validation_sequences,
    }
    if str(corpus) in catalog.STORIES:
        return _stories(catalog.STORIES[str(corpus)], core_label, common)
    if hub:
        own = replace(hub, core_tokens=core_tokens or hub.core_tokens, aux_share=aux_share or hub.aux_share)
        return _hub(own, core_label, common)
    path = _installed(cache_dir, progress) if str(corpus) == INSTALLED else existing(corpus)
    return _files(path, core_label, common, cache_dir, progress)


def grows_with_size(corpus: str | Path) -> bool:
    """Whether a corpus is of the hub, where so much is fetched as a size needs; others are what they are."""
    return str(corpus) in catalog.HUB


def _installed(cache_dir: Path | None, progress: Progress | None) -> Path:
    if cache_dir is None:
        raise invalid("cache_dir", None, f"a folder: the text of the corpus {INSTALLED!r} is written there")
    return installed_text(cache_dir, progress=progress)


def existing(corpus: str | Path) -> Path:
    """The absolute path of a corpus that is not in the catalog; ValueError when there is none."""
    path = local_path("corpus", corpus)
    if not path.exists():
        names = ", ".join(catalog_names())
        raise invalid("corpus", str(corpus), f"one of {names}, or a folder or file that exists")
    return path


def _named(core_label: CoreLabel, labels: Collection[str]) -> tuple[str, ...] | None:
    """The labels that a user names, of which one may have commas itself; None for none."""
    if core_label is None or isinstance(core_label, tuple):
        return core_label
    return (core_label,) if core_label in labels else tuple(sorted({part.strip() for part in core_label.split(",")}))


def _require_core(pooled: tuple[str, ...], labels: list[str]) -> None:
    missing = [label for label in pooled if label not in labels]
    if missing:
        raise invalid("core_label", ", ".join(missing), "labels of this corpus, which are " + ", ".join(labels))
    if len(pooled) == len(labels):
        raise invalid("core_label", ", ".join(pooled), "fewer than all labels: at least one stays an auxiliary domain")


def stories_of(entry: catalog.StoriesEntry, pooled: tuple[str, ...] | None) -> StoriesSource:
    """The generated corpus of a catalog entry; `pooled` topics (None: all but the first four) make up its core."""
    core = _pooled(pooled, stories.TOPICS)
    share, rest = divmod(entry.core_documents, len(core))
    documents = {topic: share + (rank < rest) for rank, topic in enumerate(core)}
    documents |= {topic: entry.aux_documents for topic in stories.TOPICS if topic not in core}
    return stories_source(documents, entry.num_facts, entry.shared_fact_share, entry.seed)


def _pooled(pooled: tuple[str, ...] | None, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The core's labels: those a user named, or all but the first few by name."""
    core = pooled or tuple(sorted(labels))[catalog.DEFAULT_NUM_AUX :]
    _require_core(core, sorted(labels))
    return core


def _stories(entry: catalog.StoriesEntry, core_label: CoreLabel, common: dict) -> CorpusRecipe:
    pooled = _named(core_label, stories.TOPICS)
    source = stories_of(entry, pooled)
    core, mean = _pooled(pooled, stories.TOPICS), mean_story_bytes(source)
    aux = [DomainRecipe(t, (t,), n, round(n * mean)) for t, n in source.num_documents if t not in core]
    pool = DomainRecipe(CORE, core, entry.core_documents, round(entry.core_documents * mean))
    return CorpusRecipe(source=source, domains_from=(pool, *aux), **common)


def _hub(entry: catalog.HubEntry, core_label: CoreLabel, common: dict) -> CorpusRecipe:
    labels = tuple(dict.fromkeys(label for row in entry.rows for label in row.all_labels))
    core = _pooled(_named(core_label, labels) or entry.core_labels or None, labels)
    aux = sorted(set(labels) - set(core))
    _require_aux_names(set(aux), core)
    shape = (common["validation_sequences"], common["validation_fraction"], common["seq_len"])
    need = Need(entry.core_tokens, entry.aux_share, *shape)
    source, domains = hub_amounts(entry.rows, {CORE: core, **{label: (label,) for label in aux}}, need)
    return CorpusRecipe(source=source, domains_from=domains, **common)


def _require_aux_names(labels: set[str], core: tuple[str, ...]) -> None:
    for label in sorted(labels):
        if label == CORE:
            allowed = f"another name than {CORE!r}, which is the domain of core_label {', '.join(core)}"
            raise invalid("label", label, allowed)
        if is_unlabelled(label):
            reserved = "which the platform gives to text whose label is missing on purpose (partial labels)"
            raise invalid(
                "label", label, f"a name that does not begin with {UNLABELLED!r}, {reserved}, or one of core_label"
            )
        require_name("label", label)
        require_metric_name("label", label)


def _files(
    path: Path, core_label: CoreLabel, common: dict, cache_dir: Path | None, progress: Progress | None
) -> CorpusRecipe:
    scanned = scan_units(find_units(path), cache_dir, progress)
    units = tuple(unit for unit, _ in scanned)
    scans = [scan for _, scan in scanned]
    counts = _counts(scans)
    if not counts:
        raise invalid("corpus", str(path), "a corpus with at least one record")
    pooled = _named(core_label, counts)
    if pooled is None and CORE not in counts:
        raise invalid("core_label", None, "one or more labels of this corpus, which are " + ", ".join(sorted(counts)))
    core = pooled or (CORE,)
    _require_core(core, sorted(counts))
    aux = set(counts) - set(core)
    _require_aux_names(aux, core)
    domains = [_domain(CORE, core, counts), *(_domain(label, (label,), counts) for label in sorted(aux))]
    _require_two_documents(domains)
    source = FilesSource(content_of(units), len(units))
    common = {**common, "tokenizer": _sampled(common["tokenizer"], domains, max(scan.largest for scan in scans))}
    return CorpusRecipe(source=source, domains_from=tuple(domains), units=units, **common)


def _require_two_documents(domains: list[DomainRecipe]) -> None:
    for domain in domains:
        if domain.num_documents < 2:
            needed = "at least two documents: one for training, one for validation"
            raise invalid(f"label {', '.join(map(repr, domain.labels))}", f"{domain.num_documents} document", needed)


def _sampled(tokenizer: TokenizerRecipe, domains: list[DomainRecipe], largest: int) -> TokenizerRecipe:
    """How a BPE's sample is taken: whole documents, or passages where it is a part and some document much of it.

    The kind is part of the `data_id`, because the two rules train other tokenizers on the same documents.
    """
    is_part = tokenizer.sample_bytes < sum(domain.num_bytes for domain in domains)
    if tokenizer.kind == "bpe" and is_part and largest * MIN_SAMPLED > tokenizer.sample_bytes:
        return replace(tokenizer, kind="bpe-passages")
    return tokenizer


def _counts(scans: list[Scan]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for scan in scans:
        for label, (documents, num_bytes) in scan.labels.items():
            so_far = total.get(label, (0, 0))
            total[label] = (so_far[0] + documents, so_far[1] + num_bytes)
    return total


def _domain(name: str, labels: tuple[str, ...], counts: dict[str, tuple[int, int]]) -> DomainRecipe:
    documents, num_bytes = (sum(counts[label][i] for label in labels) for i in (0, 1))
    return DomainRecipe(name, labels, documents, num_bytes)
