"""Writes a storage of many short runs over five domains, in the states that a study leaves.

Trains nothing: each loss encodes its run, domain and step.
"""

from collections.abc import Mapping, Sequence

import torch

from gram_platform.config import (
    DataConfig,
    DomainBudget,
    EvalPoints,
    Evaluation,
    ModelConfig,
    ModuleSpec,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
    View,
)
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.store import Store
from gram_platform.store.checkpoints import VALIDATION

DOMAINS = ("core", "cyber", "lisp", "nuclear", "virology")
WEIGHTS = {"weights": torch.arange(6, dtype=torch.float32)}


def run_config(seed: int, num_points: int) -> RunConfig:
    """Plans `num_points` steps, each with a validation loss of every domain."""
    modules = tuple(ModuleSpec(domain, "mlp", 4) for domain in DOMAINS[1:])
    model = ModelConfig(1, 16, 2, 1, 64, 50, 8, modules=modules)
    data = DataConfig("d" * 12, tuple(DomainBudget(domain, 99, num_points) for domain in DOMAINS))
    points = EvalPoints(num_points, 2, DOMAINS)
    return RunConfig(
        model, data, RoutingConfig(), OptimizerConfig(1e-3, 0.1, 0.1), 5, 1, points, seed
    )


def write_study(root: str, num_runs: int, num_points: int) -> tuple[list[str], list[str]]:
    """Writes runs and evaluations; returns their ids.

    Of ten runs, seven are complete with two evaluations each, two stop half-way and one fails
    there.
    """
    store = Store(root).open_for_writing(min_free_bytes=0)
    run_ids, eval_ids = [], []
    for seed in range(num_runs):
        run = run_config(seed, num_points)
        run_ids.append(run.run_id)
        if seed % 10 < 7:
            write_run(store, run, ends="complete")
            eval_ids += [_write_evaluation(store, run, profile) for profile in ("core", "all")]
        else:
            write_run(store, run, ends="failed" if seed % 10 == 9 else "interrupted")
    return run_ids, eval_ids


def write_run(store: Store, run: RunConfig, ends: str) -> None:
    """Writes a run with a checkpoint half-way; `ends`: complete, or failed or interrupted there."""
    directory = store.run(run.run_id)
    directory.ensure_config(run)
    directory.add_tags(_tags(run, "all"))
    records, middle = _records(run), run.num_steps // 2
    if ends == "failed":
        records[middle - 1]["metrics"] |= {
            "train/loss": float("nan"),
            f"{VALIDATION}core": float("nan"),
        }
    with directory.start_attempt("benchmark") as attempt:
        attempt.commit(middle, WEIGHTS, {"position": middle}, records[:middle])
        if ends == "failed":
            attempt.fail("loss is not finite")
        elif ends == "complete":
            attempt.complete(_final_fields(run, records), WEIGHTS, records[middle:])


def _write_evaluation(store: Store, run: RunConfig, profile: str) -> str:
    weights = dict.fromkeys(DOMAINS[1:], 1.0) if profile == "all" else {}
    evaluation = Evaluation(View.of(run.run_id, weights), "d" * 12, DOMAINS, 4)
    directory = store.evaluation(evaluation.eval_id)
    directory.ensure_config(evaluation)
    directory.add_tags(_tags(run, profile))
    losses = {domain: _loss(run.seed, i, run.num_steps) for i, domain in enumerate(DOMAINS)}
    directory.complete({"losses": losses}, {"elapsed_s": 0.25})
    return evaluation.eval_id


def _tags(run: RunConfig, profile: str) -> dict[str, str]:
    retained = ",".join(DOMAINS[1:]) if profile == "all" else ""
    return {
        "method": "gram",
        "size": "tiny",
        "seed": str(run.seed),
        "profile": profile,
        "retained": retained,
    }


def _records(run: RunConfig) -> list[dict]:
    """Makes one record per step."""
    records = []
    for step in range(1, run.num_steps + 1):
        metrics = {
            f"{VALIDATION}{domain}": _loss(run.seed, i, step) for i, domain in enumerate(DOMAINS)
        }
        metrics["train/loss"] = _loss(run.seed, len(DOMAINS), step)
        records.append({"step": step, "time": 1.5e9 + 1000.0 * run.seed + step, "metrics": metrics})
    return records


def _loss(seed: int, which: int, step: int) -> float:
    return 2.0 + which / 7 + seed / 1013 + 1.0 / step


def _final_fields(run: RunConfig, records: Sequence[Mapping]) -> dict:
    sizes = {"num_steps": run.num_steps, "num_tokens": run.num_tokens, "parameters": 1234}
    costs = {"compute_units": plan_compute_units(run), "hardware_flops": 7.25e12}
    return {
        "data_fingerprint": "f" * 64,
        "plan_sha256": "a" * 64,
        "final": records[-1]["metrics"],
        **sizes,
        **costs,
    }
