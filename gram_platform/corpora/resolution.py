"""Turns a user's corpus and packing settings into a recipe."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from gram_platform.config import CORE, UNLABELLED, is_unlabelled
from gram_platform.config.identity import (
    invalid,
    local_path,
    one_of,
    require_choice,
    require_metric_name,
    require_name,
    require_tellable,
    suggest,
    sum_in_order,
)
from gram_platform.config.written import target_kind
from gram_platform.corpora import catalog, stories
from gram_platform.corpora.catalog import HubCorpus, StoriesCorpus, TextCorpus
from gram_platform.corpora.installed import INSTALLED, provide_installed_text
from gram_platform.corpora.recipe import (
    LABELLED,
    MAX_VALIDATION,
    MIN_SAMPLED,
    VALIDATION_FRACTION,
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
from gram_platform.corpora.recipe_file import locate_errors, read_description, text_units
from gram_platform.corpora.records import TRUE_LABEL, Unit, find_jsonl
from gram_platform.corpora.sources import Progress, content_of, find_units, scan_units, silent
from gram_platform.corpora.tokenizer import DEFAULT_SAMPLE_BYTES, tokenizer_recipe

# More text is fetched than one epoch needs, because bytes per token are estimates. Partial labels
# round budgets to whole windows, in the paper's presets by 6% of core and 10% of other domains.
CORE_MARGIN, AUX_MARGIN = 1.10, 1.20
# The estimated bytes of a row times this factor are enough for all of the row.
UNKNOWN = 1.25
# The most labels that an error lists.
MOST_NAMED = 100

# Documents and bytes of text by label.
Counts = dict[str, tuple[int, int]]
# Labels of core, as a tuple or separated by commas.
CoreLabel = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Packing:
    """A user's settings for packing a corpus."""

    seq_len: int
    # The size of a trained tokenizer, and the limit for any other tokenizer.
    vocab_size: int
    # The labels of core, or None for the catalog's. Every other label is an auxiliary domain.
    core_label: CoreLabel = None
    # A file, a name on the hub, or "" for the catalog's or a newly trained tokenizer.
    tokenizer: str = ""
    # The fewest sequences of each domain, see `CorpusRecipe.validation_share`.
    validation_sequences: int = 32
    # Core tokens to fetch from the hub, and the ratio of auxiliary tokens to core tokens. 0 means
    # the catalog's number. Other corpora are packed in full.
    core_tokens: int = 0
    aux_share: float = 0.0
    sample_bytes: int = DEFAULT_SAMPLE_BYTES
    # Labels whose text may have another label by mistake. Labels of core are packed separately.
    adjacent: tuple[str, ...] = ()
    # Whether the tokenizer is trained only on text of core.
    core_tokenizer: bool = False
    # A .jsonl with `prompt` and `response`, which adds the label `instructions` to local text.
    instructions: str = ""


def resolve(
    corpus: str | Path,
    packing: Packing,
    cache_dir: Path | None = None,
    progress: Progress = silent,
) -> CorpusRecipe:
    """Returns the recipe of a corpus.

    `corpus` can be a catalog name, a TOML recipe, a .json file of globs by label, or
    hf://ORG/NAME?label=FIELD&text=FIELD. It can also be a .jsonl or .parquet file (plain, .gz or
    .zst) with `text` and `label`, or a folder of such files. Scans of local files are cached in
    `cache_dir`.

    Raises ValueError for an unknown corpus or core label, bad records (with file and line), labels
    that cannot name a domain, a domain of local text with only one document, and an unsuitable
    tokenizer.
    """
    description, core_label, units = read_description(corpus), packing.core_label, ()
    flags = [name for name in ("core_label", "tokenizer") if getattr(packing, name)]
    with locate_errors(corpus, flags):
        given = packing.tokenizer or getattr(description, "tokenizer", "")
        end = getattr(description, "end_of_text", "")
        tokenizer, tokenizer_path = tokenizer_recipe(
            given or None, packing.vocab_size, packing.sample_bytes, end
        )
        if packing.instructions and isinstance(description, StoriesCorpus | HubCorpus):
            raise invalid(
                "instructions", packing.instructions, "none, unless the corpus is local text"
            )
        if isinstance(description, StoriesCorpus):
            source, domains, counts = _of_stories(description, core_label)
        elif isinstance(description, HubCorpus):
            source, domains, counts = *_of_hub(description, packing), {}
        else:
            if isinstance(description, TextCorpus):
                core_label = core_label or description.core_labels or None
                units = text_units(corpus)
            elif str(corpus) == INSTALLED:
                if cache_dir is None:
                    raise invalid("cache_dir", None, "a folder for the installed text")
                units = find_units(provide_installed_text(cache_dir, progress=progress))
            else:
                units = find_units(existing_path(corpus))
            if path := packing.instructions:
                units += (find_jsonl("instructions", path, "prompt and response"),)
            units = tuple(scan_units(units, cache_dir, progress))
            source, domains, counts = _of_files(str(corpus), units, core_label)
        recipe = CorpusRecipe(
            source=source,
            domains_from=_divide_core(domains, packing.adjacent, counts),
            tokenizer=replace(tokenizer, core_only=packing.core_tokenizer),
            seq_len=packing.seq_len,
            vocab_size=packing.vocab_size,
            validation_sequences=packing.validation_sequences,
            permuted=isinstance(source, HubSource),
            units=units,
            tokenizer_path=tokenizer_path,
        )
        return replace(recipe, tokenizer=_choose_sample(recipe)) if units else recipe


