"""How fast is it, against what one would use instead, in the same run?

    python experiments/bench.py                 # 2 CPU cores, about 1 minute

Prints a JSON object a line (name, value, unit, reference, ratio) and a table. Expect on two cores: a search adds 0.1
s to a trial. The history of the numbers, with machine and date, is in FINDINGS.md.
"""

import argparse
import dataclasses
import tempfile

from gram_platform.benchmarks import search_overhead
from gram_platform.benchmarks.measurement import table
from gram_platform.study.scaling import SMOKE

TINY = dataclasses.replace(SMOKE, sizes={"tiny": SMOKE.sizes["tiny"]})
BENCHMARKS = {"search_trial_overhead": lambda storage: search_overhead.measure(TINY, storage)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(BENCHMARKS), default=tuple(BENCHMARKS))
    measurements = []
    for name in parser.parse_args().only:
        with tempfile.TemporaryDirectory(prefix="gram-bench-") as storage:
            measurements.append(BENCHMARKS[name](storage))
        print(measurements[-1].line(), flush=True)
    print(f"\n{table(measurements)}")


if __name__ == "__main__":
    main()
