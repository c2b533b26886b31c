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
from gram_platform.methods.nodes import Node, method_nodes


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
    """Continuations of documents of each auxiliary domain, by the views that keep it alone and by those without it;
    or of core and of the compared profiles' domains, by the same views.
    """

    num_prompt_tokens: int
    num_tokens: int
    documents: tuple[int, ...] = (0, 1)
    temperature: float = 1.0
    seed: int = 0
    compared_only: bool = False  # core's documents too, and no domains but those of the compared profiles

    name = SAMPLES

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        chosen = sorted({domain for profile in setting.profiles for domain in profile})
        domains = (CORE, *chosen) if self.compared_only else setting.auxiliary

        def asked(node: Node) -> Continuations:
            sizes = (self.documents, self.num_prompt_tokens, self.num_tokens, self.temperature, self.seed)
            own = continued_domains(dict(node.tags), domains)
            return Continuations(node.config.view, setting.data_id, own, *sizes, setting.size.precision)

        nodes = method_nodes(method, setting)
        return _measured(
            [n for n in nodes if n.kind == "run" or continued_domains(dict(n.tags), domains)], self.name, asked
        )


LOSSES_OF_DOMAINS = Measurement()


def continued_domains(tags: dict[str, str], domains: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the domains whose documents a view continues: all for the baseline and core alone, what it keeps for
    core and one domain; none for other views.
    """
    if tags["profile"] == CORE or (tags["method"], tags["profile"]) == (BASELINE, ALL):
        return domains
    kept = tags["retained"] if tags["profile"].count("+") == 1 else ""
    return tuple(d for d in domains if d in (CORE, kept)) if kept in domains else ()


def _measured(nodes: list[Node], measure: str, asked: Callable[[Node], AnyEvaluation]) -> list[Node]:
    """The runs but the attacks, and in place of each evaluation what is asked of its view."""
    trained = [node for node in nodes if node.kind == "run" and ELICITED not in dict(node.tags)]
    views = [node for node in nodes if node.kind == "evaluation"]
    return [*trained, *(dataclasses.replace(node, config=asked(node)).tagged(measure=measure) for node in views)]
