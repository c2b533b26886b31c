"""The benchmark of reading runs measures what it says, on both databases: every copy is a run of its own."""

import pytest

from benchmarks import frame
from benchmarks.many_runs import DOMAINS
from benchmarks.results import BenchmarkSettings
from gram_platform.tracking.frame import load_curves, load_runs


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/mlflow.db"
    server = request.getfixturevalue("postgres")
    return server.uri(request.getfixturevalue("new_database")())


@pytest.mark.slow
def test_frame(uri, tmp_path):
    (measured,) = frame.measure(BenchmarkSettings(str(tmp_path / "storage"), tracking_uri=uri), num_runs=30)
    assert min(measured.reference, measured.value) > 0
    curves = load_curves(uri)
    assert len(curves) == 30 * frame.NUM_POINTS * len(DOMAINS)
    assert load_runs(uri)["status"].tolist() == ["complete"] * 30
    same = curves.groupby(curves["run_id"].str[:8])["loss"].apply(lambda losses: sorted(losses)[::3])
    assert len(same) == 10
    assert all(len(losses) == frame.NUM_POINTS * len(DOMAINS) for losses in same)
