"""Loads the paper's printed and published numbers, and compares them with ours.

`printed.csv` has the printed numbers with their labels in the paper. `published.csv` has rows of
`tables.per_seed_frame`, computed by this package from the published losses of nine studies.

In the studies `dual_use`, `composability` and `titration`, ratios are relative to the 800M
baselines of the study `scaling`, pooled over seeds. In the study `accumulation`, they are relative
to the study's own baselines with heterogeneous accumulation. At 2B and 5B, our copy of the authors'
results lacks the baselines' curves. So the baseline has no row there, and other rows average the
authors' ratios over domains. Domains keep the authors' names. Each view of DEMix uses a single
expert for all text.
"""

import math
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pandas as pd

from gram_platform.analysis.ratios import MEAN, ROW, sort_rows
from gram_platform.analysis.tables import (
    CLASSES,
    interval_cell,
    interval_texts,
    over_seeds,
)
from gram_platform.methods.nodes import BASELINE, VARIANT

OURS, PUBLISHED = "ours", "published"
STORIES, AUX_SCALING, PARTIAL_LABELS = "stories", "aux_scaling", "partial_labels"
ARCHITECTURE, ACCUMULATION = "architecture", "accumulation"

PRINTED_FILE = Path(__file__).with_name("printed.csv")
# Each study's size and number of seeds.
PAPER_SCALES = {
    STORIES: ("26M", 3),
    AUX_SCALING: ("26M", 3),
    PARTIAL_LABELS: ("400M", 3),
    ARCHITECTURE: ("100M", 3),
    ACCUMULATION: ("200M", 1),
}
STORIES_SIZE = PAPER_SCALES[STORIES][0]
# The table in fig:realistic-results: train FLOPs, active and total MLP parameters of the dual-use
# models as multiples of the baseline's, for core and for core with each domain.
COST_SIZE, COST_PROFILES = "800M", 5
COST_TABLE = {
    "filtering": ("5x", "1x", "5x"),
    "gram": ("1x", "1x or 1.1x", "1.4x"),
    "ft_lora": ("1x", "1x or 1.1x", "1.4x"),
    "ft_full": ("1x", "1x", "5x"),
    "maxent": ("1x", "1x", "5x"),
}


@cache
def read_printed(study: str) -> pd.DataFrame:
    """Returns the compute ratios that the paper prints for a study.

    Columns: `variant, method, size, num_seeds`, CLASSES, and for each class the interval's ends
    `<class>_low, <class>_high` and half-width `<class>_error`. Missing numbers are NaN.
    """
    texts = {VARIANT: str}
    rows = pd.read_csv(PRINTED_FILE, comment="#", dtype=texts, float_precision="round_trip")
    rows = rows[rows["study"] == study].fillna({VARIANT: ""})
    size, num_seeds = PAPER_SCALES.get(study, ("", 0))
    for name in CLASSES:
        rows[f"{name}_low"] = rows[name] - rows[f"{name}_error"]
        rows[f"{name}_high"] = rows[name] + rows[f"{name}_error"]
    return rows.assign(size=size, num_seeds=num_seeds)


def paper_value(study: str, variant: str, method: str, name: str) -> float:
    """Returns the printed compute ratio of the class `name`.

    If there is none, returns 1 for the baseline's core and retain, otherwise NaN.
    """
    rows = read_printed(study)
    rows = rows[(rows[VARIANT] == variant) & (rows["method"] == method)]
    if name in rows and len(rows):
        return float(rows[name].iloc[0])
    return 1.0 if method == BASELINE and name in ("core", "retain") else math.nan


def beside_paper(table: pd.DataFrame, study: str = STORIES, profile: str = MEAN) -> pd.DataFrame:
    """Returns our rows for a profile, each followed by the paper's row for the method.

    Columns: `variant` if the table has it, `method, size, from` ("ours" or "paper"), CLASSES as
    `mean [low, high]`, and `num_seeds`. Omits the baseline if the paper has no row for it.
    """
    rows, paper = [], read_printed(study)
    for record in table[table["profile"] == profile].to_dict("records"):
        variant, method = record.get(VARIANT, ""), record["method"]
        theirs = paper[(paper[VARIANT] == variant) & (paper["method"] == method)]
        if method == BASELINE and theirs.empty:
            continue
        for source, row in ((OURS, record), *(("paper", row) for row in theirs.to_dict("records"))):
            cells = {name: interval_cell(row, name) for name in CLASSES}
            rows.append({**row, VARIANT: variant, "from": source, **cells})
    columns = [VARIANT, "method", "size", "from", *CLASSES, "num_seeds"]
    return pd.DataFrame(rows, columns=columns if VARIANT in table else columns[1:])


SOURCE = (
    "Per-seed compute ratios computed from the losses in the public results of"
    " agencyenterprise/modular-pretraining, read through the public fork"
    " JR-Vickers/modular-pretraining, commit b55fb36; 2B and 5B: averaged from the ratios published"
    " there, since the baselines' curves are not in the copy that was read"
)
# Published studies without claims, and the study whose claims apply.
JUDGED_BY = {"composability": "dual_use"}
PUBLISHED_FILE = Path(__file__).with_name("published.csv")
# Our names of the dual-use domains, by published name.
OUR_DOMAINS = {
    "papers-biology": "virology",
    "papers-nuclear": "nuclear",
    "papers-cyber": "cybersecurity",
    "code-lisp": "lisp",
}


def load_published(study: str) -> pd.DataFrame:
    """Returns a study's published rows of `tables.per_seed_frame`, with a column `variant`."""
    rows = _read_published()
    return rows[rows["study"] == study].drop(columns="study").reset_index(drop=True)


@cache
def _read_published() -> pd.DataFrame:
    texts = dict.fromkeys(("study", VARIANT, *ROW, "seed", "retained"), str)
    return pd.read_csv(PUBLISHED_FILE, comment="#", dtype=texts).fillna(dict.fromkeys(texts, ""))


def tabulate_published(study: str, domains: Collection[str] = ()) -> pd.DataFrame | None:
    """Returns a study's published table in the columns of table.csv, or None if there is none.

    If `domains` has our name of a domain but not the published name, uses our name.
    """
    per_seed = load_published(study)
    if per_seed.empty:
        return None
    known = OUR_DOMAINS.items()
    names = {theirs: ours for theirs, ours in known if ours in domains and theirs not in domains}
    table = over_seeds(per_seed, [VARIANT, *ROW] if per_seed[VARIANT].any() else ROW)
    profiles = table["profile"].str.split("+")
    return table.assign(profile=["+".join(names.get(n, n) for n in of) for of in profiles])


def beside_published(
    table: pd.DataFrame, published: pd.DataFrame, profile: str = MEAN
) -> pd.DataFrame:
    """Returns our rows for a profile and for `mean`, each followed by the published row.

    Columns: `method, size, profile, from` ("ours" or "published"), CLASSES as `mean [low, high]`,
    and `num_seeds`. Includes published rows at other sizes. Omits the baseline and methods that are
    in only one of the tables.
    """
    methods = (set(table["method"]) & set(published["method"])) - {BASELINE}
    both = ((table, OURS), (published, PUBLISHED))
    rows = pd.concat([frame.assign(**{"from": name}) for frame, name in both], ignore_index=True)
    rows = sort_rows(rows[rows["method"].isin(methods) & rows["profile"].isin([profile, MEAN])], ())
    cells = {name: pd.Series(interval_texts(rows, name), rows.index, "str") for name in CLASSES}
    rows = rows.assign(**cells)
    return rows[[*ROW, "from", *CLASSES, "num_seeds"]]
