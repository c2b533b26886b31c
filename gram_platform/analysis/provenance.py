"""Which runs a row of a table rests on."""

import pandas as pd

from gram_platform.analysis.order import MEAN
from gram_platform.analysis.ratios import VARIANT
from gram_platform.analysis.tables import ROW

MOST = 6  # run ids that are named; a mean over profiles of many runs names the first and says how many more


def with_runs(table: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `runs`: the ids of the runs whose weights each row evaluates, joined by commas.

    A mean over profiles rests on the runs of all its profiles: core with at most one auxiliary domain. Empty where
    `ratios` has no `run_id`.
    """
    keys = [column for column in (VARIANT, *ROW) if column in table]
    if "run_id" not in ratios or table.empty:
        return table.assign(runs="")
    evaluated = ratios[ratios["class"] != "elicited"]
    is_few = ~evaluated["retained"].str.contains(",")  # as `per_seed_frame` decides
    in_mean = is_few | ~is_few.groupby([evaluated[key] for key in keys[:-1]]).transform("any")
    frame = pd.concat([evaluated, evaluated[in_mean].assign(profile=MEAN)])
    runs = frame.groupby(keys, sort=False)["run_id"].agg(run_names).rename("runs").reset_index()
    return table.merge(runs, on=keys, how="left").fillna({"runs": ""})


def run_names(run_ids: pd.Series) -> str:
    """Run ids joined by commas, each once, the first few and how many more there are."""
    found = list(dict.fromkeys(run_ids.astype(str)))
    rest = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + rest
