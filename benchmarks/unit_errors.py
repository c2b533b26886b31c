"""Prints the rows of `gram_platform/analysis/unit_errors.csv` from storages with a study
`calibration`.

    python -m benchmarks.unit_errors stories=STORAGE installed=STORAGE

Each storage, of experiments/calibration.py, is given under the name of its corpus.
"""

import sys

import pandas as pd

from gram_platform.analysis.tables import table_csv
from gram_platform.config.endings import exit_with
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.store import Store
from gram_platform.studies.record import CALIBRATION_STUDY, load_calibration


def main(arguments: list[str]) -> int:
    """Prints the CSV of the calibrations in NAME=STORAGE; ValueError for one without two rated
    shares."""
    parts = []
    for argument in arguments:
        corpus, _, place = argument.partition("=")
        parts.append(load_calibration(Store(place), corpus))
        if parts[-1].empty:
            expected = (
                f"NAME=STORAGE with two seeds of two shares of a finished study {CALIBRATION_STUDY}"
            )
            raise invalid("storage", argument, expected)
    say(table_csv(pd.concat(parts), "%.4f") if parts else __doc__)
    return 0


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
