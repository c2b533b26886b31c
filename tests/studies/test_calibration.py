"""The calibration study: baselines of known shares of the steps on other seeds, beside those of the
scaling study."""

import pandas as pd
import pytest

from gram_platform.analysis.calibration import AUXILIARY, CALIBRATION_COLUMNS, FIT, SINGLE, UNIT
from gram_platform.pages.report.measurements import MEASUREMENTS
from gram_platform.pages.results.record import load_record
from gram_platform.store import Store
from gram_platform.studies.library import calibration, stories
from tests.submitted import execute, study_plan


def test_rated_baselines_differ_in_length_and_seed_alone(tmp_path):
    """A run is not shared with the reference's, and the reference's are those of other demos."""

    def runs_of(study, *flags):
        flags = ["--preset", "demo", "--sizes", "0.15M", "--storage", str(tmp_path), *flags]
        nodes = study_plan(study, flags).nodes
        return [node for node in nodes if node.is_run]

    runs = runs_of(calibration.STUDY)
    found = {(node.names["variant"], node.names["seed"]): node.config for node in runs}
    names = [f"{share:g}" for share in calibration.SHARES]
    reference, rated = ("100", "101", "102"), ("200", "201", "202")
    assert set(found) == {("reference", s) for s in reference} | {
        (name, s) for name in names for s in rated
    }
    of_stories = runs_of(stories.STUDY, "--methods", "baseline")
    assert {node.id for node in of_stories} == {
        found["reference", seed].run_id for seed in reference
    }
    whole = found["reference", "100"]
    for (name, seed), run in found.items():
        assert run.seed == int(seed)
        assert (run.model, run.optimizer, run.batch_size) == (
            whole.model,
            whole.optimizer,
            whole.batch_size,
        )
        share = 1.0 if name == "reference" else float(name)
        assert run.num_steps / whole.num_steps == pytest.approx(share, abs=2e-3)
        assert run.eval_points.num_points / whole.eval_points.num_points == pytest.approx(
            share, abs=2e-2
        )
        draws = {budget.name: budget.num_draws for budget in run.data.domains}
        for budget in whole.data.domains:  # rounded to whole batches
            assert abs(draws[budget.name] - share * budget.num_draws) <= 5 * run.batch_size


@pytest.mark.slow  # twelve nodes are trained and measured; the analysis has fast tests
def test_the_smoke_preset_from_end_to_end(tmp_path):
    flags = ["--preset", "smoke", "--seeds", "2", "--in-process", "--device", "cpu"]
    flags += ["--storage", str(tmp_path)]
    assert execute(calibration.STUDY, flags) == 0
    folder = tmp_path / "studies" / "calibration"
    table = pd.read_csv(folder / "table.csv")
    assert list(table.columns) == CALIBRATION_COLUMNS
    expected = [(kind, domain) for domain in ("core", AUXILIARY, SINGLE) for kind in (FIT, UNIT)]
    assert list(zip(table["error_of"], table["domain"], strict=True)) == expected
    assert (table["rms"] < 0.3).all()  # shares of .5 and 1
    assert (table["num_seeds"] == 2).all()
    store = Store(str(tmp_path))
    record = load_record(store, "calibration")
    measurement = MEASUREMENTS[record.measurement]
    results = measurement.read(record, store, None)
    at_half = results.errors[(results.errors["error_of"] == UNIT) & (results.errors["share"] < 0.6)]
    assert set(at_half["seed"]) == {"100", "101"}
    assert (folder / "report.html").is_file()
    before = (folder / "table.csv").read_bytes()
    measurement.write(record, store.open_for_writing(), results, {}, None)
    assert (folder / "table.csv").read_bytes() == before
