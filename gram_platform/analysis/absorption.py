"""Which module learns what is not labelled: the share of the modules' squared gradient that falls on each, from probes.

"Absorption" says that a domain's unlabelled batches are learnt by its own module. Shares are taken within a run; then
means over seeds. AdamW rescales every module's gradients: a share says where a batch pulls, not how far weights move.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.order import MEAN
from gram_platform.analysis.ratios import VARIANT
from gram_platform.config import core_first
from gram_platform.store import Store
from gram_platform.store.segments import PROBE

RUN = ["method", "size", "seed"]
SHARE_COLUMNS = [*RUN, "run_id", "step", "domain", "module", "share"]


def load_shares(store: Store, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a run, step, domain and module: SHARE_COLUMNS, with `variant` first where `runs` has it.

    `runs` has a row for each run: `id` and its names. `share`: of the squared gradients of all modules on a batch of
    the domain, in [0, 1]. Read from the run directories: MLflow has no probes. A domain without any gradient is absent.
    """
    names = [name for name in (VARIANT, *RUN) if name in runs]
    rows = []
    for own in runs[["id", *names]].to_dict("records"):
        for record in store.run(own["id"]).records():
            for (domain, module), share in probed_shares(record["metrics"]).items():
                rows.append((*(own[name] for name in names), own["id"], record["step"], domain, module, share))
    return pd.DataFrame(rows, columns=[*names, *SHARE_COLUMNS[len(RUN) :]])


def probed_shares(metrics: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """{(domain, module): share} from the metrics of one record, core's batches first."""
    squares: dict[str, dict[str, float]] = {}
    for name, norm in metrics.items():
        if name.startswith(PROBE):
            domain, module = name.removeprefix(PROBE).split("/")
            squares.setdefault(domain, {})[module] = norm**2
    totals = {domain: sum(squares[domain].values()) for domain in core_first(tuple(squares))}
    known = [domain for domain, total in totals.items() if np.isfinite(total) and total > 0.0]
    return {(d, module): square / totals[d] for d in known for module, square in squares[d].items()}


def share_curves(shares: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds: one row a method, size, domain, module and step with `share, low, high, num_seeds, runs`."""
    return _over_seeds(shares, [*_cell(shares), "domain", "module", "step"])


def final_shares(shares: pd.DataFrame) -> pd.DataFrame:
    """The same at the last probe, with `is_own`; and the mean over auxiliary domains of their own module's share.

    The mean is taken within a seed, and stands as domain and module `mean`.
    """
    cell = _cell(shares)
    last = shares[shares["step"] == shares.groupby("run_id")["step"].transform("max")]
    own = last[last["domain"] == last["module"]]
    means = own.groupby([*cell, "seed", "run_id"], sort=False, as_index=False)["share"].mean()
    found = _over_seeds(pd.concat([last, means.assign(domain=MEAN, module=MEAN)]), [*cell, "domain", "module"])
    return found.assign(is_own=found["domain"] == found["module"])


def _cell(shares: pd.DataFrame) -> list[str]:
    return [name for name in (VARIANT, "method", "size") if name in shares]


def _over_seeds(shares: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    rows = []
    for key, group in shares.groupby(list(names), sort=False):
        rows.append((*key, *t_interval(group["share"]), len(group), ", ".join(group["run_id"])))
    return pd.DataFrame(rows, columns=[*names, "share", "low", "high", "num_seeds", "runs"])
