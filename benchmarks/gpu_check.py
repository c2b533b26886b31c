"""Checks one GPU in about two minutes: kernels, parity with the CPU, resuming, memory, speed, two
runs at once.

Needs only torch and numpy. A row with an aim that is missed is a fault; rows without an aim are
measurements. On a CPU it runs the same code, without the row on memory, which only a GPU's
allocator counts.
"""

import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks.gpu import (
    NUM_MICRO_BATCHES,
    SIZES,
    as_studies_merge,
    dense_flops_per_second,
    machine_name,
    sharing,
    single_gpu_workload,
    utilisation,
)
from benchmarks.results import Aim, BenchmarkResult
from benchmarks.workloads import (
    AUX,
    DENSE,
    GRAM,
    Workload,
    compared_runs,
    loop_arguments,
    random_tokens,
)
from gram_platform.config import ModelConfig, RunConfig
from gram_platform.config.flops import total_parameters
from gram_platform.config.ladder import DEMO_SIZES, PAPER_SIZES, SMOKE_SIZES, STORIES_SIZES, Size
from gram_platform.config.layout import MATH, model_kernel
from gram_platform.model.kernels import kernel_in_use
from gram_platform.planner.memory import rank_memory
from gram_platform.train.learner import DTYPES, Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import cross_entropy

NUM_ROUNDS = 3
# Half of these steps come before the interruption.
NUM_RESUMED = 4
# Bounds [ours]. float32 sums in another order; bfloat16 has 8 bits, and its rounding adds up over
# the layers.
GRADIENT_BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}
# A share of the largest weight; 0 on a CPU.
RESUME_BOUND = 1e-3
# A multiple of the planner's bytes: the allocator rounds up, and the kernels need working memory.
MEMORY_BOUND = 1.15
# Two runs at once must not be slower than one after the other.
SHARING_BOUND = 0.9


def check(device: str, names: Sequence[str]) -> Iterator[BenchmarkResult]:
    """Yields every row; the first of `names` is also the model of the comparisons."""
    yield from (_attention(size, device) for size in _ladder())
    small = _small(SIZES[names[0]])
    for precision in GRADIENT_BOUNDS:
        yield _parity(f"gradients {small.name}", _run(small), precision, device)
    if device != "cpu":
        wide = _wide_heads(_run(small))
        yield from (
            _parity("gradients, heads of 384", wide, precision, device)
            for precision in GRADIENT_BOUNDS
        )
    yield _resuming(_run(small), device)
    for name in names:
        workload = single_gpu_workload(name, device, NUM_ROUNDS, compiled=False)
        # On a CPU nothing is merged.
        if device != "cpu":
            workload = as_studies_merge(workload)
            yield _memory(workload)
        yield _speed(workload)
    small_runs = sharing(Workload(SMOKE_SIZES["small"], 1, NUM_ROUNDS, device), num_runs=2)
    yield replace(small_runs, aim=Aim("at least", SHARING_BOUND))


def _ladder() -> list[Size]:
    return [DEMO_SIZES["0.1M"], *STORIES_SIZES.values(), *PAPER_SIZES.values()]


def _attention(size: Size, device: str) -> BenchmarkResult:
    """Compares the kernel that torch chooses with the planner's; flash and cuDNN keep the same
    tensors."""
    model, dtype = size.dense(), DTYPES[size.precision]
    planned = model_kernel("cpu" if device == "cpu" else "cuda", dtype.itemsize, model)
    try:
        kernel = kernel_in_use(model, dtype, device)
    except ValueError:
        kernel = MATH
    is_right = kernel == planned or {kernel, planned} == {"flash", "cuDNN"}
    return BenchmarkResult(
        f"attention {size.name}: {kernel}",
        "as planned",
        (float(is_right),),
        (),
        planned,
        Aim("at least", 1.0, "value"),
    )


def _small(size: Size) -> Size:
    """Two sequences a micro-batch, so that the CPU's part is quick."""
    return replace(size, micro_batch=2, batch_size=2)


def _run(size: Size) -> RunConfig:
    return compared_runs(Workload(size, NUM_MICRO_BATCHES, 1))[GRAM]


def _wide_heads(run: RunConfig) -> RunConfig:
    """One layer with the heads of the 5B model, which no flash kernel takes."""
    wide = PAPER_SIZES["5B"]
    heads, shape = (wide.num_heads, wide.num_kv_heads), (run.model.vocab_size, run.model.seq_len)
    return replace(run, model=ModelConfig(1, wide.d_model, *heads, 1024, *shape, run.model.modules))


