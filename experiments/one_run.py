"""The whole idea on one screen: text, routes, training, views, the compute ratio, the claim.

One process, without Ray, storage and MLflow. Every function is the platform's own, called in the
order in which the study `scaling` calls it, and every id is that of the study's first size and
seed. The study adds sizes, seeds, filtered models, attacks, intervals, and all that survives the
end of a process.

    # the smallest size of the demo: a CPU core, one to two minutes
    python experiments/one_run.py
    # ten seconds, too little text for modules to learn anything
    python experiments/one_run.py smoke

Expect (demo): its module raises the capability's compute ratio from .37 to .66, and no other ratio
by more than .02. The last line says 0.30. That is one seed, without an interval: FINDINGS.md has
the study's.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

import torch
import tyro
from tyro.conf import Positional

from gram_platform.analysis.compute_ratio import compute_ratio, fit_learning_curve
from gram_platform.config import CORE, RunConfig
from gram_platform.config.routing import Schedule
from gram_platform.corpora import PackedCorpus, Packing, prepare, resolve
from gram_platform.engine.node import evaluation_steps, schedule_reader
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.studies.library.scaling import STUDY
from gram_platform.train.evaluate import domain_losses, validation_losses
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps


def main(name: Positional[Literal["demo", "smoke"]] = "demo") -> None:
    """Trains a baseline and a GRAM run of a preset's first size, and measures the GRAM run's views
    by the baseline."""
    preset = STUDY.presets[name]
    # As in a study: more do not make such a small model faster.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        # Labelled text becomes packed sequences of tokens. One label is core, every other one a
        # capability.
        packing = Packing(
            seq_len=preset.seq_len,
            vocab_size=preset.vocab_size,
            validation_sequences=preset.most_eval_sequences,
            sample_bytes=preset.sample_bytes,
        )
        recipe = resolve(preset.corpus, packing, Path(folder))
        corpus = prepare(recipe, folder)
        print(f"data {recipe.data_id}: {', '.join(recipe.domains)}")

        # A method turns a setting into runs to train and views to evaluate. An id is the hash of a
        # config.
        first_size = next(iter(preset.sizes.values()))
        kept = next(domain for domain in recipe.domains if domain != CORE)
        setting = preset.setting(
            first_size, preset.first_seed, recipe.data_id, recipe.domains, ((kept,),)
        )
        baseline, whole = (node for node in method_nodes("baseline", setting) if not node.is_attack)
        modular, *views = (node for node in method_nodes("gram", setting) if not node.is_attack)

        # The baseline's losses while it trains are its learning curves, the unit of all that
        # follows.
        learner, points = train(baseline, corpus)
        curves = {
            d: fit_learning_curve(list(points), [losses[d] for losses in points.values()])
            for d in recipe.domains
        }
        finals = losses_of(whole, learner, corpus)

        # A module has learnt what the route sent to it. A view is a choice of modules.
        print_routes(modular.config)
        learner, _ = train(modular, corpus)
        # The kept capability's, by whether its module is on.
        ratio_with = {}
        for view in views:
            losses = losses_of(view, learner, corpus)
            ratios = {d: compute_ratio(curves[d], loss, (finals[d],)) for d, loss in losses.items()}
            print(
                "  compute ratios:"
                f" {', '.join(f'{domain} {ratio:.2f}' for domain, ratio in ratios.items())}"
            )
            ratio_with[view.config.view.weights] = ratios[kept]

    # The claim: the capability is there with its module, and gone without it.
    difference = ratio_with[(kept, 1.0),] - ratio_with[()]
    print(f"{kept} with its module minus without it: {difference:.2f}. The paper: above 0")


def train(node: Node, corpus: PackedCorpus) -> tuple[Learner, dict[int, dict[str, float]]]:
    """Trains a run to its end; returns it, and its validation losses (nats a token) by step and
    domain."""
    print(f"training {node.name}: run {node.id}")
    run, points = node.config, {}
    learner, validation = (
        Learner(run),
        {domain: corpus.validation(domain) for domain in run.eval_points.domains},
    )
    for record in training_steps(learner, Schedule(run), schedule_reader(run, corpus)):
        if record.step * 10 // run.num_steps > (record.step - 1) * 10 // run.num_steps:
            print(
                f"  step {record.step} of {run.num_steps}: loss"
                f" {sum(record.losses) / len(record.losses):.3f}"
            )
        if record.step in evaluation_steps(run):
            points[record.step] = validation_losses(learner, validation)
    return learner, points


def losses_of(node: Node, learner: Learner, corpus: PackedCorpus) -> dict[str, float]:
    """Returns the loss of every domain (nats a token) under an evaluation's view of a trained
    run."""
    print(f"evaluating {node.name}: evaluation {node.id}")
    config, validation = (
        node.config,
        {domain: corpus.validation(domain) for domain in node.config.domains},
    )
    with learner.evaluating():
        return domain_losses(
            learner, validation, config.domains, config.num_sequences, config.view.active
        )


def print_routes(run: RunConfig) -> None:
    """Counts the routes of all micro-batches: the domain, the modules that are active, the
    parameters that train."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for batch in Schedule(run):
        active = ", ".join(dict(batch.route.active)) or CORE
        counts[batch.domain, active, ", ".join(sorted(batch.route.trained))] += 1
    for (domain, active, trained), count in sorted(counts.items()):
        print(f"  {count:5} micro-batches of {domain}: active {active}; trained {trained}")


if __name__ == "__main__":
    tyro.cli(main)