def catalog_names() -> tuple[str, ...]:
    """Lists the corpus names that `resolve` accepts."""
    return tuple(sorted((*catalog.CORPORA, INSTALLED)))


def describe_corpus(name: str) -> str:
    """Returns a line that describes the source of a named corpus."""
    corpus = read_description(name)
    if isinstance(corpus, StoriesCorpus):
        counts = f"{corpus.core_documents:,} of core, {corpus.aux_documents:,} of each other topic"
        if corpus.num_instructions:
            counts += f", {corpus.num_instructions:,} instructions"
        return f"generated stories: {counts}"
    if isinstance(corpus, HubCorpus):
        return "datasets: " + ", ".join(dict.fromkeys(row.dataset for row in corpus.rows))
    if isinstance(corpus, TextCorpus):
        return "files: " + ", ".join([*corpus.globs, *corpus.records])
    return "Python, C++, JavaScript, type stubs and licences of this machine's packages"


def mixture(name: str, core_tokens: int, aux_share: float) -> dict[tuple[str, str], float]:
    """Returns a Hub corpus's training tokens by (domain, dataset). Returns {} for other corpora.

    `aux_share * core_tokens` tokens are divided equally among the auxiliary domains.
    """
    corpus = read_description(name) if name in catalog_names() else None
    if not isinstance(corpus, HubCorpus):
        return {}
    labelled = [(row, label) for row in corpus.rows if not row.held_out for label in row.all_labels]
    core = core_labels(None, {label for _, label in labelled}, corpus.core_labels)
    shares = {}
    totals = {}
    for row, label in labelled:
        domain = CORE if label in core else label
        shares[domain, row.dataset] = shares.get((domain, row.dataset), 0.0) + row.share
        totals[domain] = totals.get(domain, 0.0) + row.share
    aux_tokens = core_tokens * aux_share / max(1, len(totals) - 1)
    return {
        (domain, dataset): (core_tokens if domain == CORE else aux_tokens) * share / totals[domain]
        for (domain, dataset), share in shares.items()
    }


def grows_with_size(corpus: str | Path) -> bool:
    """Returns True for a Hub corpus, which packs more text for more training tokens."""
    return isinstance(read_description(corpus), HubCorpus)


def existing_path(corpus: str | Path) -> Path:
    """Returns a corpus's absolute path. Raises ValueError if it does not exist."""
    path = local_path("corpus", corpus)
    if not target_kind("corpus", path):
        names = catalog_names()
        expected = f"one of {', '.join(names)}, or a folder or file that exists"
        raise invalid("corpus", str(corpus), expected + suggest(corpus, names))
    return path


