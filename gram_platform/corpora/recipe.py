"""Defines `CorpusRecipe`, which determines the bytes of a packed corpus. Its hash is the `data_id`.

A recipe contains a hash of local records, the parameters of generated stories, or Hub datasets and
their revisions. The paths of local records are not hashed, so the `data_id` does not change if the
files are moved, renamed or compressed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gram_platform.config import CORE, core_first
from gram_platform.config.identity import (
    add_field,
    identity_fields,
    invalid,
    require_fields,
    require_int,
    require_name,
    require_real,
    short_hash,
    to_plain,
)
from gram_platform.config.plain import from_plain

# Increase this when the same recipe would give other tokens. Every data_id then changes.
PACK_VERSION = 1
TRAINED = ("bpe", "bpe-passages")
# The tokens of 256 bytes and of the end of text.
MIN_BPE_VOCAB = 257
# The fewest documents or passages that fit into a tokenizer's sample.
MIN_SAMPLED = 64
# Bytes per token of an unknown tokenizer, as the mean, the least, and the most in validation.
BYTES_PER_TOKEN = 4.0
FEWEST_BYTES_PER_TOKEN = 2.0
FLOOR_BYTES_PER_TOKEN = 6.0
# The fewest documents of a domain that are held out on average, so that every domain has some.
FLOOR_DOCUMENTS = 8
# The share of a domain's documents that is held out, and the largest such share.
VALIDATION_FRACTION = 0.05
MAX_VALIDATION = 0.5
# The bytes of text in the smallest and the largest part of a hub row. Between these limits a part
# has an eighth of the text before it, so that little is fetched in vain.
FIRST_PART_BYTES = 1 << 22
PART_BYTES = 1 << 26
GROWTH = 8
# `splits.tag_keys` stores a domain and its split in 16 bits.
MAX_DOMAINS = 1 << 15
# Separates the true label of a text from the label that training sees.
LABELLED = " -labelled-> "
NO_IDENTITY = ("note", "verified", "share", "bytes_per_token", "available_tokens")
# Names of datasets that stand for local files or URLs.
BUILDERS = ("json", "parquet", "text")


@dataclass(frozen=True)
class HubRow:
    """A dataset on the Hugging Face Hub.

    Either all records have the label `label`, or each record's field `label_field` is its label,
    one of `labels`. `keep` and `drop` are (field, regular expression) pairs. A record is read if it
    matches all pairs of `keep` and no pair of `drop`. The field name "a.b" means the field "b" of
    the field "a", unless the record has a field "a.b". If a field is a list, its items are joined
    by spaces. `data_dir` selects a folder of the repository, and `files` selects files. For a
    dataset in `BUILDERS`, `files` are local files or URLs.
    """

    dataset: str
    revision: str = "main"
    # Fields whose texts are joined by a blank line.
    text_fields: tuple[str, ...] = ("text",)
    # The share of the corpus's tokens. Ignored for a held-out row.
    share: float = 1.0
    # Whether a person or `gram prepare --check` has read a record of this revision.
    verified: bool = False
    label: str = ""
    label_field: str = ""
    labels: tuple[str, ...] = ()
    config: str = ""
    split: str = "train"
    files: tuple[str, ...] = ()
    keep: tuple[tuple[str, str], ...] = ()
    drop: tuple[tuple[str, str], ...] = ()
    note: str = field(default="", compare=False)
    data_dir: str = add_field("")
    # Whether all records are in the validation split.
    held_out: bool = add_field(False)
    # An estimate for the corpus's tokenizer.
    bytes_per_token: float = 4.5
    # Tokens that pass the filters, or 0 if their number is unknown and assumed to be enough.
    available_tokens: int = 0

    def __post_init__(self) -> None:
        where = f"hub row {self.dataset}"
        if bool(self.label) == bool(self.label_field):
            raise invalid(f"{where}: label", self.label, "exactly one of label and label_field")
        if self.label_field and not self.labels:
            raise invalid(f"{where}: labels", self.labels, "the values of label_field")
        if not (self.dataset and self.revision and self.text_fields):
            raise invalid(f"{where}: dataset, revision, text_fields", "", "all three given")
        for name, pattern in self.keep + self.drop:
            try:
                re.compile(pattern)
            except re.error as error:
                raise invalid(
                    f"{where}: pattern of {name}", pattern, f"a regular expression ({error})"
                ) from None
        require_real(f"{where}: share", self.share, 0.0, 1.0, open_low=True)
        require_real(f"{where}: bytes_per_token", self.bytes_per_token, 0.0, open_low=True)
        require_int(f"{where}: available_tokens", self.available_tokens, int(self.held_out))

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (self.label,) if self.label else self.labels

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that every record must have."""
        label = (self.label_field,) if self.label_field else ()
        return tuple(dict.fromkeys((*self.text_fields, *label, *dict(self.keep + self.drop))))

    @property
    def identity(self) -> dict:
        """The values of the fields that determine which records are read."""
        return {f.name: v for f, v in identity_fields(self).items() if f.name not in NO_IDENTITY}


