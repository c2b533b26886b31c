"""The table that is written while a study still trains."""

import dataclasses

import pytest

from gram_platform.pages.report.measurements import MEASUREMENTS
from gram_platform.studies.library.scaling import STUDY
from tests.submitted import execute

FLAGS = (
    "--preset",
    "smoke",
    "--methods",
    "baseline",
    "--seeds",
    "1",
    "--in-process",
    "--device",
    "cpu",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_that_cannot_be_made_ends_nothing(tmp_path, monkeypatch):
    """It fails when the first of two sizes is complete; the study trains the second and writes its
    table at the end."""
    losses, failures = MEASUREMENTS["losses"], [ZeroDivisionError("no fit")]

    def read(*arguments):
        if failures:
            raise failures.pop()
        return losses.read(*arguments)

    monkeypatch.setitem(MEASUREMENTS, "losses", dataclasses.replace(losses, read=read))
    assert execute(STUDY, [*FLAGS, "--storage", str(tmp_path)]) == 0
    assert not failures
    assert (tmp_path / "studies/scaling/table.csv").read_text().count("small") > 0
