"""A study's record says how far its unit is off: by the storage's calibration, else by what was measured before."""

import json

import pytest

from gram_platform.analysis.unit_error import shipped_errors
from gram_platform.store import Store
from gram_platform.studies.build import Graph, build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library import calibration, scaling
from gram_platform.studies.run import record_of, run_study
from gram_platform.studies.unit_errors import main


def graph_of(tmp_path, *flags: str) -> Graph:
    return build_graph(scaling.STUDY, parse(scaling.STUDY, [*flags, "--storage", str(tmp_path)]))


def test_a_demo_has_the_shipped_errors_and_a_smoke_study_none(tmp_path):
    shipped = shipped_errors()
    shipped = shipped[(shipped["corpus"] == "stories") & (shipped["size"] == "0.28M")]
    record = record_of(graph_of(tmp_path, "--preset", "demo", "--sizes", "0.28M"))
    found = {row["class"]: (row["ratio"], row["difference"]) for row in record.unit_errors}
    assert found == {row["class"]: (row["ratio"], row["difference"]) for row in shipped.to_dict("records")}
    assert {row["measured_on"] for row in record.unit_errors} == {"stories, 0.28M"}
    assert record_of(graph_of(tmp_path, "--preset", "smoke")).unit_errors == ()
    assert record_of(graph_of(tmp_path, "--preset", "paper", "--sizes", "50M")).unit_errors == ()


def test_a_storage_without_a_calibration_has_no_errors_to_print(tmp_path):
    with pytest.raises(ValueError, match="NAME=STORAGE with two seeds of two shares"):
        main([f"stories={tmp_path}"])


@pytest.mark.slow  # a calibration and a study are trained
def test_a_calibration_in_the_storage_counts_for_studies_on_its_data(tmp_path, capsys):
    flags = ["--preset", "smoke", "--sizes", "tiny", "--in-process", "--device", "cpu", "--storage", str(tmp_path)]
    assert run_study(calibration.STUDY, parse(calibration.STUDY, flags)) == 0
    assert main([f"mine={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [line for line in lines if line.startswith("mine,")]
    assert len(printed) == 2
    assert run_study(scaling.STUDY, parse(scaling.STUDY, [*flags, "--methods", "baseline"])) == 0
    assert "not calibrated" not in capsys.readouterr().out
    stored = json.loads(Store(str(tmp_path)).study_dir("scaling").read("study.json"))
    assert {row["measured_on"] for row in stored["unit_errors"]} == {"stories-smoke, tiny"}
    for row, line in zip(stored["unit_errors"], printed, strict=True):
        assert f"{row['ratio']:.4f},{row['difference']:.4f}" in line
