"""How fast is it, against what one would use instead, in the same run?

    python experiments/bench.py                 # 2 CPU cores, under 5 minutes
    python experiments/bench.py --full          # the same at full length
    python experiments/bench.py --only training frame
    python experiments/bench.py --only frame --tracking-uri postgresql+psycopg://user@host/empty_database

Prints JSON objects, one a line (name, value, unit, reference, ratio, spread of the ratio over rounds, aim, and whether
it holds), and a table. The numbers to expect, with machine and date, are in FINDINGS.md.
"""

import argparse
import importlib
import os
import tempfile

import torch

from gram_platform.benchmarks.measurement import Measurement, Settings, table

BENCHMARKS = (  # modules of gram_platform.benchmarks
    "training",
    "evaluation",
    "study_overhead",
    "search_overhead",
    "corpus",
    "frame",
    "site",
    "two_ranks",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--full", action="store_true", help="the long form")
    parser.add_argument("--tracking-uri", default="", help="an empty database for `frame`; by default SQLite")
    flags = parser.parse_args()
    measured: list[Measurement] = []
    for name in flags.only:
        benchmark = importlib.import_module(f"gram_platform.benchmarks.{name}")  # each needs libraries of its own
        torch.set_num_threads(os.cpu_count() or 1)
        with tempfile.TemporaryDirectory(prefix="gram-bench-") as storage:
            for measurement in benchmark.measure(Settings(storage, flags.full, flags.tracking_uri)):
                print(measurement.line(), flush=True)
                measured.append(measurement)
    print(f"\n{table(measured)}")


if __name__ == "__main__":
    main()
