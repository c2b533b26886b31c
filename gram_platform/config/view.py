"""Defines views (runs with some of their modules active) and evaluations of views."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from gram_platform.config.identity import (
    add_field,
    invalid,
    require_choice,
    require_each_once,
    require_fields,
    require_int,
    require_name,
    require_real,
    short_hash,
)
from gram_platform.config.plain import from_plain
from gram_platform.config.training import CORE, ModelConfig, ModuleSpec, core_first

# Pairs such as a domain and a text.
Texts = tuple[tuple[str, str], ...]
# Part of every eval_id. Increase it when an equal evaluation would give a different result.
EVAL_VERSION = 1
VIEW_RULES = ("constant", "by_domain")
PRECISIONS = ("float32", "bfloat16")
# The prefix of an imported model's id, which stands for a run_id.
IMPORTED = "imported-"


@dataclass(frozen=True)
class View:
    """A run and its active modules, which may come from other runs."""

    run_id: str
    # (domain, weight), sorted, zeros dropped.
    weights: tuple[tuple[str, float], ...] = ()
    # (domain, run_id) for modules of other runs.
    sources: Texts = ()
    # With by_domain (DEMix) a domain uses its expert if that has a weight, otherwise the core's.
    rule: str = "constant"

    def __post_init__(self) -> None:
        for domain, weight in self.weights:
            require_name("view.weights", domain)
            require_real(f"view.weights[{domain}]", weight, 0.0, 1.0)
        object.__setattr__(
            self, "weights", tuple(sorted((d, float(w)) for d, w in self.weights if w))
        )
        object.__setattr__(self, "sources", tuple(sorted(self.sources)))
        for field, pairs in (("weights", self.weights), ("sources", self.sources)):
            if len(dict(pairs)) < len(pairs):
                raise invalid(f"view.{field}", pairs, "each domain once")
        require_choice("view.rule", self.rule, VIEW_RULES)
        if stray := sorted(dict(self.sources).keys() - dict(self.weights).keys()):
            raise invalid("view.sources", stray, "domains that have a weight in the view")

    @classmethod
    def of(cls, run_id: str, weights: Mapping[str, float] | None = None, **parts) -> "View":
        return cls(run_id, tuple((weights or {}).items()), **parts)

    def active(self, domain: str) -> dict[str, float]:
        weights = dict(self.weights)
        if self.rule == "constant":
            return weights
        return {domain: weights[domain]} if domain in weights else {CORE: 1.0}

    @property
    def origins(self) -> dict[str, str]:
        """The id of the run or imported model that provides each domain's module."""
        domains = [domain for domain, _ in self.weights] + [CORE] * (self.rule == "by_domain")
        return dict.fromkeys(domains, self.run_id) | dict(self.sources)

    def model(self, model_of: Callable[[str], ModelConfig]) -> ModelConfig:
        """Returns the model's config with only the view's modules.

        `model_of(id)` returns a run's or import's config. Raises ValueError for a missing module.
        """
        specs = (_find_module(model_of(run_id), run_id, d) for d, run_id in self.origins.items())
        return replace(model_of(self.run_id), modules=tuple(specs))

    @property
    def run_ids(self) -> frozenset[str]:
        """The ids of the runs whose weights the view uses, excluding imported models."""
        origins = {self.run_id, *self.origins.values()}
        return frozenset(origin for origin in origins if not origin.startswith(IMPORTED))

    @property
    def view_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, "view": self})


def _find_module(source: ModelConfig, run_id: str, domain: str) -> ModuleSpec:
    for module in source.modules:
        if module.domain == domain:
            return module
    allowed = f"a module of run {run_id}: {', '.join(source.module_domains)}"
    raise invalid("view.weights", domain, allowed)


class _Identified:
    _kind: ClassVar[str]

    @cached_property
    def eval_id(self) -> str:
        return short_hash({"eval_version": EVAL_VERSION, self._kind: self})


