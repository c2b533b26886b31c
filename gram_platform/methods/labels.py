"""Divides one epoch of text by the label that it carries in training, which may be wrong.

Recall and precision are those of "SGTM: Beyond Data Filtering" (Shilov and others, 2025). The place
of a sequence in the keyed permutation of its text decides its label, so that it is the same for
every method and seed, and validation and attacks keep the true label.
"""

from dataclasses import dataclass, replace

from gram_platform.config import CORE, DomainBudget, Slice
from gram_platform.config.identity import invalid
from gram_platform.methods.setting import Setting


@dataclass(frozen=True)
class Text:
    """One epoch of a label's text: the first `own` sequences of its domain, and other slices."""

    own: int
    others: tuple[Slice, ...]

    @property
    def length(self) -> int:
        return self.own + sum(part.num_sequences for part in self.others)

    def scaled_others(self, scale: float) -> tuple[Slice, ...]:
        """Returns the first `scale` (lambda) of every other slice, at most all of it."""
        return tuple(
            replace(part, num_sequences=max(1, round(min(1.0, scale) * part.num_sequences)))
            for part in self.others
        )


def text_by_label(setting: Setting) -> dict[str, Text]:
    """Returns the text of every label; without label noise it is the domain's own.

    Text that carries a wrong label follows the text that carries its own. ValueError for a recall
    that leaves a domain nothing, and a precision that needs more adjacent text than there is.
    """
    recall, precision = setting.options.recall, setting.options.precision
    own = dict(setting.num_sequences)
    others: dict[str, list[Slice]] = {label: [] for label in setting.domains}
    if recall * precision < 1.0 or setting.parts:
        own = {domain: setting.pool(domain, number) for domain, number in own.items()}
    for part in setting.parts:
        own[part.pool] = max(1, round(part.share * setting.num_sequences[part.domain]))
        own[part.domain] -= own[part.pool]
        if recall * precision < 1.0 and part.label != part.domain:
            expected = "1 on a corpus whose records have true_label"
            raise invalid("recall, precision", (recall, precision), expected)

    def relabel(pool: str, label: str, number: int) -> None:
        own[pool] -= number
        others[label] += [Slice(pool, own[pool], number)] if number else []

    labelled = {domain: round(recall * own[domain]) for domain in setting.auxiliary}
    for domain, number in labelled.items():
        if number < 1:
            raise invalid("recall", recall, f"a share that leaves {domain} a sequence")
        relabel(domain, CORE, own[domain] - number)
    sizes = {pool: own[pool] for pool in setting.adjacent or (CORE,)}
    for domain, number in labelled.items():
        wanted = round(number * (1.0 / precision - 1.0))
        near = {pool: size for pool, size in sizes.items() if pool != domain}
        while wanted and near:
            pool, size = next(iter(near.items()))
            taken = round(wanted * size / sum(near.values()))
            if taken >= own[pool]:
                expected = f"a precision for which {own[pool]:,} sequences of {pool} suffice"
                raise invalid("precision", precision, expected)
            relabel(pool, domain, taken)
            wanted -= taken
            del near[pool]
        if wanted:
            raise invalid("adjacent", domain, f"another label than {domain} too")
    for part in setting.parts:
        relabel(part.pool, part.label, own[part.pool])
    return {label: Text(own[label], tuple(others[label])) for label in setting.domains}


def limited(setting: Setting, texts: dict[str, Text]) -> Setting:
    """Returns the setting in which a domain has only the sequences that carry its label."""
    own = {d: text.own for d, text in texts.items() if text.own < setting.num_sequences[d]}
    return replace(setting, available={**setting.available, **own})


def with_true_labels(setting: Setting) -> Setting:
    """Returns the setting in which every sequence carries its true label."""
    parts = tuple(replace(part, label=part.domain) for part in setting.parts)
    return replace(setting.with_options(recall=1.0, precision=1.0), parts=parts)


def label_budget(
    setting: Setting, label: str, num_sequences: int, num_draws: int, others: tuple[Slice, ...]
) -> DomainBudget:
    """Budgets `num_sequences` that carry a label: `others`, and the first of its domain.

    Sequences repeat if the domain has fewer.
    """
    pooled = sum(part.num_sequences for part in others)
    own = setting.pool(label, max(1, num_sequences - pooled))
    slices = (Slice(label, 0, own), *others) if others else ()
    return DomainBudget(label, own + pooled, num_draws, slices)
