"""What a packed corpus is made from, as a value: `CorpusRecipe`, whose hash is the `data_id`.

A recipe holds contents, never places: the hash of the records of local files (so moving, renaming or compressing them
changes nothing), the parameters of generated stories, or the rows of the hub's table with their revisions. It exists
before any data does, except that local files are read once to know their labels and lengths.
"""

from dataclasses import dataclass, field
from pathlib import Path

from gram_platform.config import CORE, core_first
from gram_platform.config.identity import (
    added,
    identity_fields,
    invalid,
    require_choice,
    require_int,
    require_name,
    require_real,
    short_hash,
    to_plain,
)
from gram_platform.corpora.rows import HubSource

PACK_VERSION = 1  # raised when the same recipe would pack to other tokens; part of every data_id
TRAINED = ("bpe", "bpe-passages")
TOKENIZER_KINDS = (*TRAINED, "file", "hub")
MIN_BPE_VOCAB = 257  # 256 bytes and the end of text
MIN_SAMPLED = 64  # documents, or passages of them, that a tokenizer's sample has room for
BYTES_PER_TOKEN = 4.0  # what sizes are estimated with before there is a tokenizer
FEWEST_BYTES_PER_TOKEN = 2.0  # text whose tokenizer is not known yet has at most as many tokens as this gives
FLOOR_BYTES_PER_TOKEN = 6.0  # the floor on validation sequences is met by text of up to as many
FLOOR_DOCUMENTS = 8  # held out of a domain on average at least, so that none has no validation at all
MAX_VALIDATION = 0.5  # of a domain's documents, however small it is


def validation_bytes(num_sequences: int, seq_len: int) -> float:
    """Text that surely holds as many validation sequences."""
    return (num_sequences * seq_len + 1) * FLOOR_BYTES_PER_TOKEN


@dataclass(frozen=True)
class TokenizerRecipe:
    """Where the tokenizer comes from.

    `bpe`: byte-level BPE trained on about `sample_bytes` of the corpus' training documents, taken whole;
    `bpe-passages`: taken in passages, for documents so long that few of them would be the sample; `file`: a
    `tokenizer.json` whose SHA-256 is `source`; `hub`: `source` is `name@revision`.
    """

    kind: str
    source: str = ""
    sample_bytes: int = 0

    def __post_init__(self) -> None:
        require_choice("tokenizer.kind", self.kind, TOKENIZER_KINDS)
        if self.is_trained != (self.source == ""):
            raise invalid("tokenizer.source", self.source, "empty for a trained tokenizer, given for any other")
        require_int("tokenizer.sample_bytes", self.sample_bytes, 1 if self.is_trained else 0)

    @property
    def is_trained(self) -> bool:
        return self.kind in TRAINED


@dataclass(frozen=True)
class DomainRecipe:
    """A domain of the corpus and the labels of the source that are pooled in it."""

    name: str
    labels: tuple[str, ...]
    num_documents: int  # 0 where it is not known before the data is there
    num_bytes: int  # of UTF-8 text that is split; for generated and hub corpora an estimate
    bytes_per_token: float = added(BYTES_PER_TOKEN)
    held_out_bytes: int = added(0)  # of text that is validation as a whole: a dataset's own test split

    def __post_init__(self) -> None:
        require_name("corpus.domain", self.name)
        object.__setattr__(self, "labels", tuple(sorted(self.labels)))
        if not self.labels:
            raise invalid(f"corpus.domains[{self.name}].labels", self.labels, "at least one label")
        require_int(f"corpus.domains[{self.name}].num_documents", self.num_documents, 0)
        require_int(f"corpus.domains[{self.name}].num_bytes", self.num_bytes, 1)
        require_real(f"corpus.domains[{self.name}].bytes_per_token", self.bytes_per_token, 0.0, open_low=True)
        require_int(f"corpus.domains[{self.name}].held_out_bytes", self.held_out_bytes, 0)


@dataclass(frozen=True)
class FilesSource:
    """Local records: a hash over the sorted hashes of all units' records (a file, or a glob label's files)."""

    content: str
    num_units: int


@dataclass(frozen=True)
class StoriesSource:
    """Generated stories: see `stories.py`. Documents a topic, and the knobs of its facts."""

    num_documents: tuple[tuple[str, int], ...]
    num_facts: int
    shared_fact_share: float
    seed: int
    version: int


