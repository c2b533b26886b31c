"""How fast is it, against what one would use instead, in the same run?

    python experiments/bench.py                 # 2 CPU cores, about 2 minutes
    python experiments/bench.py --only frame --tracking-uri postgresql+psycopg://user@host/empty_database

Prints a JSON object a line (name, value, unit, reference, ratio) and a table. Expect on two cores: a search adds 0.1
s to a trial; a thousand runs and their curves are read in 4 s, three times as long as the one SQL query takes. The
history of the numbers, with machine and date, is in FINDINGS.md.
"""

import argparse
import dataclasses
import tempfile

from gram_platform.benchmarks import frame, search_overhead
from gram_platform.benchmarks.measurement import table
from gram_platform.study.scaling import SMOKE

TINY = dataclasses.replace(SMOKE, sizes={"tiny": SMOKE.sizes["tiny"]})
BENCHMARKS = {
    "search_trial_overhead": lambda storage, _: search_overhead.measure(TINY, storage),
    "frame": frame.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(BENCHMARKS), default=tuple(BENCHMARKS))
    parser.add_argument("--tracking-uri", default="", help="an empty database for `frame`; by default SQLite")
    flags, measurements = parser.parse_args(), []
    for name in flags.only:
        with tempfile.TemporaryDirectory(prefix="gram-bench-") as storage:
            measurements.append(BENCHMARKS[name](storage, flags.tracking_uri))
        print(measurements[-1].line(), flush=True)
    print(f"\n{table(measurements)}")


if __name__ == "__main__":
    main()
