"""Profiles training steps: what a pass launches, the share of the time in which the GPU works, and on what it works.

Needs only torch and numpy. On a CPU it counts operations in place of kernels, and has no share of a GPU.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import single_gpu_workload
from benchmarks.results import BenchmarkResult
from benchmarks.timing import clock_of
from benchmarks.workloads import DENSE, GRAM, Workload, compared_runs, loop_arguments
from gram_platform.train.loop import training_steps

NUM_WARM, NUM_TIMED = 3, 3  # steps before, and steps that are timed without the profiler
NUM_SHOWN = 12  # kernels, by their time
NAME_LENGTH = 60  # of a kernel, in the row
MICROSECOND = 1e-6


def measure(device: str, names: Sequence[str], compiled: bool) -> Iterator[BenchmarkResult]:
    """Profiles the dense model and the one with a module at every size."""
    for name in names:
        for kind in (DENSE, GRAM):
            yield of_run(single_gpu_workload(name, device, 1, compiled), kind)


def of_run(workload: Workload, kind: str) -> BenchmarkResult:
    """Returns the number of kernels in a pass; `details` has the step's milliseconds, shares and kernels by time."""
    steps, clock = training_steps(*loop_arguments(compared_runs(workload)[kind], workload)), clock_of(workload.device)
    is_cpu = torch.device(workload.device).type == "cpu"
    list(itertools.islice(steps, NUM_WARM))
    started = clock()
    list(itertools.islice(steps, NUM_TIMED))
    step_s = (clock() - started) / NUM_TIMED
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (not is_cpu)) as profiler:
        next(steps)
        clock()
    spent_s, number = _operations(profiler.events()) if is_cpu else _kernels(profiler.events())
    busy_s = sum(spent_s.values())
    shares = {name: spent / busy_s for name, spent in spent_s.most_common(NUM_SHOWN)}
    details = {"step, ms": 1000 * step_s, "compiled": workload.compiled, "shares of the work": shares}
    if not is_cpu:
        details["GPU busy"] = busy_s / step_s
    unit = f"{'operations' if is_cpu else 'kernels'} a pass"
    busy = "" if is_cpu else f"GPU busy {busy_s / step_s:.0%}; "
    most = ", ".join(f"{name[:NAME_LENGTH]} {share:.0%}" for name, share in itertools.islice(shares.items(), 5))
    against = f"{1000 * step_s:.2f} ms a step of {workload.num_micro_batches} passes; {busy}{most}"
    form = "compiled" if workload.compiled else "eager"
    name = f"{workload.size.name}, {kind}, {form} on {workload.device}"
    return BenchmarkResult(name, unit, (number / workload.num_micro_batches,), (), against, details=details)


def _kernels(events: Iterable) -> tuple[Counter[str], int]:
    """Returns the seconds of every kernel on the GPU by name, and the number of kernels."""
    spent_s: Counter[str] = Counter()
    number = 0
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:  # which span kernels
            spent_s[event.name] += event.time_range.elapsed_us() * MICROSECOND
            number += 1
    return spent_s, number


def _operations(events: Iterable) -> tuple[Counter[str], int]:
    """Returns the seconds of every operation on the CPU by name, and the number of those that call no other."""
    spent_s: Counter[str] = Counter()
    number = 0
    for event in events:
        if event.name.startswith("aten::"):
            spent_s[event.name] += event.self_cpu_time_total * MICROSECOND
            number += not any(child.name.startswith("aten::") for child in event.cpu_children)
    return spent_s, number
