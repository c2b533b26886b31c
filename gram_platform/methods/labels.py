"""Divides one epoch of text by the labels that training sees, which may be wrong.

Recall and precision are defined as in Shilov and others (2025, SGTM). Which label a sequence has
depends on its position in the permutation of its domain or part, but not on method or seed.
Validation and attacks use true labels.
"""

from collections.abc import Iterable
from dataclasses import replace

from gram_platform.config import CORE, DomainBudget, Slice
from gram_platform.config.identity import invalid
from gram_platform.methods.setting import Setting

# The slices that carry a label, first the one of the label's own domain.
Text = tuple[Slice, ...]


def divide_text(setting: Setting) -> tuple[Setting, dict[str, Text]]:
    """Divides one epoch's text by label. Returns (setting, {label: text}).

    In each domain's permutation, correctly labelled text comes first. The field `available` of the
    returned setting has the length of this text, unless the whole domain is correctly labelled.
    Raises ValueError if the precision needs more mislabelled text than the pools in `adjacent`
    (default: core) have.
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
        missing, available = round(number / precision) - number, sum(near.values())
        if missing and missing >= available:
            allowed = f"more: {available:,} adjacent sequences are left for {number:,} of {domain}"
            raise invalid("precision", precision, allowed)
        for pool, size in near.items():
            count = round(missing * size / max(1, available))
            relabel(pool, domain, count)
            missing, available = missing - count, available - size
    for _, label, part in setting.parts:
        relabel(part.domain, label, own[part.domain])
    texts = {label: (Slice(label, 0, own[label]), *others[label]) for label in others}
    limits = {d: own[d] for d, number in setting.num_sequences.items() if own[d] < number}
    return replace(setting, available={**setting.available, **limits}), texts


def restore_true_labels(setting: Setting) -> Setting:
    parts = tuple((domain, domain, part) for domain, _, part in setting.parts)
    return replace(setting.with_options(recall=1.0, precision=1.0), parts=parts)


def count_sequences(slices: Iterable[Slice]) -> int:
    return sum(part.num_sequences for part in slices)


def budget_label(
    setting: Setting,
    text: Text,
    scale: float,
    num_sequences: int,
    num_draws: int,
    unlabelled: Text = (),
) -> DomainBudget:
    """Returns a label's budget, with `num_sequences` sequences and `num_draws` draws.

    The first slice of `text` is from the label's own domain. The budget contains the share `scale`
    (lambda, at most 1) of each other slice, and all of `unlabelled`. The first slice supplies the
    remaining sequences, or all that it has. Raises ValueError if no sequences remain.
    """
    (own, *slices), share = text, min(1.0, scale)
    others = [replace(s, num_sequences=max(1, round(share * s.num_sequences))) for s in slices]
    others += unlabelled
    num_others = count_sequences(others)
    if num_sequences <= num_others:
        field = "unlabelled_share" if unlabelled else "recall"
        raise invalid(field, num_sequences, f"a share that leaves text of {own.domain} its label")
    number = setting.pool(own.domain, num_sequences - num_others)
    pool = (replace(own, num_sequences=number), *others) if others else ()
    return DomainBudget(own.domain, number + num_others, num_draws, pool)