@dataclass(frozen=True)
class Evaluation(_Identified):
    """Measures a view's mean loss on fixed sequences of each domain."""

    _kind = "evaluation"
    # The kind of evaluation (see `engine.evaluation`), which is not part of the JSON.
    measure: ClassVar[str] = "losses"
    view: View
    data_id: str
    domains: tuple[str, ...]
    num_sequences: int
    split: str = "validation"
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", core_first(self.domains))
        require_int("evaluation.num_sequences", self.num_sequences, 1)
        require_choice("evaluation.split", self.split, ("validation", "train"))
        require_choice("evaluation.precision", self.precision, PRECISIONS)


LOSSES = Evaluation.measure


@dataclass(frozen=True)
class TokenLosses(_Identified):
    """Measures a view's loss on every token of each domain's first validation sequences."""

    _kind = "token_losses"
    view: View
    data_id: str
    domains: tuple[str, ...]
    num_sequences: int
    precision: str = "bfloat16"
    measure: Literal["tokens"] = "tokens"
    # (domain, text) pairs to measure in addition to the sequences.
    texts: tuple[tuple[str, str], ...] = add_field(())

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", core_first(self.domains))
        require_int("token_losses.num_sequences", self.num_sequences, 1)
        require_choice("token_losses.precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class Continuations(_Identified):
    """Samples continuations from a view. The prompts are beginnings of validation documents.

    `documents` are indices, from 0, into a domain's validation documents that are longer than the
    prompt. With equal seeds, all views use the same random numbers for a document.
    """

    _kind = "continuations"
    view: View
    data_id: str
    domains: tuple[str, ...]
    documents: tuple[int, ...]
    num_prompt_tokens: int
    # The most tokens of a continuation. It ends earlier if the view ends the document.
    num_tokens: int
    temperature: float = 1.0
    seed: int = 0
    precision: str = "bfloat16"
    measure: Literal["samples"] = "samples"
    # (domain, prompt) pairs that replace the documents' beginnings.
    texts: tuple[tuple[str, str], ...] = add_field(())

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", core_first(self.domains))
        object.__setattr__(self, "documents", tuple(sorted(self.documents)))
        for document in self.documents:
            require_int("continuations.documents", document, 0)
        require_each_once("continuations.documents", self.documents)
        require_fields("continuations", self, 1, "num_prompt_tokens", "num_tokens")
        require_real("continuations.temperature", self.temperature, 0.0, open_low=True)
        require_int("continuations.seed", self.seed, 0, 2**63 - 1)
        require_choice("continuations.precision", self.precision, PRECISIONS)

    @property
    def num_sequences(self) -> int:
        """The number of prompts.

        Cost estimates count each continuation as a forward pass over a whole sequence, which is
        an upper bound.
        """
        return len(self.texts or self.documents)


@dataclass(frozen=True)
class TaskScores(_Identified):
    """Scores a view on tasks of the LM Evaluation Harness, such as WMDP or MMLU."""

    _kind = "task_scores"
    view: View
    # The corpus of the view's run, whose tokenizer reads the tasks.
    data_id: str
    tasks: tuple[str, ...]
    harness: str
    # Hash of the folder that defines the user's own tasks, or "".
    files_sha256: str = ""
    # Examples before each question, or -1 for the task's own number.
    num_fewshot: int = -1
    # Only the first documents of each task are scored, or all for 0.
    limit: int = 0
    precision: str = "float32"
    measure: Literal["tasks"] = "tasks"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(sorted(self.tasks)))
        require_each_once("task_scores.tasks", self.tasks)
        require_int("task_scores.num_fewshot", self.num_fewshot, -1)
        require_int("task_scores.limit", self.limit, 0)
        require_choice("task_scores.precision", self.precision, PRECISIONS)


AnyEvaluation = Evaluation | TokenLosses | Continuations


def evaluation_from_plain(plain: Mapping) -> AnyEvaluation | TaskScores:
    """Builds an evaluation of any kind from JSON. Raises ValueError for an unknown measure."""
    kinds = {kind.measure: kind for kind in (Evaluation, TokenLosses, Continuations, TaskScores)}
    measure = plain.get("measure", LOSSES)
    require_choice("evaluation.measure", measure, tuple(kinds))
    return from_plain(kinds[measure], plain)
