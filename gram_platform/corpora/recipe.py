"""What a packed corpus is made from, as a value: `CorpusRecipe`, whose hash is the `data_id`.

A recipe holds contents, never places: the hash of the records of local files (so moving, renaming or compressing them
changes nothing), the parameters of generated stories, or the rows of the hub's table with their revisions. It exists
before any data does, except that local files are read once to know their labels and lengths.
"""

import re
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

FIRST_PART_BYTES = 1 << 22  # of text in the first parts
PART_BYTES = 1 << 26  # in the largest
GROWTH = 8  # between them a part is an eighth of what is before it: whole parts are never much more than is needed
NO_IDENTITY = ("note", "verified", "share", "bytes_per_token", "available_tokens")


@dataclass(frozen=True)
class HubRow:
    """One dataset of the Hugging Face hub, as a row of the table in `catalog.py`.

    Give `label` (every record has it) or `label_field` and the `labels` it is known to hold. `keep` and `drop` are
    (field, regular expression) pairs searched in the field's text (dots go into nested fields; the items of a list are
    joined by blanks): all of `keep` must be found and none of `drop`. `data_dir` reads one folder of the repository,
    `files` those files of it (or, with dataset "json" or "parquet", of a disk). Records come in the dataset's own
    order, from the first. A `held_out` row is validation as a whole.
    """

    dataset: str
    revision: str
    text_fields: tuple[str, ...]  # joined by a blank line
    share: float  # of the corpus's tokens: rows of one domain divide it by their shares; not used of a held-out row
    verified: bool  # a person or `gram prepare --check` has opened a record of this revision
    label: str = ""
    label_field: str = ""
    labels: tuple[str, ...] = ()
    config: str = ""
    split: str = "train"
    files: tuple[str, ...] = ()
    keep: tuple[tuple[str, str], ...] = ()
    drop: tuple[tuple[str, str], ...] = ()
    note: str = field(default="", compare=False)
    data_dir: str = added("")
    held_out: bool = added(False)
    bytes_per_token: float = 4.5  # of its text after the corpus's tokenizer: an estimate
    available_tokens: int = 0  # that are known to pass the filters; 0: not known, and taken to be enough

    def __post_init__(self) -> None:
        where = f"hub row {self.dataset}"
        if bool(self.label) == bool(self.label_field):
            raise invalid(f"{where}: label", self.label, "either label or label_field")
        if self.label_field and not self.labels:
            raise invalid(f"{where}: labels", self.labels, "the values that label_field is known to hold")
        if not (self.dataset and self.revision and self.text_fields):
            raise invalid(f"{where}: dataset, revision, text_fields", "", "all three given")
        for name, pattern in self.keep + self.drop:
            try:
                re.compile(pattern)
            except re.error as error:
                raise invalid(f"{where}: pattern of {name}", pattern, f"a regular expression ({error})") from None
        require_real(f"{where}: share", self.share, 0.0, 1.0, open_low=True)
        require_real(f"{where}: bytes_per_token", self.bytes_per_token, 0.0, open_low=True)
        require_int(f"{where}: available_tokens", self.available_tokens, int(self.held_out))

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (self.label,) if self.label else self.labels

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that a record must have."""
        label = (self.label_field,) if self.label_field else ()
        return tuple(dict.fromkeys((*self.text_fields, *label, *(name for name, _ in self.keep + self.drop))))

    @property
    def identity(self) -> dict:
        """What decides which records come out; notes, the verified mark and estimates of amounts do not."""
        fields = {f.name: v for f, v in identity_fields(self).items()}
        return {k: v for k, v in fields.items() if k not in NO_IDENTITY}

    def capped(self, num_bytes: int) -> int:
        """So many bytes, or as many as there are thought to be."""
        known = round(self.available_tokens * self.bytes_per_token)
        return min(num_bytes, known) if known else num_bytes


@dataclass(frozen=True)
class HubSource:
    """Rows of the hub's table and how many bytes of text are taken from each, in the datasets' own order."""

    rows: tuple[HubRow, ...]
    num_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.num_bytes) or not self.rows:
            raise invalid("corpus.source.num_bytes", self.num_bytes, "one number for each of one or more rows")

    @property
    def expected_bytes(self) -> tuple[int, ...]:
        """Of each row: less than `num_bytes` where that is more than there is."""
        return tuple(row.capped(n) for row, n in zip(self.rows, self.num_bytes, strict=True))


def part_bytes(done: int) -> int:
    """Bytes of text in the part that follows `done` bytes of full parts."""
    return min(PART_BYTES, max(FIRST_PART_BYTES, done // GROWTH))


def whole_parts(num_bytes: float) -> int:
    """The bytes of the fewest parts that hold so many."""
    done = 0
    while done < min(num_bytes, GROWTH * PART_BYTES):
        done += part_bytes(done)
    rest = max(0, num_bytes - done)
    return done + int(-(-rest // PART_BYTES)) * PART_BYTES


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
