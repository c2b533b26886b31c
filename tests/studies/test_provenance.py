"""A study's record, report and runs in MLflow say which code, command and machine they are from."""

import json

import pytest

from gram_platform.config.provenance import code_of_process
from gram_platform.tracking import Tracker
from gram_platform.tracking.entry import CODE, COMMIT

pytestmark = pytest.mark.ray


def test_record_report_and_every_run_in_mlflow_name_the_code(finished_study):
    (row,) = json.loads((finished_study / "studies/scaling/study.json").read_text())["submissions"]
    code = code_of_process()
    assert (row["commit"], row["sources"]) == (code.commit, code.sources)
    assert "experiments/scaling.py" in row["command"]
    assert 0.0 < row["node_hours"] < 1.0
    assert {"Python", "torch", "ray", "mlflow"} <= row["versions"].keys()
    report = (finished_study / "studies/scaling/report.html").read_text()
    assert row["started"] in report
    assert str(code) in report
    runs = Tracker(f"sqlite:///{finished_study}/mlflow.db").runs().values()
    assert len(runs) == 12
    assert {run.data.tags[CODE] for run in runs} == {str(code)}
    assert {run.data.tags.get(COMMIT, "") for run in runs} == {code.commit}
