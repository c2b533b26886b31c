"""Finds how far the unit of a study's compute ratios is off: measured in the study's storage, else for the package.

    python -m gram_platform.studies.unit_errors stories=STORAGE installed=STORAGE

prints the rows of `analysis/unit_errors.csv` from storages with a study `calibration`
(experiments/calibration.py), each under the name of its corpus.
"""

import sys

import pandas as pd

from gram_platform.analysis.ratios import BASELINE
from gram_platform.analysis.tables import table_csv
from gram_platform.analysis.unit_error import FILE_COLUMNS, measured_errors, nearest_errors, shipped_errors
from gram_platform.config import State
from gram_platform.config.endings import exit_codes
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.methods.measurements import Calibration
from gram_platform.pages.report.calibration import read_calibration
from gram_platform.pages.results.record import StudyRecord, readable_record
from gram_platform.store import Store
from gram_platform.studies.build import Graph
from gram_platform.studies.definition import shown_place

# The study that measures the unit.
CALIBRATION_STUDY = "calibration"


def unit_errors_of(graph: Graph) -> tuple[dict, ...]:
    """Returns the unit's errors at every size where they are known: `size, class, ratio, difference, measured_on`.

    What a finished calibration on the same data in the storage measured replaces what was measured for the package at
    the same size of the corpus; of all these the nearest size counts, see `nearest_errors`.
    """
    corpus, found = graph.flags.corpus, []
    own = measured_in(Store(graph.flags.storage), corpus, graph.data_id)
    rows = pd.concat([own, shipped_errors()] if len(own) else [shipped_errors()], ignore_index=True)
    rows = rows.drop_duplicates(["corpus", "parameters", "steps", "class"])
    steps = {n.size: n.config.num_steps for n in graph.entries if n.is_run and n.method == BASELINE}
    for size in {setting.size.name: setting.size for setting in graph.settings if setting.size.name in steps}.values():
        near = (corpus, total_parameters(size.dense()), steps[size.name])
        for row in nearest_errors(rows, *near):
            error = {name: row[name] for name in ("class", "ratio", "difference")}
            found.append({"size": size.name, **error, "measured_on": f"{shown_place(row['corpus'])}, {row['size']}"})
    return tuple(found)


def measured_in(store: Store, corpus: str, data_id: str = "") -> pd.DataFrame:
    """Returns the errors by the storage's calibration, FILE_COLUMNS; no rows without one on this data.

    Sizes of which a node is not complete are left out: the longest baselines, whose errors are small, come first.
    """
    record = readable_record(store, CALIBRATION_STUDY)
    # Another study may have this name.
    is_ours = record is not None and record.measurement == Calibration.name
    is_here = is_ours and data_id in ("", record.params.get("data_id"))
    results = read_calibration(record, store, None) if is_here else None
    if results is None:
        return pd.DataFrame(columns=FILE_COLUMNS)
    steps = results.analysis.fits.groupby("size")["last_step"].max()
    errors = measured_errors(results.errors[results.errors["size"].isin(finished_sizes(record, results.runs))])
    numbers = {"parameters": errors["size"].map(record.parameters), "steps": errors["size"].map(steps).astype(int)}
    return errors.assign(corpus=corpus, **numbers)[FILE_COLUMNS]


def finished_sizes(record: StudyRecord, runs: pd.DataFrame) -> set[str]:
    """Returns the sizes of which every node is complete; `runs` as in `Results`."""
    complete = set(runs.loc[runs["status"] == State.COMPLETE, "id"])
    return set(record.sizes) - {
        entry["tags"].get("size", "") for entry in record.entries if entry["id"] not in complete
    }


def main(arguments: list[str]) -> int:
    """Prints the CSV of the calibrations in NAME=STORAGE; ValueError for one without two rated shares."""
    parts = []
    for argument in arguments:
        corpus, _, place = argument.partition("=")
        parts.append(measured_in(Store(place), corpus))
        if parts[-1].empty:
            expected = f"NAME=STORAGE with two seeds of two shares of a finished study {CALIBRATION_STUDY}"
            raise invalid("storage", argument, expected)
    say(table_csv(pd.concat(parts), "%.4f") if parts else __doc__)
    return 0


if __name__ == "__main__":
    with exit_codes():
        sys.exit(main(sys.argv[1:]))
