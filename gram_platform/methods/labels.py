"""Divides one epoch of text by the label that training sees, which may be wrong.

Recall and precision are those of Shilov and others (2025, SGTM). The place of a sequence in the
keyed permutation of its text decides its label, for every method and seed. Validation and attacks
use true labels.
"""

from dataclasses import replace

from gram_platform.config import CORE, DomainBudget, Slice
from gram_platform.config.identity import invalid
from gram_platform.methods.setting import Setting

# The slices that carry a label, first the one of the label's own domain.
Text = tuple[Slice, ...]


def labelled_text(setting: Setting) -> tuple[Setting, dict[str, Text]]:
    """Returns the text of every label in one epoch.

    In a domain, text with a wrong label follows the text with its own, to which the returned
    setting limits the domain. ValueError if the precision needs more adjacent text than there is.
    """
    recall, precision = setting.options.recall, setting.options.precision
    own = dict(setting.num_sequences)
    others: dict[str, list[Slice]] = {label: [] for label in setting.domains}
    for domain, _, part in setting.parts:
        own[part.domain] = part.num_sequences
        own[domain] -= part.num_sequences

    def relabel(pool: str, label: str, number: int) -> None:
        own[pool] -= number
        others[label] += [Slice(pool, own[pool], number)] if number else []

    for domain in setting.auxiliary:
        relabel(domain, CORE, own[domain] - max(1, round(recall * own[domain])))
    for domain, number in [(domain, own[domain]) for domain in setting.auxiliary]:
        near = {pool: own[pool] for pool in setting.adjacent or (CORE,) if pool != domain}
        wanted, available = round(number / precision) - number, sum(near.values())
        if wanted and wanted >= available:
            allowed = f"more: {available:,} adjacent sequences are left for {number:,} of {domain}"
            raise invalid("precision", precision, allowed)
        for pool, size in near.items():
            taken = round(wanted * size / max(1, available))
            relabel(pool, domain, taken)
            wanted, available = wanted - taken, available - size
    for _, label, part in setting.parts:
        relabel(part.domain, label, own[part.domain])
    texts = {label: (Slice(label, 0, own[label]), *others[label]) for label in others}
    limits = {d: own[d] for d, number in setting.num_sequences.items() if own[d] < number}
    return replace(setting, available={**setting.available, **limits}), texts


def with_true_labels(setting: Setting) -> Setting:
    parts = tuple((domain, domain, part) for domain, _, part in setting.parts)
    return replace(setting.with_options(recall=1.0, precision=1.0), parts=parts)


def length(slices: Text) -> int:
    return sum(part.num_sequences for part in slices)


def scaled(slices: Text, scale: float) -> Text:
    """Returns the first `scale` (lambda) of each slice, at most all of it."""
    share = min(1.0, scale)
    return tuple(replace(s, num_sequences=max(1, round(share * s.num_sequences))) for s in slices)


def label_budget(
    setting: Setting, label: str, num_sequences: int, num_draws: int, others: Text
) -> DomainBudget:
    """Budgets `others` and as many sequences of the label's domain as are missing, or there."""
    own = setting.pool(label, max(1, num_sequences - length(others)))
    slices = (Slice(label, 0, own), *others) if others else ()
    return DomainBudget(label, own + length(others), num_draws, slices)
