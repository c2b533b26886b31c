"""Rows of the hub's table, and the parts in which a row's text is fetched and kept."""

import re
from dataclasses import dataclass, field

from gram_platform.config.identity import added, identity_fields, invalid, require_int, require_real

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
