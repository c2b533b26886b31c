"""How much text of each row of the hub a corpus needs: from the tokens that a size trains on.

It follows from the size alone, so studies that train a size on a corpus share its data. Every amount is in whole parts
(see `rows.py`), so corpora of several sizes share what is on the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gram_platform.config import CORE
from gram_platform.config.identity import require_int, require_real
from gram_platform.corpora.recipe import MAX_VALIDATION, DomainRecipe, validation_bytes
from gram_platform.corpora.rows import HubRow, HubSource, whole_parts

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
    return source, tuple(_domain(source, d, labels, rates[d]) for d, labels in domains.items())


def _parts(rows: tuple[HubRow, ...], labels: tuple[str, ...]) -> tuple[float, ...]:
    """Of each row: the share of the corpus's tokens that is of these labels and split."""
    return tuple(0.0 if row.held_out else row.share * _fraction(row, labels) for row in rows)


def _fraction(row: HubRow, labels: tuple[str, ...]) -> float:
    return sum(label in labels for label in row.all_labels) / len(row.all_labels)


def _bytes_per_token(rows: tuple[HubRow, ...], parts: tuple[float, ...]) -> float:
    return sum(row.bytes_per_token * part for row, part in zip(rows, parts, strict=True)) / sum(parts)


def _domain(source: HubSource, name: str, labels: tuple[str, ...], bytes_per_token: float) -> DomainRecipe:
    split = held_out = 0.0
    for row, num_bytes in zip(source.rows, source.expected_bytes, strict=True):
        of_labels = num_bytes * _fraction(row, labels)
        held_out, split = held_out + row.held_out * of_labels, split + (not row.held_out) * of_labels
    return DomainRecipe(name, labels, 0, round(split), bytes_per_token, round(held_out))