@dataclass(frozen=True)
class HubSource:
    """Hub datasets, and how many bytes of text to take from the start of each."""

    rows: tuple[HubRow, ...]
    num_bytes: tuple[int, ...]

    @property
    def available_bytes(self) -> tuple[int, ...]:
        """Each row's `num_bytes`, or its estimated size in bytes if known and smaller."""
        available = [round(row.available_tokens * row.bytes_per_token) for row in self.rows]
        return tuple(min(n, most or n) for n, most in zip(self.num_bytes, available, strict=True))


def part_bytes(done: int) -> int:
    """Returns the size in bytes of a row's next part. `done` is the size of all earlier parts."""
    return min(PART_BYTES, max(FIRST_PART_BYTES, done // GROWTH))


def whole_parts(num_bytes: float) -> int:
    """Rounds a row's size in bytes up to whole parts."""
    done = 0
    while done < min(num_bytes, GROWTH * PART_BYTES):
        done += part_bytes(done)
    rest = max(0, num_bytes - done)
    return done + int(-(-rest // PART_BYTES)) * PART_BYTES


def validation_bytes(num_sequences: int, seq_len: int) -> float:
    """Returns how many bytes of text are enough for `num_sequences` validation sequences."""
    return (num_sequences * seq_len + 1) * FLOOR_BYTES_PER_TOKEN


@dataclass(frozen=True)
class TokenizerRecipe:
    """Describes where a tokenizer comes from.

    `kind` is one of:
    - `bpe`: a byte-level BPE, trained on a sample of training documents (about `sample_bytes`)
    - `bpe-passages`: the same, but the sample consists of passages instead of whole documents
    - `file`: a `tokenizer.json` whose SHA-256 is `source`
    - `hub`: the Hub tokenizer that `source` names as `name@revision`
    """

    kind: str
    source: str = ""
    sample_bytes: int = 0
    core_only: bool = add_field(False)
    # The token that ends a text, or "" for the default.
    end_of_text: str = add_field("")

    def __post_init__(self) -> None:
        require_int("tokenizer.sample_bytes", self.sample_bytes, 1 if self.is_trained else 0)
        if self.core_only and not self.is_trained:
            raise invalid(
                "core_tokenizer", True, f"False: this tokenizer is not trained here ({self.source})"
            )

    @property
    def is_trained(self) -> bool:
        return self.kind in TRAINED


@dataclass(frozen=True)
class DomainRecipe:
    """A domain, or a part of the domain `part_of`. A part's training text is packed separately."""

    name: str
    labels: tuple[str, ...]
    # 0 if the number is unknown before the data exists.
    num_documents: int
    # Bytes of text to split into training and validation. They are exact only for local text.
    num_bytes: int
    bytes_per_token: float = add_field(BYTES_PER_TOKEN)
    # Bytes of a dataset's test split, all of which is validation.
    held_out_bytes: int = add_field(0)
    # The true domain of a part. Training uses the part `DOMAIN:OTHER` as text of OTHER.
    part_of: str = add_field("")

    @property
    def domain(self) -> str:
        return self.part_of or self.name

    @property
    def seen_as(self) -> str:
        return self.name.removeprefix(f"{self.part_of}:" * bool(self.part_of))

    def __post_init__(self) -> None:
        require_name("corpus.domain", self.name)
        object.__setattr__(self, "labels", tuple(sorted(self.labels)))
        owner = f"corpus.domains[{self.name}]"
        if not self.labels:
            raise invalid(f"{owner}.labels", self.labels, "at least one label")
        require_fields(owner, self, 0, "num_documents", "held_out_bytes")
        require_fields(owner, self, 1, "num_bytes")
        require_fields(owner, self, 0, "bytes_per_token", open_low=True)


@dataclass(frozen=True)
class FilesSource:
    """Local records. The hash `content` covers all records, and ignores the file order."""

    content: str
    num_units: int


@dataclass(frozen=True)
class StoriesSource:
    """Generated stories (see `stories.stories_source`)."""

    num_documents: tuple[tuple[str, int], ...]
    num_facts: int
    shared_fact_share: float
    seed: int
    version: int
    # The topics of the documents labelled `instructions`.
    instructed: tuple[str, ...] = add_field(())


@dataclass(frozen=True)
class CorpusRecipe:
    """All values that determine the bytes of a packed corpus."""

    source: FilesSource | StoriesSource | HubSource
    domains_from: tuple[DomainRecipe, ...]
    tokenizer: TokenizerRecipe
    seq_len: int
    vocab_size: int
    split_seed: int = 0
    validation_fraction: float = VALIDATION_FRACTION
    validation_sequences: int = 32
    # Whether training sequences are stored in their domain's permutation, as for hub corpora.
    permuted: bool = add_field(False)
    # The local files to read.
    units: tuple = field(default=(), compare=False, repr=False)
    tokenizer_path: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        least = MIN_BPE_VOCAB if self.tokenizer.is_trained else 2
        require_fields("corpus", self, 1, "seq_len")
        require_fields("corpus", self, least, "vocab_size", high=2**31)
        require_fields("corpus", self, 0, "split_seed", high=2**63 - 1)
        require_fields("corpus", self, 0, "validation_fraction", high=MAX_VALIDATION, open_low=True)
        require_fields("corpus", self, 0, "validation_sequences")
        object.__setattr__(self, "domains_from", core_first(self.domains_from, lambda d: d.name))
        names = self.pools
        if len(set(names)) != len(names) or CORE not in names:
            raise invalid("corpus.domains", names, f"each domain once, {CORE!r} among them")
        if len(names) > MAX_DOMAINS:
            raise invalid(
                "corpus.domains", len(names), f"at most {MAX_DOMAINS:,}: pool labels in core_label"
            )

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer_path or self.tokenizer.source or "trained")

    @property
    def sample_domains(self) -> tuple[DomainRecipe, ...]:
        """The domains whose text is used to train the tokenizer."""
        return self.domains_from[: 1 if self.tokenizer.core_only else None]

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains: core, then the auxiliary domains sorted by name."""
        return tuple(d.name for d in self.domains_from if not d.part_of)

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of the domains and of their separately packed parts."""
        return tuple(d.name for d in self.domains_from)

    @property
    def domain_of(self) -> dict[str, str]:
        pairs = ((label, pool.domain) for pool in self.domains_from for label in pool.labels)
        return {label: domain for label, domain in pairs if LABELLED not in label}

    def plain(self) -> dict:
        """Returns the fields that `data_id` hashes, as JSON values without paths."""
        fields = {f.name: v for f, v in identity_fields(self).items() if f.compare}
        source = to_plain(fields.pop("source"))
        if isinstance(self.source, HubSource):
            source["rows"] = [to_plain(row.identity) for row in self.source.rows]
        return to_plain(fields) | {"source": {"kind": type(self.source).__name__, **source}}

    @property
    def data_id(self) -> str:
        """The name of the packed corpus, a hash of 12 hexadecimal digits."""
        return short_hash({"pack_version": PACK_VERSION, "recipe": self.plain()})

    def of_domain(self, domain: str) -> DomainRecipe:
        return {recipe.name: recipe for recipe in self.domains_from}[domain]

    def pools_of(self, domain: str) -> list[DomainRecipe]:
        return [pool for pool in self.domains_from if pool.domain == domain]

    def validation_share(self, domain: str) -> float:
        """Returns the share of a domain's documents in the validation split, at most half.

        Without held-out text, the share is at least `validation_fraction`, or more to get enough
        validation documents or `validation_sequences`. With held-out text, the share is only
        what is needed to reach `validation_sequences` together with this text.
        """
        recipe = self.of_domain(domain)
        pools = self.pools_of(recipe.domain)
        num_documents = sum(pool.num_documents for pool in pools)
        missing = validation_bytes(self.validation_sequences, self.seq_len) - recipe.held_out_bytes
        floor = max(0.0, missing / sum(pool.num_bytes for pool in pools))
        if recipe.held_out_bytes:
            return min(MAX_VALIDATION, floor)
        few = FLOOR_DOCUMENTS / num_documents if num_documents else 0.0
        return min(MAX_VALIDATION, max(self.validation_fraction, floor, few))

    def estimate_sequences(self, split: str, domain: str, bytes_per_token: float = 0.0) -> int:
        """Estimates the number of sequences of a domain in a split.

        If `bytes_per_token` is 0, uses the value in the domain's recipe.
        """
        recipe, share = self.of_domain(domain), self.validation_share(domain)
        num_bytes = recipe.num_bytes * (1 - share)
        if split == "validation":
            whole = sum(pool.num_bytes for pool in self.pools_of(domain))
            num_bytes = whole * share + recipe.held_out_bytes
        return int(num_bytes / (bytes_per_token or recipe.bytes_per_token)) // self.seq_len

    def most_sequences(self, split: str, domain: str) -> int:
        """Returns an upper bound on the number of sequences of a domain in a split.

        For a Hub corpus, returns an estimate instead.
        """
        rate = 0.0 if isinstance(self.source, HubSource) else FEWEST_BYTES_PER_TOKEN
        return self.estimate_sequences(split, domain, rate)


def recipe_from_plain(plain: Mapping) -> CorpusRecipe | None:
    """Rebuilds a recipe from the result of `CorpusRecipe.plain`.

    Returns None if the source is not generated stories, or if the tokenizer is not a BPE that is
    trained on the corpus.
    """
    tokenizer, source = from_plain(TokenizerRecipe, plain["tokenizer"]), dict(plain["source"])
    if source.pop("kind") != StoriesSource.__name__ or not tokenizer.is_trained:
        return None
    parts = {"source": from_plain(StoriesSource, source), "tokenizer": tokenizer}
    return from_plain(CorpusRecipe, {**plain, **parts})
