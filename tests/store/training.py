"""A run small enough to kill a hundred times, through the store's real code: the state of step s
follows from s - 1."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import torch

from gram_platform.config import (
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    ModuleSpec,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
)
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.store import Store

GROUP = 3000
START = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def run_config(num_steps: int = 8, seed: int = 0) -> RunConfig:
    """A valid config of `num_steps` steps of two sequences from two domains."""
    model = ModelConfig(1, 16, 2, 1, 64, 50, 8, modules=(ModuleSpec("virology", "mlp", 4),))
    data = DataConfig(
        "d" * 12, (DomainBudget("core", 99, num_steps), DomainBudget("virology", 99, num_steps))
    )
    points = EvalPoints(1, 2, ("core", "virology"))
    return RunConfig(
        model, data, RoutingConfig(), OptimizerConfig(1e-3, 0.1, 0.1), 2, 1, points, seed
    )


def record(step: int, first_time: float = 1.5e9) -> dict:
    metrics = {
        "train/loss": 1.0 / step,
        "validation/loss/core": 2.0 / step,
        "validation/loss/virology": 3.0 / step,
    }
    return {"step": step, "time": first_time + step, "metrics": metrics}


def weights_after(num_steps: int) -> torch.Tensor:
    """The weights after so many steps."""
    weights = START
    for step in range(1, num_steps + 1):
        weights = weights * 0.9 + step
    return weights


def train(
    root: str,
    run: RunConfig,
    commit_every: int = 2,
    last: int | None = None,
    step_s: Callable[[], float] = lambda: 0.0,
    lease_seconds: float = 30.0,
) -> dict | None:
    """Continue the run to its end, or with `last` commit that step and stop there; returns the
    result."""
    directory = Store(root).open_for_writing(min_free_bytes=0).run(run.run_id)
    directory.ensure_config(run)
    if directory.result() is not None:
        return directory.result()
    with directory.start_attempt("test", lease_seconds) as attempt:
        if directory.result() is not None:
            return directory.result()
        resumed = attempt.resume()
        weights, first = (
            (START, 1) if resumed is None else (resumed.pieces["weights"].rows, resumed.step + 1)
        )
        assert resumed is None or resumed.state == {"position": resumed.step}
        records = []
        for step in range(first, run.num_steps + 1):
            time.sleep(step_s())
            weights = weights * 0.9 + step
            records.append(record(step))
            attempt.heartbeat(step, run.num_steps, 100.0)
            if step == run.num_steps:
                return attempt.complete(final_fields(run), {"weights": weights}, records)
            if step % commit_every == 0 or step == last:
                attempt.commit(
                    step, {"weights": weights, "moments": weights * 2}, {"position": step}, records
                )
                records = []
            if step == last:
                return None
    raise AssertionError("unreachable")


def final_fields(run: RunConfig) -> dict:
    """The deterministic fields of a result, apart from those that the store adds."""
    last = record(run.num_steps)["metrics"]
    best = {
        name.replace("validation", "best"): 0.9 * loss
        for name, loss in last.items()
        if "validation" in name
    }
    sizes = {"num_steps": run.num_steps, "num_tokens": run.num_tokens, "parameters": 1234}
    costs = {"compute_units": plan_compute_units(run), "hardware_flops": 7.25e12}
    return {
        "data_fingerprint": "f" * 64,
        "plan_sha256": "a" * 64,
        "final": last | best,
        **sizes,
        **costs,
    }


def in_process(target, *args) -> multiprocessing.Process:
    """`target` started in a forked process of its own."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def require_success(target, *args) -> None:
    """Runs `target` in a process of its own, which must end well."""
    process = in_process(target, *args)
    process.join()
    assert process.exitcode == 0


def act_as(user: int, umask: int = 0o002) -> None:
    """Makes this process one of another user, if root runs it. It imports nothing afterwards: the
    interpreter may be closed to other users."""
    os.umask(umask)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(GROUP)
        os.setuid(user)


def train_until_killed(root: str, run: RunConfig, operation: int) -> None:
    """Train, and die by SIGKILL just before the given file-system operation (1: the first)."""
    count = 0

    def counting(function):
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    for name in ("replace", "link", "unlink", "fsync", "rmdir", "mkdir", "rename"):
        setattr(os, name, counting(getattr(os, name)))
    train(root, run)
