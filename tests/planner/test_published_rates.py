"""Checks the authors' tokens a second and GPU against the medians of their logs."""

import pandas as pd
import pytest

from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.planner import PUBLISHED_RATES
from gram_platform.studies.library.scaling import AS_RUN_SIZES
from tests.published import FOLDER, NEEDS_FOLDER


@NEEDS_FOLDER
@pytest.mark.parametrize("name", PAPER_SIZES)
def test_the_rates_are_those_of_the_logs(name):
    """Of runs at the size's batch; stories' rates are in the page of the published data."""
    rows = pd.read_csv(FOLDER / "throughput.csv")
    rows = rows[(rows["size"] == name)]
    rows = rows[rows["sequences_a_step"] == AS_RUN_SIZES[name].batch_size]
    dense, gram = (rows.loc[rows["stage"] == stage] for stage in ("dense", "GRAM"))
    rates, of_gram = dense["tokens_per_second_per_gpu"], gram["tokens_per_second_per_gpu"]
    expected = (rates.min(), rates.max(), of_gram.max())
    assert PUBLISHED_RATES[name] == expected
