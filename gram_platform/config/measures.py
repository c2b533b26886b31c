"""Configures two measurements of a view beside its mean losses: the loss of each token, and continuations of texts.

Like `Evaluation`, both have an `eval_id` and are stored as evaluations. `measure` names the kind of a config; the JSON
of an `Evaluation` lacks it, because `Evaluation` came first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gram_platform.config.domains import core_first
from gram_platform.config.identity import invalid, require_choice, require_int, require_real, short_hash
from gram_platform.config.run import view_from_plain
from gram_platform.config.view import EVAL_VERSION, PRECISIONS, Evaluation, View

LOSSES, TOKENS, SAMPLES = Evaluation.measure, "tokens", "samples"


@dataclass(frozen=True)
class TokenLosses:
    """A view's loss on every token of the first `num_sequences` validation sequences of each domain."""

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
    """Continuations of the beginnings of validation documents, sampled from a view token by token.

    `documents` are indices, from 0, into those documents of a domain's validation split that are longer than the
    prompt. With equal seeds every view gets the same random numbers for a document, so only its weights matter.
    """

    view: View
    data_id: str
    domains: tuple[str, ...]
    documents: tuple[int, ...]
    num_prompt_tokens: int
    num_tokens: int  # sampled at most: the document may end earlier
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
        """Documents of each domain; a continuation costs at most the forward pass of one sequence."""
        return len(self.documents)

    @cached_property
    def eval_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, "continuations": self})


AnyEvaluation = Evaluation | TokenLosses | Continuations


def evaluation_from_plain(plain: Mapping) -> AnyEvaluation:
    """Reads an evaluation of any kind from its JSON and validates it; ValueError for an unknown measure."""
    kinds = {LOSSES: Evaluation, TOKENS: TokenLosses, SAMPLES: Continuations}
    measure = plain.get("measure", LOSSES)
    require_choice("evaluation.measure", measure, tuple(kinds))
    lists = {name: tuple(plain[name]) for name in ("domains", "documents") if name in plain}
    return kinds[measure](**{**plain, **lists, "view": view_from_plain(plain["view"])})
