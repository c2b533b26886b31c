"""Tabulates what each method costs, for the shown profile and for all profiles of a study."""

from collections.abc import Mapping, Sequence

import pandas as pd

from gram_platform.analysis.ratios import VARIANT
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.sections import renamed
from gram_platform.pages.results.record import Results
from gram_platform.paper.paper import COST_PROFILES, COST_SIZE, COST_TABLE

COST = """Multiples of the baseline's cost, computed from the configs of the runs. Filtering needs a run for each
profile, branches a base and one more run for each domain, GRAM one run for all. All profiles are those of this study
that switch a domain off: with every domain on, the baseline serves.

Profiles here: how many of them the runs of this study serve. Runs for all: what every profile needs, of which a study
may train a part; a base leaves room for the branches of all. Train FLOPs: tokens x active parameters by the paper's
formula; by its plan: with the cost of companion modules on core batches. Active MLP: parameters in a forward pass with
at most one module; total MLP: of all weights that serve."""
PAPER_TEXT = f"""Rows from the paper have the numbers that it prints for its dual-use models and its {COST_PROFILES}
profiles."""
COST_TITLES = {
    "train_all": "train FLOPs, all profiles",
    "plan_all": "by its plan, all profiles",
    "active_mlp": "active MLP",
    "total_mlp_all": "total MLP, all profiles",
}
NEEDED = {"method", "size", "profiles", "of_profiles", "shown", "train_shown", "served", "runs", *COST_TITLES}
PAPER_COSTS = ("train_all", "active_mlp", "total_mlp_all")  # in the order of COST_TABLE


def cost_sections(study: Results) -> list[Section]:
    """Shows the costs; [] without any, as for numbers measured elsewhere and records of earlier versions."""
    table = readable_costs(study.record.costs)
    if table.empty:
        return []
    text = f"{COST} {PAPER_TEXT}" if "from" in table else COST
    return [Section("Cost", text, table=renamed(table, study.record.varies), table_is_open=True)]


def readable_costs(costs: Sequence[Mapping]) -> pd.DataFrame:
    """Makes a row for each method and size of `method_costs`, below them the paper's of the same methods.

    A column `from` tells them apart if there are any of the paper.
    """
    costs = [cost for cost in costs if cost.keys() >= NEEDED]
    shown = {cost["shown"] for cost in costs}
    of_shown = f"train FLOPs, {shown.pop() if len(shown) == 1 else 'one profile'}"
    printed = [method for method in dict.fromkeys(cost["method"] for cost in costs) if method in COST_TABLE]
    rows = [_row(cost, of_shown, {"from": "ours"} if printed else {}) for cost in costs]
    for method in printed:
        values = dict(zip((COST_TITLES[name] for name in PAPER_COSTS), COST_TABLE[method], strict=True))
        row = {"method": method, "size": COST_SIZE, "from": "paper", "profiles here": ""}
        rows.append({**row, "all profiles": str(COST_PROFILES), **values})
    return pd.DataFrame(rows).fillna("")


def _row(cost: Mapping, of_shown: str, source: Mapping[str, str]) -> dict[str, str]:
    num_runs, num_branches = cost["runs"]
    unserved = f" of {cost['of_profiles']}" if cost["served"] < cost["of_profiles"] else ""
    row = {"method": cost["method"], "size": cost["size"]} | ({VARIANT: cost[VARIANT]} if VARIANT in cost else {})
    row |= {**source, "profiles here": str(cost["profiles"]), of_shown: _times(cost["train_shown"])}
    row |= {"all profiles": f"{cost['served']}{unserved}"}
    row |= {"runs for all": f"{num_runs} + {num_branches} from it" if num_branches else str(num_runs)}
    return row | {title: _times(cost[name]) for name, title in COST_TITLES.items()}


def _times(value: float | Sequence[float]) -> str:
    """Writes 1.03 as 1.03x; joins several values by "or"."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return " or ".join(dict.fromkeys(f"{one:.2f}x" for one in values))
