"""Executes evaluations in this process, and schedules the evaluations during training.

A run is evaluated at the evaluation points in its config. A run without such points gets a few
progress evaluations. These are only displayed: no result, learning curve or table uses them.
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from gram_platform.config import (
    LOSSES,
    AnyEvaluation,
    Continuations,
    Evaluation,
    RunConfig,
    TokenLosses,
    View,
)
from gram_platform.config.flops import hardware_flops
from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import PackedCorpus, prompts_and_truths
from gram_platform.engine.execution import Execution
from gram_platform.engine.process import set_up_torch
from gram_platform.methods.budgets import run_flops
from gram_platform.methods.nodes import Node, tags_to_add
from gram_platform.model.transformer import Transformer
from gram_platform.store.directories import SOURCE_HASHES
from gram_platform.store.views import load_view
from gram_platform.train.evaluate import (
    profile_losses,
    sample_continuations,
    token_losses,
    uniforms,
)

# What a process executes at once: one node, or evaluations with equal `common_work`.
Task = tuple[Node, ...]
# The result's fields, and the tensors that are stored with it.
Measured = tuple[dict, dict[str, torch.Tensor]]


def execute_evaluation(
    evaluation: AnyEvaluation, tags: Mapping[str, str], execution: Execution
) -> dict:
    """Executes an evaluation unless it has a current result; returns the result.

    Raises ValueError if the run was trained on data other than the evaluation's.
    """
    return execute_profiles([evaluation], [tags], execution)[0]


def common_work(evaluation: AnyEvaluation) -> tuple | None:
    """Returns a key that is equal for evaluations that can be executed together.

    Evaluations with equal keys measure losses of the same run on the same sequences, but with
    different profiles. Returns None if the evaluation must be executed alone.
    """
    view = evaluation.view
    if evaluation.measure != LOSSES or view.rule != "constant" or view.sources:
        return None
    sample = (evaluation.domains, evaluation.num_sequences, evaluation.split, evaluation.precision)
    return view.run_id, evaluation.data_id, *sample


def execute_profiles(
    evaluations: Sequence[AnyEvaluation], tags: Sequence[Mapping[str, str]], execution: Execution
) -> list[dict]:
    """Executes evaluations with equal `common_work`, and loads the run's weights only once.

    The results are bit-identical to those of `execute_evaluation`. The time recorded for each
    evaluation is an equal part of the total time.
    """
    set_up_torch(execution)
    store, results, missing = execution.store(), {}, {}
    for evaluation, node_tags in zip(evaluations, tags, strict=True):
        directory = store.evaluation(evaluation.eval_id)
        directory.ensure_config(evaluation)
        directory.add_tags(tags_to_add(directory.tags(), node_tags))
        if (result := store.current_result(directory)) is None:
            missing[evaluation] = directory
        results[evaluation] = result
    if missing:
        started, first = time.monotonic(), evaluations[0]
        corpus = execution.corpus(first.data_id)
        trained_on = store.run(first.view.run_id).require_result()["data_fingerprint"]
        if trained_on != corpus.fingerprint:
            expected = f"the data that the view's run was trained on: {trained_on}"
            raise invalid("data", corpus.fingerprint, expected)
        view = next(iter(missing)).view
        if len(missing) > 1:
            domains = (domain for evaluation in missing for domain, _ in evaluation.view.weights)
            view = View.of(view.run_id, dict.fromkeys(domains, 1.0))
        sources = store.source_weights(view)
        _, model = load_view(store, view, first.precision)
        measured = MEASURES[first.measure](list(missing), corpus, model.to(execution.device))
        elapsed_s = (time.monotonic() - started) / len(missing)
        for (evaluation, directory), (fields, tensors) in zip(
            missing.items(), measured, strict=True
        ):
            view = evaluation.view
            fields |= {"run_id": view.run_id, "view_id": view.view_id}
            fields |= {"data_fingerprint": corpus.fingerprint, SOURCE_HASHES: sources}
            store.set_outdated_aside(directory)
            results[evaluation] = directory.complete(
                fields, {"elapsed_s": elapsed_s, "code": execution.code}, tensors
            )
    return list(results.values())


def _num_tokens(evaluation: Evaluation | TokenLosses, model: Transformer) -> dict[str, int]:
    return dict.fromkeys(evaluation.domains, evaluation.num_sequences * model.config.seq_len)


def _losses(
    evaluations: Sequence[Evaluation], corpus: PackedCorpus, model: Transformer
) -> list[Measured]:
    first, profiles = evaluations[0], [evaluation.view.active for evaluation in evaluations]
    arrays = {domain: corpus.sequences(first.split, domain) for domain in first.domains}
    losses = profile_losses(model, arrays, first.domains, first.num_sequences, profiles)
    num_tokens = _num_tokens(first, model)
    return [({"losses": by_domain, "num_tokens": num_tokens}, {}) for by_domain in losses]


def _token_losses(
    evaluations: Sequence[TokenLosses], corpus: PackedCorpus, model: Transformer
) -> list[Measured]:
    """Measures every token's loss; returns [(result, losses [num_sequences, seq_len] by domain)].

    The result's `losses` maps each domain to its mean loss. If the evaluation has texts of its own,
    `text_losses` lists the losses of each text's tokens. The model reads every such text after an
    end-of-text token.
    """
    (evaluation,) = evaluations
    arrays = {domain: corpus.validation(domain) for domain in evaluation.domains}
    losses = token_losses(
        model, arrays, evaluation.domains, evaluation.num_sequences, evaluation.view.active
    )
    means = {domain: float(tensor.double().mean()) for domain, tensor in losses.items()}
    fields = {"losses": means, "num_tokens": _num_tokens(evaluation, model)}
    if evaluation.texts:
        # Imported in functions, because losses need no tokenizer.
        from gram_platform.corpora.tokenizer import text_tokens

        fields["text_losses"], longest = [], model.config.seq_len
        for domain, tokens in text_tokens(corpus.tokenizer_path, evaluation.texts, longest):
            rows, active = {domain: np.array([tokens])}, evaluation.view.active
            text_losses = token_losses(model, rows, [domain], 1, active)[domain]
            fields["text_losses"].append(text_losses[0].tolist())
    return [(fields, losses)]


def _continuations(
    evaluations: Sequence[Continuations], corpus: PackedCorpus, model: Transformer
) -> list[Measured]:
    """Samples a continuation (a list of token ids) of each prompt of each domain.

    Prompts are the evaluation's texts or, if it has none, the beginnings of validation documents. A
    continuation ends at its first end-of-text token. The result's `surprisals` maps each domain to
    the mean of -log(probability) over the domain's sampled tokens, in nats.
    """
    from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer, text_tokens

    (evaluation,), end_of_text = evaluations, end_of_text_id(load_tokenizer(corpus.tokenizer_path))
    fields: dict[str, dict] = defaultdict(dict)
    for domain in evaluation.domains:
        lengths = (evaluation.num_prompt_tokens, evaluation.num_tokens)
        documents: Sequence[int] = evaluation.documents
        if evaluation.texts:
            longest = model.config.seq_len - evaluation.num_tokens
            texts = text_tokens(corpus.tokenizer_path, evaluation.texts, longest)
            pairs = [(tokens, []) for label, tokens in texts if label == domain]
            documents = range(len(pairs))
        else:
            pairs = prompts_and_truths(corpus.validation(domain), end_of_text, documents, *lengths)
        prompts = [prompt for prompt, _ in pairs]
        numbers = [uniforms(evaluation.num_tokens, evaluation.seed, domain, d) for d in documents]
        active, continuations = evaluation.view.active(domain), []
        # All prompts of a batch have the same length.
        batches = [[i] for i in documents] if evaluation.texts else [list(range(len(prompts)))]
        for batch in batches:
            samples = sample_continuations(
                model,
                torch.tensor([prompts[i] for i in batch]),
                torch.stack([numbers[i] for i in batch]),
                active,
                evaluation.temperature,
            )
            for tokens, surprisals in zip(*(t.tolist() for t in samples), strict=True):
                stop = tokens.index(end_of_text) + 1 if end_of_text in tokens else len(tokens)
                continuations.append((tokens[:stop], surprisals[:stop]))
        surprisals = [value for _, values in continuations for value in values]
        fields["prompts"][domain] = prompts
        fields["truths"][domain] = [truth for _, truth in pairs]
        fields["continuations"][domain] = [tokens for tokens, _ in continuations]
        fields["surprisals"][domain] = float(np.mean(surprisals))
        fields["num_tokens"][domain] = len(surprisals)
    return [(fields, {})]


MEASURES = {
    LOSSES: _losses,
    TokenLosses.measure: _token_losses,
    Continuations.measure: _continuations,
}


# The share of a run's training FLOPs for progress evaluations [ours]. This is at most 3% of its
# time, because a FLOP of a small model's forward pass takes up to 1.4 times as long as one of
# training (two cores).
PROGRESS_SHARE = 0.02
NUM_PROGRESS_POINTS = 6


class ProgressPlan(NamedTuple):
    """The steps of a run's progress evaluations, and the number of sequences used per domain."""

    steps: frozenset[int]
    num_sequences: int


