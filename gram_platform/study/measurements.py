"""What a study measures of every view: the losses of domains, those of tokens, or how it continues a text.

A measurement turns a method in a setting into nodes. All share the methods' runs, hence their ids.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from gram_platform.analysis.elicited import ELICITED
from gram_platform.analysis.ratios import ALL, BASELINE
from gram_platform.config import CORE, LOSSES, SAMPLES, TOKENS, AnyEvaluation, Continuations, TokenLosses
from gram_platform.methods import Setting
from gram_platform.nodes import Node, method_nodes


@dataclass(frozen=True)
class Measurement:
    """Losses of domains, and the attacks on every view: what compute ratios need."""

    name = LOSSES

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        return method_nodes(method, setting)


@dataclass(frozen=True)
class TokenIncreases(Measurement):
    """The losses of every token of the auxiliary domains' validation sequences."""

    name = TOKENS

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        def asked(node: Node) -> TokenLosses:
            num_sequences, precision = setting.num_eval_sequences, setting.size.precision
            return TokenLosses(node.config.view, setting.data_id, setting.auxiliary, num_sequences, precision)

        return _measured(method_nodes(method, setting), self.name, asked)


@dataclass(frozen=True)
class Samples(Measurement):
    """Continuations of documents of each auxiliary domain, by the views that keep it alone and by those without it."""

    num_prompt_tokens: int
    num_tokens: int
    documents: tuple[int, ...] = (0, 1)
    temperature: float = 1.0
    seed: int = 0

    name = SAMPLES

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        def asked(node: Node) -> Continuations:
            sizes = (self.documents, self.num_prompt_tokens, self.num_tokens, self.temperature, self.seed)
            domains = continued_domains(dict(node.tags), setting.auxiliary)
            return Continuations(node.config.view, setting.data_id, domains, *sizes, setting.size.precision)

        return _measured(
            [n for n in method_nodes(method, setting) if n.kind == "run" or is_continued(dict(n.tags))],
            self.name,
            asked,
        )


LOSSES_OF_DOMAINS = Measurement()


def is_continued(tags: dict[str, str]) -> bool:
    """Whether a view is among the samples: the baseline, core alone, and core with one domain."""
    return tags["profile"] == CORE or tags["profile"].count("+") == 1 or _is_baseline(tags)


def continued_domains(tags: dict[str, str], auxiliary: tuple[str, ...]) -> tuple[str, ...]:
    """The domains whose documents a view continues: the one that it keeps, or all."""
    return auxiliary if tags["profile"] == CORE or _is_baseline(tags) else (tags["retained"],)


def _is_baseline(tags: dict[str, str]) -> bool:
    return (tags["method"], tags["profile"]) == (BASELINE, ALL)


def _measured(nodes: list[Node], measure: str, asked: Callable[[Node], AnyEvaluation]) -> list[Node]:
    """The runs but the attacks, and in place of each evaluation what is asked of its view."""
    trained = [node for node in nodes if node.kind == "run" and ELICITED not in dict(node.tags)]
    views = [node for node in nodes if node.kind == "evaluation"]
    return [*trained, *(dataclasses.replace(node, config=asked(node)).tagged(measure=measure) for node in views)]
