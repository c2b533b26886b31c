"""Defines measurements, which determine the runs and evaluations that a method needs."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import ClassVar

from gram_platform.config import CORE, LOSSES, AnyEvaluation, Continuations, TokenLosses
from gram_platform.config.identity import require_choice
from gram_platform.config.view import Texts
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.methods.setting import Setting


@dataclass(frozen=True)
class Description:
    """Describes a study's question and how its results are compared."""

    name: str
    title: str
    # Plain text at the top of the report.
    question: str
    _: KW_ONLY
    # The paper's study whose tables and claims stand next to ours.
    compare_with: str = ""
    # The column of the variants, such as "accumulation".
    varies: str = ""
    # The variant whose baselines set the unit. By default each variant has its own.
    unit: str = ""

    @property
    def description(self) -> dict:
        return {field.name: getattr(self, field.name) for field in fields(Description)}


@dataclass(frozen=True)
class Losses:
    """Measures each view's loss on every domain, before and after attacks."""

    name: ClassVar[str] = LOSSES

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        return method_nodes(method, setting)


@dataclass(frozen=True)
class Calibration(Losses):
    """Compares each baseline's compute ratio with its true value.

    The true value is the baseline's number of steps / the reference's number of steps.
    """

    name: ClassVar[str] = "calibration"


def instead_of_losses(
    nodes: list[Node], measure: str, evaluation_of: Callable[[Node], AnyEvaluation]
) -> list[Node]:
    """Drops attacks, and replaces each view's evaluation with `evaluation_of(node)`."""
    return [node for node in nodes if node.is_run and not node.is_attack] + [
        replace(node, config=evaluation_of(node)).with_tags(measure=measure)
        for node in nodes
        if not node.is_run
    ]


@dataclass(frozen=True)
class TokenIncreases(Losses):
    """Measures, for each token, a view's loss minus the baseline's loss."""

    # Sentences to shade, in place of the first sequence of every domain.
    texts: Texts = ()

    name: ClassVar[str] = TokenLosses.measure

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        def token_losses(node: Node) -> TokenLosses:
            return TokenLosses(
                node.view,
                setting.data_id,
                setting.auxiliary,
                setting.num_eval_sequences,
                setting.size.precision,
                texts=self.texts,
            )

        _require_domains(self.texts, setting)
        return instead_of_losses(method_nodes(method, setting), self.name, token_losses)


@dataclass(frozen=True)
class Samples(Losses):
    """Samples continuations in each auxiliary domain, with the domain's module on and off.

    If `compared_only`, uses core and the domains of the compared profiles instead. If `texts` is
    set, uses only the domains of these texts.
    """

    num_prompt_tokens: int
    num_tokens: int
    documents: tuple[int, ...] = (0, 1)
    temperature: float = 1.0
    seed: int = 0
    compared_only: bool = False
    texts: Texts = ()

    name: ClassVar[str] = Continuations.measure

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        chosen = sorted({domain for profile in setting.profiles for domain in profile})
        domains = (CORE, *chosen) if self.compared_only else setting.auxiliary
        if self.texts:
            _require_domains(self.texts, setting)
            domains = tuple(sorted({domain for domain, _ in self.texts}))

        def continuations(node: Node) -> Continuations:
            own = choose_continued(node.names, domains)
            return Continuations(
                node.view,
                setting.data_id,
                own,
                self.documents,
                self.num_prompt_tokens,
                self.num_tokens,
                self.temperature,
                self.seed,
                setting.size.precision,
                texts=tuple(pair for pair in self.texts if pair[0] in own),
            )

        nodes = [
            node
            for node in method_nodes(method, setting)
            if node.is_run or choose_continued(node.names, domains)
        ]
        return instead_of_losses(nodes, self.name, continuations)


def _require_domains(texts: Texts, setting: Setting) -> None:
    for domain, _ in texts:
        require_choice("texts", domain, (CORE, *setting.auxiliary))


def choose_continued(names: dict[str, str], domains: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the `domains` whose prompts a view continues. `names` are the view's tags.

    - The baseline and the view of core alone continue all.
    - The view of core and one of `domains` continues core and this domain.
    - Other views continue none.
    """
    if names["profile"] == CORE or (names["method"], names["profile"]) == ("baseline", "all"):
        return domains
    retained = names["retained"]
    return tuple(d for d in domains if d in (CORE, retained)) if retained in domains else ()
