"""`gram report STUDY --tracking-uri URI` where the storage is gone: the same tables from MLflow
alone."""

import csv
import json

import fsspec
import numpy as np
import pytest

from gram_platform.analysis.lr_laws import analyse_grid
from gram_platform.analysis.tables import frame_text
from gram_platform.cli.reports import report_from_mlflow
from gram_platform.cli.studies import report_command
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.results.results import read_results, summary_text
from gram_platform.studies.searches.lr_bs_grid import trials_table
from gram_platform.tracking import Tracker, TrackingUnavailable
from gram_platform.tracking.views import StudyLog
from tests.analysis.test_lr_grid import laddered
from tests.pages.results.test_results import study  # noqa: F401
from tests.refused import refused


@pytest.fixture
def uri(tmp_path):
    return f"sqlite:///{tmp_path}/elsewhere/mlflow.db"


def test_a_study_in_an_object_store_is_reported_from_there(study, capsys):  # noqa: F811
    store, record, _ = study
    LOSSES_PRESENTATION.write(record, store, read_results(record, store), {}, None)
    fsspec.filesystem("memory").put(store.root, "/reported", recursive=True)
    report_command("stories", storage="memory://reported")
    assert capsys.readouterr().out.endswith(" the storage\n")
    report_command("stories", storage="memory://reported", as_json=True)
    plain = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (plain["study"], plain["source"]) == ("stories", "the storage")
    with open(f"{store.root}/studies/stories/table.csv") as table:
        rows = list(csv.DictReader(table))
    found = plain["tables"]["table"]
    assert [list(row) for row in found] == [list(row) for row in rows]
    for one, row in zip(found, rows, strict=True):
        expected = (row["method"], float(row["core"]), not row["forget"])
        assert (one["method"], one["core"], one["forget"] is None) == expected
    assert plain["files"].keys() >= {"table.csv", "claims.csv", "report.html"}


def test_a_study_is_reported_without_its_storage(study, uri, tmp_path, monkeypatch, capsys):  # noqa: F811
    store, record, _ = study
    (tmp_path / "elsewhere").mkdir()
    tracker = Tracker(uri)
    tracker.sync(store)
    results = read_results(record, store)
    paths = LOSSES_PRESENTATION.write(record, store, results, {}, tracker)
    monkeypatch.setenv("GRAM_STORAGE", str(tmp_path / "removed"))
    report_command("stories", tracking_uri=uri, out=str(tmp_path / "out"))
    said = capsys.readouterr().out
    assert said.startswith(summary_text(record, results))
    assert "published claims" in said
    assert frame_text(results.analysis.fits) in said
    with open(paths["table.csv"], "rb") as table:
        assert (tmp_path / "out" / "table.csv").read_bytes() == table.read()
    assert "Read from MLflow." in (tmp_path / "out" / "report.html").read_text()
    assert not (tmp_path / "removed").exists()


def test_the_laws_of_a_grid_are_fitted_again_without_its_storage(uri, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    trials = laddered().assign(run_id="r", elapsed_s=1.0, message="")
    left = (trials["size"] == "1M") & (trials["lr"] == 2e-3) & (trials["batch"] == 64)
    grid = analyse_grid(trials[~left], 2048, None)
    trials = trials.assign(state=trials["state"].mask(left, "interrupted"))
    about = {"seq_len": 2048, "window": None}
    files = {
        "table.csv": grid.optima.to_csv(index=False).encode(),
        "trials.csv": trials_table(trials, "grid-0123").to_csv(index=False).encode(),
        "search.json": json.dumps(about).encode(),
        "report.html": b"<html></html>",
    }
    Tracker(uri).log_study(StudyLog("lr_bs_grid", files, {}, {"search_id": "0123"}))
    report_from_mlflow("lr_bs_grid", uri, "")
    text = capsys.readouterr().out
    exponents = grid.laws["exponent"].to_numpy()
    assert np.isfinite(exponents).all()
    assert all(f"{exponent:.3f}" in text for exponent in exponents)
    assert frame_text(grid.optima) in text


def test_what_mlflow_lacks_is_named(uri, tmp_path):
    with pytest.raises(TrackingUnavailable):
        report_from_mlflow("stories", uri, "")
    (tmp_path / "elsewhere").mkdir()
    Tracker(uri).prepare_database()
    with refused("study", "stories"):
        report_from_mlflow("stories", uri, "")
