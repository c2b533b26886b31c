"""Measures speed against the alternatives, in the same run.

    # 2 CPU cores, 4 to 5 minutes
    python experiments/bench.py
    # the same at full length
    python experiments/bench.py --full
    python experiments/bench.py --only training frame
    python experiments/bench.py --only frame --tracking-uri postgresql+psycopg://user@host/empty_database
    # training and sharing on one GPU; torch and numpy suffice
    python experiments/bench.py --gpu
    python experiments/bench.py --gpu --device cpu --sizes tiny --rounds 1 --eager
    # is this GPU fit? about two minutes; exit code 1 if a row misses
    python experiments/bench.py --gpu --check
    # two GPUs against one: losses and checkpoints
    python experiments/bench.py --gpu --check --ranks 2 --sizes 100M

docs/first-gpu.md has these in their order, with what each must show.

On a CPU that emulates products in bfloat16 (no AVX512-BF16, no AMX) the 26M model is measured in
float32.

Prints JSON objects, one a line (name, value, unit, reference, ratio, spread of the ratio over
rounds, aim, and whether it holds), and a table. The numbers to expect, with machine and date, are
in benchmarks/HISTORY.md.
"""

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

# benchmarks/ lies beside experiments/, in no package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import gpu, gpu_check, gpu_ranks
from benchmarks.gpu import DEFAULT_SIZES, SIZES
from benchmarks.results import BenchmarkResult, BenchmarkSettings, table
from gram_platform.config.identity import require_int
from gram_platform.engine.machine import num_cpus

# Modules of benchmarks.
BENCHMARKS = (
    "training",
    "host",
    "corpus",
    "frame",
    # From here on Ray's processes run beside the measured work.
    "driver",
    "study_overhead",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--full", action="store_true", help="the long form")
    parser.add_argument(
        "--tracking-uri", default="", help="an empty database for `frame`; by default SQLite"
    )
    parser.add_argument("--gpu", action="store_true", help="run the GPU form instead")
    parser.add_argument(
        "--device", default="cuda", choices=("cpu", "cuda"), help="for the GPU form"
    )
    parser.add_argument(
        "--sizes", nargs="+", choices=tuple(SIZES), default=DEFAULT_SIZES, help="for the GPU form"
    )
    parser.add_argument("--rounds", type=int, default=5, help="for the GPU form")
    parser.add_argument("--eager", action="store_true", help="the GPU form without torch.compile")
    parser.add_argument(
        "--check", action="store_true", help="with --gpu: check the GPU instead of measuring peers"
    )
    parser.add_argument(
        "--ranks", type=int, help="with --check: check so many FSDP2 ranks, a GPU each"
    )
    flags = parser.parse_args()
    if flags.check and not flags.gpu:
        parser.error("--check needs --gpu")
    if flags.ranks is not None and not flags.check:
        parser.error("--ranks needs --check")
    if flags.gpu and flags.device == "cuda" and not torch.cuda.is_available():
        print(
            "no GPU: torch finds no CUDA device here; --device cpu runs the same code",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        require_int("rounds", flags.rounds, 1)
        rows = on_gpu(flags) if flags.gpu else on_cpu(flags)
    except ValueError as error:
        parser.error(str(error))
    measured: list[BenchmarkResult] = []
    for measurement in rows:
        print(measurement.line(), flush=True)
        measured.append(measurement)
    print(f"\n{table(measured)}")
    if flags.check and any(measurement.holds is False for measurement in measured):
        sys.exit(1)


def on_gpu(flags: argparse.Namespace) -> Iterator[BenchmarkResult]:
    if flags.ranks is not None:
        return gpu_ranks.check(flags.device, flags.sizes, flags.ranks)
    if flags.check:
        return gpu_check.check(flags.device, flags.sizes)
    return gpu.measure(flags.device, flags.sizes, flags.rounds, compiled=not flags.eager)


def on_cpu(flags: argparse.Namespace) -> Iterator[BenchmarkResult]:
    """Runs every benchmark in a new, empty storage."""
    for name in flags.only:
        # Each needs other libraries.
        benchmark = importlib.import_module(f"benchmarks.{name}")
        torch.set_num_threads(num_cpus())
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="gram-bench-") as storage:
            yield from benchmark.measure(BenchmarkSettings(storage, flags.full, flags.tracking_uri))
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