@dataclass(frozen=True)
class CorpusRecipe:
    """Everything that decides the packed tokens. Equal recipes have equal `data_id`s and pack to equal bytes."""

    source: FilesSource | StoriesSource | HubSource
    domains_from: tuple[DomainRecipe, ...]
    tokenizer: TokenizerRecipe
    seq_len: int
    vocab_size: int
    split_seed: int = 0
    validation_fraction: float = 0.05
    validation_sequences: int = 32
    units: tuple = field(default=(), compare=False, repr=False)  # where local files lie: not part of the identity
    tokenizer_path: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_int("corpus.seq_len", self.seq_len, 1)
        require_int("corpus.vocab_size", self.vocab_size, MIN_BPE_VOCAB if self.tokenizer.is_trained else 2, 2**31)
        require_int("corpus.split_seed", self.split_seed, 0, 2**63 - 1)
        require_real("corpus.validation_fraction", self.validation_fraction, 0.0, MAX_VALIDATION, open_low=True)
        require_int("corpus.validation_sequences", self.validation_sequences, 0)
        object.__setattr__(self, "domains_from", core_first(self.domains_from, lambda d: d.name))
        names = [d.name for d in self.domains_from]
        if len(set(names)) != len(names) or CORE not in names:
            raise invalid("corpus.domains", names, f"each domain once, {CORE!r} among them")

    @property
    def domains(self) -> tuple[str, ...]:
        """Core first, then the auxiliary domains by name."""
        return tuple(d.name for d in self.domains_from)

    @property
    def domain_of(self) -> dict[str, str]:
        """The domain of every label."""
        return {label: domain.name for domain in self.domains_from for label in domain.labels}

    def plain(self) -> dict:
        """The identity as JSON values: every field but the places."""
        source = self.source
        if isinstance(source, HubSource):
            source_plain = {"rows": [to_plain(r.identity) for r in source.rows], "num_bytes": list(source.num_bytes)}
        else:
            source_plain = to_plain(source)
        fields = {f.name: v for f, v in identity_fields(self).items() if f.compare and f.name != "source"}
        return {**to_plain(fields), "source": {"kind": type(source).__name__, **source_plain}}

    @property
    def data_id(self) -> str:
        """12 hexadecimal digits that name the packed corpus, before it exists."""
        return short_hash({"pack_version": PACK_VERSION, "recipe": self.plain()})

    def of_domain(self, domain: str) -> DomainRecipe:
        """ValueError for a domain that the corpus has not."""
        found = next((d for d in self.domains_from if d.name == domain), None)
        if found is None:
            raise invalid("domain", domain, "one of " + ", ".join(self.domains))
        return found

    def validation_share(self, domain: str) -> float:
        """The share of a domain's documents that go to validation.

        `validation_fraction`, or more where a small domain needs more to reach `validation_sequences`, or has few
        documents; at most half. Where a dataset's own test split is held out, only what that lacks.
        """
        of = self.of_domain(domain)
        missing = validation_bytes(self.validation_sequences, self.seq_len) - of.held_out_bytes
        floor = max(0.0, missing / of.num_bytes)
        if of.held_out_bytes:
            return min(MAX_VALIDATION, floor)
        few = FLOOR_DOCUMENTS / of.num_documents if of.num_documents else 0.0
        return min(MAX_VALIDATION, max(self.validation_fraction, floor, few))

    def expected_sequences(self, split: str, domain: str, bytes_per_token: float = 0.0) -> int:
        """About how many sequences a domain will have in a split; the packed corpus knows.

        Counted at `bytes_per_token`, without it at the domain's own: 4 where nothing is known of its tokenizer.
        """
        require_choice("split", split, ("train", "validation"))
        of, share = self.of_domain(domain), self.validation_share(domain)
        part = share if split == "validation" else 1 - share
        num_bytes = of.num_bytes * part + (of.held_out_bytes if split == "validation" else 0)
        return int(num_bytes / (bytes_per_token or of.bytes_per_token)) // self.seq_len

    def most_sequences(self, split: str, domain: str) -> int:
        """The most sequences that a domain can have in a split.

        For a hub corpus what is known of its datasets, else the domain's text at 2 bytes a token.
        """
        if isinstance(self.source, HubSource):
            return self.expected_sequences(split, domain)
        return self.expected_sequences(split, domain, FEWEST_BYTES_PER_TOKEN)

    def describe(self) -> str:
        """One line for the corpus and one for each domain."""
        head = f"{self.data_id}: {type(self.source).__name__}, seq_len {self.seq_len}, vocab {self.vocab_size}"
        lines = [f"{head}, tokenizer {self.tokenizer.kind} {self.tokenizer.source}".rstrip()]
        for domain in self.domains_from:
            documents = f"{domain.num_documents:,} documents" if domain.num_documents else "documents not counted yet"
            pooled = "" if domain.labels == (domain.name,) else f", {len(domain.labels)} label(s) pooled"
            lines.append(f"  {domain.name}: {documents}, {domain.num_bytes / 1e6:,.1f} MB{pooled}")
        return "\n".join(lines)