def _parity(name: str, run: RunConfig, precision: str, device: str) -> BenchmarkResult:
    """Compares loss and gradient of one micro-batch with the CPU's in float32, by the norm of the
    difference."""
    exact = _loss_and_gradient(replace(run, precision="float32"), "cpu")
    found = _loss_and_gradient(replace(run, precision=precision), device)
    difference = largest((f - e).norm() / e.norm() for f, e in zip(found, exact, strict=True))
    return BenchmarkResult(
        name=f"{name}, {precision} on {device}",
        unit="of the norm",
        values=(difference,),
        references=(),
        against="float32 on the CPU",
        aim=Aim("at most", GRADIENT_BOUNDS[precision], "value"),
    )


def largest(values: Iterable[torch.Tensor]) -> float:
    """Returns the largest of some numbers; NaN if one is, which Python's `max` may pass over."""
    return float(torch.stack(list(values)).max())


def _loss_and_gradient(run: RunConfig, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss, and the gradients of all weights as one vector, in float64 on the CPU."""
    learner = Learner(run, device)
    sets = frozenset(learner.master_sets)
    tokens_BT = torch.from_numpy(random_tokens(run)["core"][: run.micro_batch].astype(np.int64)).to(
        device
    )
    learner.train_only(sets)
    loss = cross_entropy(learner.forward(tokens_BT[:, :-1], {AUX: 1.0}), tokens_BT[:, 1:])
    learner.backward(loss, is_last=True)
    gradients = [
        p.grad.double().flatten().cpu() for p in learner.masters.values() if p.grad is not None
    ]
    return loss.detach().double().cpu(), torch.cat(gradients)


def _resuming(run: RunConfig, device: str) -> BenchmarkResult:
    """Compares the weights after an interruption with those after none: the largest difference over
    the largest."""
    half = NUM_RESUMED // 2
    whole = _trained(run, device, Learner(run, device), 0, NUM_RESUMED)
    first = _trained(run, device, Learner(run, device), 0, half)
    second = Learner(run, device)
    pieces = first.pieces()
    first.staging.wait()
    second.load_state(pieces)
    resumed = _trained(run, device, second, half, NUM_RESUMED).weights()
    pairs = [(weight, resumed[name]) for name, weight in whole.weights().items()]
    difference = largest((a - b).abs().max() for a, b in pairs) / largest(
        a.abs().max() for a, _ in pairs
    )
    return BenchmarkResult(
        name=f"resumed after step {half} of {NUM_RESUMED} on {device}",
        unit="of the largest weight",
        values=(difference,),
        references=(),
        against="the same run without an interruption",
        aim=Aim("at most", RESUME_BOUND if device != "cpu" else 0.0, "value"),
    )


def _trained(run: RunConfig, device: str, learner: Learner, first: int, stop: int) -> Learner:
    _, plan, reader = loop_arguments(run, Workload(SMOKE_SIZES["tiny"], 1, 1, device))
    for _ in itertools.islice(training_steps(learner, plan, reader, first), stop - first):
        pass
    return learner


def _memory(workload: Workload) -> BenchmarkResult:
    """Compares the GPU allocator's peak of two steps with the planner's."""
    run = compared_runs(workload)[DENSE]
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    list(itertools.islice(training_steps(*loop_arguments(run, workload)), 2))
    return BenchmarkResult(
        name=f"peak memory {workload.size.name}",
        unit="bytes",
        values=(float(torch.cuda.max_memory_allocated() - before),),
        references=(
            float(rank_memory(run, 1, device="cuda", num_merged=workload.num_merged).total),
        ),
        against="the planner",
        aim=Aim("at most", MEMORY_BOUND),
    )


def _speed(workload: Workload) -> BenchmarkResult:
    """Measures tokens per second and utilisation."""
    measured = utilisation(workload)
    rate = sorted(measured.details["tokens/s"])[NUM_ROUNDS // 2]
    row = table_row(workload, measured.value * 1e9)
    against = f"{measured.against}; {rate:,.0f} tokens/s; for the planner's table: {row}"
    return replace(measured, against=against)


def table_row(workload: Workload, flops_per_second: float) -> str:
    """Returns the line to add to the table of `planner/__init__.py`, with the share of the
    machine's dense rate."""
    machine, parameters = machine_name(workload.device), total_parameters(workload.size.dense())
    dense = dense_flops_per_second(machine)
    share = flops_per_second / dense if dense else float("nan")
    name, today = workload.size.name, datetime.date.today().isoformat()
    numbers = f'"{machine}", "{name}", {parameters}, {share:.3g}'
    return f'Utilisation({numbers}, "FINDINGS, Speed", "{today}")'
