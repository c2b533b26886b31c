"""What else of a view is measured, beside its losses: the loss of every single token, and how it continues a text.

Siblings of `Evaluation`: nodes with an `eval_id`, stored in the same place. `measure` says which one a config is; an
`Evaluation`, which is older than its siblings, has none in its JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gram_platform.config.domains import core_first
from gram_platform.config.run import view_from_plain
from gram_platform.config.view import EVAL_VERSION, PRECISIONS, Evaluation, View
from gram_platform.identity import invalid, require_choice, require_int, require_real, short_hash

LOSSES, TOKENS, SAMPLES = Evaluation.measure, "tokens", "samples"


@dataclass(frozen=True)
class TokenLosses:
    """The loss of every token of the first validation sequences of each domain, under one view."""

    view: View
    data_id: str
    domains: tuple[str, ...]
    num_sequences: int
    precision: str = "bfloat16"
    measure: str = TOKENS

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", core_first(self.domains))
        require_int("token_losses.num_sequences", self.num_sequences, 1)
        require_choice("token_losses.precision", self.precision, PRECISIONS)
        require_choice("token_losses.measure", self.measure, (TOKENS,))

    @cached_property
    def eval_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, "token_losses": self})


@dataclass(frozen=True)
class Continuations:
    """How a view continues the beginnings of validation documents, drawn token by token.

    `documents` counts the documents of a domain's validation split that are longer than the prompt, from 0. Equal
    seeds draw the same random numbers for a document under every view, so that views differ by their weights alone.
    """

    view: View
    data_id: str
    domains: tuple[str, ...]
    documents: tuple[int, ...]
    num_prompt_tokens: int
    num_tokens: int  # drawn at most: a document may end before
    temperature: float = 1.0
    seed: int = 0
    precision: str = "bfloat16"
    measure: str = SAMPLES

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", core_first(self.domains))
        object.__setattr__(self, "documents", tuple(sorted(self.documents)))
        for document in self.documents:
            require_int("continuations.documents", document, 0)
        if not self.documents or len(set(self.documents)) < len(self.documents):
            raise invalid("continuations.documents", self.documents, "one or more documents, each once")
        require_int("continuations.num_prompt_tokens", self.num_prompt_tokens, 1)
        require_int("continuations.num_tokens", self.num_tokens, 1)
        require_real("continuations.temperature", self.temperature, 0.0, open_low=True)
        require_int("continuations.seed", self.seed, 0, 2**63 - 1)
        require_choice("continuations.precision", self.precision, PRECISIONS)
        require_choice("continuations.measure", self.measure, (SAMPLES,))

    @property
    def num_sequences(self) -> int:
        """Of each domain: what a continuation costs is at most a forward pass over one sequence."""
        return len(self.documents)

    @cached_property
    def eval_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, "continuations": self})


AnyEvaluation = Evaluation | TokenLosses | Continuations


def evaluation_from_plain(plain: Mapping) -> AnyEvaluation:
    """The inverse of `to_plain` for an evaluation of any kind, validated again; ValueError for an unknown measure."""
    kinds = {LOSSES: Evaluation, TOKENS: TokenLosses, SAMPLES: Continuations}
    measure = plain.get("measure", LOSSES)
    require_choice("evaluation.measure", measure, tuple(kinds))
    lists = {name: tuple(plain[name]) for name in ("domains", "documents") if name in plain}
    return kinds[measure](**{**plain, **lists, "view": view_from_plain(plain["view"])})
