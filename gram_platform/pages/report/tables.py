"""Turns frames into the readable tables of a page."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from gram_platform.analysis.ratios import ELICITED, VARIANT
from gram_platform.analysis.tables import CLASSES, interval_text, naming_columns
from gram_platform.paper.paper import COST_TABLE
from gram_platform.paper.verdicts import EXPLANATION

RUN_COLUMNS = ("run_id", "run_id_url", "kind", "method", "size", "seed", "profile", "status", "steps", "num_tokens")
RUN_COLUMNS += ("elapsed", "tokens_per_second", "error", "mlflow", "mlflow_url")
ATTACK_COLUMNS = ("run_id", "run_id_url", "method", "size", "seed", "profile", "attacked_for", "best_loss", "status")
ATTACK_COLUMNS += ("elapsed", "error", "mlflow", "mlflow_url")
CLAIM_COLUMNS = ("verdict", "claim", VARIANT, "size", "difference", "detectable", "num_seeds")
CLAIM_COLUMNS += ("published", "paper", "source", "judged_at", EXPLANATION)
COSTS = {"train": "train FLOPs", "plan": "by its plan", "active_mlp": "active MLP", "total_mlp": "total MLP"}
PARTIAL = (VARIANT, "published", "paper", EXPLANATION)  # columns of claims that may be empty
IN_PAPER = ("train", "active_mlp", "total_mlp")  # in the order of COST_TABLE


def readable_table(table: pd.DataFrame) -> pd.DataFrame:
    """Writes each class of table.csv as one text, `mean [low, high]`; leaves out classes without any value."""
    readable = table[naming_columns(table)].copy()
    for name in CLASSES:
        if table[name].notna().any():
            triples = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
            readable[name] = [interval_text(*triple) for triple in triples]
    return readable.assign(num_seeds=table["num_seeds"])


def readable_claims(claims: pd.DataFrame) -> pd.DataFrame:
    """Puts the verdict first and writes numbers with three decimals, the difference with its interval."""
    readable = claims.copy()
    if "difference" in claims:
        triples = zip(claims["difference"], claims["low"], claims["high"], strict=True)
        readable["difference"] = [interval_text(*triple) for triple in triples]
    for name in ("detectable", "paper"):
        if name in claims:
            readable[name] = [interval_text(value, math.nan, math.nan) for value in claims[name]]
    return shown_columns(readable, CLAIM_COLUMNS)


def shown_columns(claims: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Selects the present ones of these columns, without the empty ones of PARTIAL."""
    is_empty = {name: (claims[name].isna() | (claims[name] == "")).all() for name in PARTIAL if name in claims}
    return claims[[name for name in order if name in claims and not is_empty.get(name, False)]]


def is_attack(runs: pd.DataFrame) -> pd.Series:
    """Marks the attacks, the rows with a non-empty `elicited`."""
    return runs[ELICITED].fillna("") != "" if ELICITED in runs else pd.Series(False, index=runs.index)


def readable_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Lists the runs, then the evaluations, with the present ones of RUN_COLUMNS; elapsed time as h:mm:ss."""
    runs = _with_clock(runs)
    for name in ("num_tokens", "tokens_per_second"):
        if name in runs:
            runs = runs.assign(**{name: [whole(number) for number in runs[name]]})
    runs = runs[~is_attack(runs)]
    if "kind" in runs:
        runs = runs.sort_values("kind", key=lambda kinds: kinds != "run", kind="stable")
    return runs[[name for name in RUN_COLUMNS if name in runs]]


def readable_attacks(runs: pd.DataFrame) -> pd.DataFrame:
    """Lists the attacks with the present ones of ATTACK_COLUMNS."""
    attacks = _with_clock(runs)[is_attack(runs)].rename(columns={ELICITED: "attacked_for"})
    return attacks[[name for name in ATTACK_COLUMNS if name in attacks]]


def _with_clock(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(elapsed=[clock(seconds) for seconds in runs["elapsed_s"]]) if "elapsed_s" in runs else runs


def readable_costs(costs: Sequence[Mapping]) -> pd.DataFrame:
    """Makes one row for each method and size: our four costs over the baseline's, beside the paper's three."""
    rows = []
    for cost in costs:
        row = {"method": cost["method"], "size": cost.get("size", "")}
        row |= {VARIANT: cost[VARIANT]} if VARIANT in cost else {}
        paper = dict(zip(IN_PAPER, COST_TABLE.get(cost["method"], ("",) * len(IN_PAPER)), strict=True))
        for name, title in COSTS.items():
            row[title] = _times(cost.get(name))
            if name in paper:
                row[f"{title} (paper)"] = paper[name]
        rows.append(row)
    return pd.DataFrame(rows)


def _times(value: object) -> str:
    """Writes 1.03 as 1.03x; joins several values by "or"."""
    if value is None or value != value:
        return ""
    if isinstance(value, (list, tuple)):
        return " or ".join(dict.fromkeys(_times(one) for one in value))
    return value if isinstance(value, str) else f"{value:.2f}x"


def clock(seconds: float | None) -> str:
    """Writes seconds as h:mm:ss; "" if unknown."""
    if seconds is None or seconds != seconds:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def whole(number: float | None) -> str:
    """Writes a rounded number with commas between thousands; "" if unknown."""
    return "" if number is None or number != number else f"{round(number):,}"