def evaluation_steps(run: RunConfig) -> frozenset[int]:
    return _space_evenly(run.num_steps, run.eval_points.num_points)


def probe_steps(run: RunConfig) -> frozenset[int]:
    return _space_evenly(run.num_steps, run.eval_points.num_probes)


def progress_of(run: RunConfig, num_available: int) -> ProgressPlan:
    """Plans at most NUM_PROGRESS_POINTS progress evaluations of a run.

    Together they use at most PROGRESS_SHARE of the run's training FLOPs, so a short run gets fewer
    evaluations. A run with evaluation points in its config gets none. `num_available` is the
    number of validation sequences in the smallest domain.
    """
    points, modules = run.eval_points, run.model.module_domains
    most = min(points.num_sequences, num_available)
    if points.num_points or not points.domains or not most:
        return ProgressPlan(frozenset(), 0)
    of_each = len(points.domains) * hardware_flops(run.model, 1, modules, backward=False)
    affordable = int(PROGRESS_SHARE * run_flops(run) / of_each)
    num_points = min(NUM_PROGRESS_POINTS, run.num_steps, affordable)
    num_sequences = min(most, affordable // num_points) if num_points else 0
    return ProgressPlan(_space_evenly(run.num_steps, num_points), num_sequences)


def _space_evenly(num_steps: int, num_points: int) -> frozenset[int]:
    return frozenset(math.ceil(num_steps * k / num_points) for k in range(1, num_points + 1))
