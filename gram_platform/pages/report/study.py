"""What the page of a study is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from gram_platform.analysis.order import MEAN
from gram_platform.analysis.provenance import with_runs
from gram_platform.analysis.ratios import ALL
from gram_platform.analysis.tables import Analysis
from gram_platform.pages.figures.scaling import HIDDEN


@dataclass(frozen=True)
class StudyReport:
    """The frames of a study, complete or not, and how they are to be shown.

    `runs` has one row a run, evaluation or attack (those with a non-empty `elicited`) and is shown as far as it has the
    columns `run_id, kind, method, size, seed, profile, status, steps, num_tokens, elapsed_s, tokens_per_second,
    best_loss, error`, with `run_id_url` for links to MLflow.
    """

    analysis: Analysis
    curves: pd.DataFrame  # the points given to `analyse`
    runs: pd.DataFrame
    parameters: Mapping[str, float]  # the count of each size, of published ones too
    profile: str = ""  # what the figures against size or variant show; "": the `shared_profile`
    claims: pd.DataFrame | None = None  # of `claims_frame`
    costs: Sequence[Mapping] = field(default=())  # rows of `size, method` and `method_costs`
    compare_with: str = ""  # the study beside whose numbers in the paper ours stand
    varies: str = ""  # the name of what the frames' column `variant` holds
    published: pd.DataFrame | None = None  # the published table of the same methods, in the columns of table.csv
    absorption: pd.DataFrame | None = None  # of `absorption.load_shares`, of a study whose runs have probes
    by_number: pd.DataFrame | None = None  # of `composing.by_number`, of a study about how many modules are on

    @cached_property
    def table(self) -> pd.DataFrame:
        """The analysis' table with the runs that each row rests on."""
        return with_runs(self.analysis.table, self.analysis.ratios)

    @property
    def shown_profile(self) -> str:
        return self.profile or shared_profile(self.table)


def shared_profile(table: pd.DataFrame) -> str:
    """The profile that most methods have, at most sizes, and that retains something; `mean` if there is none."""
    rows = table[~table["profile"].isin([ALL, MEAN]) & table["retain"].notna() & ~table["method"].isin(HIDDEN)]
    counts = rows.drop_duplicates(["method", "size", "profile"]).groupby("profile", sort=True).size()
    return MEAN if counts.empty else str(counts.idxmax())