def core_labels(
    given: CoreLabel, labels: Collection[str], default: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Returns core's labels. These are `given`, or `default` if `given` is empty.

    If both are empty, returns all labels except the first `DEFAULT_NUM_AUX` in alphabetical order.
    Raises ValueError for an unknown label, or if all labels are core's.
    """
    core = given or default or tuple(sorted(labels))[catalog.DEFAULT_NUM_AUX :]
    if isinstance(core, str):
        # A label may contain commas.
        parts = {core} if core in labels else {part.strip() for part in core.split(",")}
        core = tuple(sorted(parts))
    if missing := [label for label in core if label not in labels]:
        names = _list_names(labels) + suggest(missing[0], labels)
        raise invalid("core_label", ", ".join(missing), f"labels of this corpus, which are {names}")
    if len(core) == len(labels):
        raise invalid(
            "core_label",
            ", ".join(core),
            "fewer than all labels: at least one stays an auxiliary domain",
        )
    return core


def _list_names(labels: Collection[str]) -> str:
    num_others = len(labels) - MOST_NAMED
    others = f" and {num_others:,} more" if num_others > 0 else ""
    return ", ".join(sorted(labels)[:MOST_NAMED]) + others


def _auxiliary_labels(labels: Collection[str], core: tuple[str, ...]) -> list[str]:
    auxiliary = sorted(set(labels) - set(core))
    for label in auxiliary:
        if label == CORE:
            raise invalid(
                "label",
                label,
                f"another name than {CORE!r}, the domain of core_label {', '.join(core)}",
            )
        if is_unlabelled(label):
            raise invalid(
                "label",
                label,
                f"a label of core_label, or a name that does not begin with {UNLABELLED!r}",
            )
        require_name("label", label)
        require_metric_name("label", label)
    require_tellable("label", auxiliary, (CORE, *core))
    return auxiliary


def _of_stories(
    corpus: StoriesCorpus, core_label: CoreLabel
) -> tuple[StoriesSource, tuple[DomainRecipe, ...], Counts]:
    core = core_labels(core_label, stories.TOPICS)
    source = stories_of(corpus, core)
    mean = stories.mean_story_bytes(source, stories.TOPICS[0])
    means = dict.fromkeys(stories.TOPICS, mean)
    if corpus.num_instructions:
        means[stories.INSTRUCTIONS] = stories.mean_story_bytes(source, stories.INSTRUCTIONS)
    counts = {topic: (n, round(n * means[topic])) for topic, n in source.num_documents}
    aux = [DomainRecipe(topic, (topic,), *counts[topic]) for topic in counts if topic not in core]
    pool = DomainRecipe(CORE, core, corpus.core_documents, round(corpus.core_documents * mean))
    return source, (pool, *aux), counts


def stories_of(corpus: StoriesCorpus, core: tuple[str, ...]) -> StoriesSource:
    """Creates a story source. Divides core's documents and instructions among core's topics."""
    share, rest = divmod(corpus.core_documents, len(core))
    documents = {topic: share + (rank < rest) for rank, topic in enumerate(core)}
    documents |= {topic: corpus.aux_documents for topic in stories.TOPICS if topic not in core}
    instructed = ()
    if corpus.num_instructions:
        documents[stories.INSTRUCTIONS], instructed = corpus.num_instructions, core
    return stories.stories_source(
        documents, corpus.num_facts, corpus.shared_fact_share, corpus.seed, instructed
    )


def _of_hub(corpus: HubCorpus, packing: Packing) -> tuple[HubSource, tuple[DomainRecipe, ...]]:
    """Chooses how many bytes to fetch of each row. Assumes equally common labels in a row."""
    core_tokens = packing.core_tokens or corpus.core_tokens
    aux_share = packing.aux_share or corpus.aux_share
    rows = replace(corpus, core_tokens=core_tokens, aux_share=aux_share).rows
    labels = tuple(dict.fromkeys(label for row in rows for label in row.all_labels))
    core = core_labels(packing.core_label, labels, corpus.core_labels)
    domains = {CORE: core} | {label: (label,) for label in _auxiliary_labels(labels, core)}
    floor = validation_bytes(packing.validation_sequences, packing.seq_len)
    domain_of = {label: domain for domain, labels in domains.items() for label in labels}
    has_held_out = any(row.held_out for row in rows)
    # Each row's share of the corpus's tokens in a domain.
    shares = {
        d: [0.0 if row.held_out else row.share * _fraction(row, labels) for row in rows]
        for d, labels in domains.items()
    }
    # Bytes per token, and tokens, of each domain.
    rates, tokens = {}, {}
    for d, of_rows in shares.items():
        weighted = (row.bytes_per_token * share for row, share in zip(rows, of_rows, strict=True))
        rates[d] = sum_in_order(weighted) / sum_in_order(of_rows)
        margin = CORE_MARGIN if d == CORE else AUX_MARGIN * aux_share / (len(domains) - 1)
        trained_bytes = core_tokens * margin * rates[d]
        tokens[d] = _with_validation(trained_bytes, floor, has_held_out) / rates[d]
    num_bytes = []
    for row in rows:
        most = whole_parts(UNKNOWN * row.available_tokens * row.bytes_per_token)
        row_domains = {domain_of[label] for label in row.all_labels}
        row_tokens = row.share * max(tokens[d] / sum_in_order(shares[d]) for d in row_domains)
        needed = most if row.held_out else whole_parts(row_tokens * row.bytes_per_token)
        num_bytes.append(min(needed, most) if most else needed)
    source = HubSource(rows, tuple(num_bytes))
    return source, tuple(_hub_domain(source, d, labels, rates[d]) for d, labels in domains.items())


def _with_validation(trained_bytes: float, floor: float, has_held_out: bool) -> float:
    if has_held_out:
        return trained_bytes + floor
    whole = trained_bytes / (1 - VALIDATION_FRACTION)
    return max(whole, trained_bytes + floor, floor / MAX_VALIDATION)


def _fraction(row: HubRow, labels: tuple[str, ...]) -> float:
    return sum(label in labels for label in row.all_labels) / len(row.all_labels)


def _hub_domain(
    source: HubSource, name: str, labels: tuple[str, ...], bytes_per_token: float
) -> DomainRecipe:
    # Bytes by `held_out`.
    amounts = [0.0, 0.0]
    for row, num_bytes in zip(source.rows, source.available_bytes, strict=True):
        amounts[row.held_out] += num_bytes * _fraction(row, labels)
    split_bytes, held_out_bytes = map(round, amounts)
    return DomainRecipe(name, labels, 0, split_bytes, bytes_per_token, held_out_bytes)


def _of_files(
    corpus: str, units: tuple[Unit, ...], core_label: CoreLabel
) -> tuple[FilesSource, tuple[DomainRecipe, ...], Counts]:
    """Returns (source, domains, counts by label) of local text.

    Text of domain DOMAIN that is labelled as domain OTHER goes into the part `DOMAIN:OTHER`.
    """
    counts: Counts = {}
    for label, (documents, num_bytes) in chain.from_iterable(u.labels.items() for u in units):
        before = counts.get(label, (0, 0))
        counts[label] = (before[0] + documents, before[1] + num_bytes)
    labels = sorted(label for label in counts if LABELLED not in label)
    if not counts:
        raise invalid("corpus", corpus, "a corpus with at least one record")
    for label in sorted({unit.label for unit in units} - counts.keys() - {""}):
        raise invalid("label", label, "text in at least one of its files")
    if core_label is None and CORE not in counts:
        raise invalid(
            "core_label",
            None,
            "one or more labels of this corpus, which are " + _list_names(labels),
        )
    core = core_labels(core_label, labels, (CORE,))
    domain_of = dict.fromkeys(core, CORE)
    domain_of |= {label: label for label in _auxiliary_labels(labels, core)}
    pools: dict[tuple[str, ...], tuple[str, ...]] = {}
    for label in counts:
        names = label.split(LABELLED)
        for field, name in zip((TRUE_LABEL, "label"), names, strict=False):
            if name not in domain_of:
                raise invalid(
                    field,
                    name,
                    f"{one_of(name, labels)}, which text has without another {TRUE_LABEL}",
                )
        pair = tuple(dict.fromkeys(domain_of[name] for name in names))
        pools[pair] = (*pools.get(pair, ()), label)
    domains = tuple(_domain(pair, labels, counts) for pair, labels in pools.items())
    return FilesSource(content_of(units), len(units)), domains, counts


def _divide_core(
    domains: tuple[DomainRecipe, ...], adjacent: tuple[str, ...], counts: Counts
) -> tuple[DomainRecipe, ...]:
    """Moves core's `adjacent` labels (see `Packing`) into a separate part, `core:core`."""
    (core, *others), known = domains, [label for d in domains for label in d.labels]
    for label in adjacent:
        require_choice("adjacent", label, known)
    near = tuple(label for label in core.labels if label in adjacent)
    far = tuple(label for label in core.labels if label not in adjacent)
    if not near or not far:
        return domains
    if not counts:
        raise invalid("adjacent", near[0], "an auxiliary label, for a corpus of the hub")
    return (_domain((CORE,), far, counts), _domain((CORE, CORE), near, counts), *others)


def _domain(pair: tuple[str, ...], labels: tuple[str, ...], counts: Counts) -> DomainRecipe:
    documents, num_bytes = (sum(counts[label][i] for label in labels) for i in (0, 1))
    if documents < 2:
        raise invalid(
            "label",
            ", ".join(sorted(labels)),
            f"two documents or more, for training and validation, found {documents}",
        )
    part_of = pair[0] if len(pair) > 1 else ""
    return DomainRecipe(":".join(pair), labels, documents, num_bytes, part_of=part_of)


def _choose_sample(recipe: CorpusRecipe) -> TokenizerRecipe:
    """Changes the tokenizer's kind from `bpe` to `bpe-passages` if a document is too large.

    A document is too large if it could be more than 1 / `MIN_SAMPLED` of the tokenizer's sample.
    """
    tokenizer, largest = recipe.tokenizer, max(unit.largest for unit in recipe.units)
    is_part = tokenizer.sample_bytes < sum(domain.num_bytes for domain in recipe.sample_domains)
    if tokenizer.kind == "bpe" and is_part and largest * MIN_SAMPLED > tokenizer.sample_bytes:
        return replace(tokenizer, kind="bpe-passages")
    return tokenizer
