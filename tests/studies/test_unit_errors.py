"""A study's record says how far its unit is off: by the storage's calibration, else by what was
measured before."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.unit_errors import main
from gram_platform.analysis.calibration import load_errors
from gram_platform.config import State
from gram_platform.pages.results.record import record_from_plain
from gram_platform.store import Store
from gram_platform.studies import record as record_module
from gram_platform.studies.library import calibration, scaling
from gram_platform.studies.plan import StudyPlan
from gram_platform.studies.record import list_complete_sizes, record_of
from tests.refused import refused
from tests.submitted import execute, study_plan

# The set-up that most demos share.
DEMO = ("--preset", "study", "--corpus", "stories")


def graph_of(tmp_path, *flags: str) -> StudyPlan:
    return study_plan(scaling.STUDY, [*flags, "--storage", str(tmp_path)])


def test_a_demo_has_the_shipped_errors_another_text_the_largest_and_a_large_size_none(tmp_path):
    shipped = load_errors()
    shipped = shipped[(shipped["corpus"] == "stories") & (shipped["size"] == "0.28M")]
    record = record_of(graph_of(tmp_path, *DEMO, "--sizes", "0.28M"))
    found = {row["class"]: (row["ratio"], row["difference"]) for row in record.unit_errors}
    assert found == {
        row["class"]: (row["ratio"], row["difference"]) for row in shipped.to_dict("records")
    }
    assert {row["measured_on"] for row in record.unit_errors} == {"stories, 0.28M"}
    assert {row["num_shares"] for row in record.unit_errors} == {8}
    other = record_of(graph_of(tmp_path, "--preset", "smoke", "--sizes", "tiny"))
    largest = load_errors().groupby("class")[["ratio", "difference"]].max()
    found = {row["class"]: (row["ratio"], row["difference"]) for row in other.unit_errors}
    assert found == {name: tuple(row) for name, row in largest.iterrows()}
    assert "stories, 0.28M and abstracts, 0.15M" in {r["measured_on"] for r in other.unit_errors}
    assert record_of(graph_of(tmp_path, "--preset", "paper", "--sizes", "50M")).unit_errors == ()


def test_a_storage_without_a_calibration_has_no_errors_to_print(tmp_path):
    with refused("storage", f"stories={tmp_path}"):
        main([f"stories={tmp_path}"])


def test_another_size_of_the_storages_calibration_does_not_hide_the_size_that_was_measured(
    tmp_path, monkeypatch
):
    """The shipped error of stories at 0.28M is .21; one of .01 at 0.15M, in the storage, took its
    place."""
    own = load_errors().assign(ratio=0.01, difference=0.01)
    own = own[own["corpus"] == "stories"]
    shipped = record_of(graph_of(tmp_path, *DEMO, "--sizes", "0.28M")).unit_errors
    monkeypatch.setattr(record_module, "load_calibration", lambda *of: own[own["size"] == "0.15M"])
    assert record_of(graph_of(tmp_path, *DEMO, "--sizes", "0.28M")).unit_errors == shipped
    small = record_of(graph_of(tmp_path, *DEMO, "--sizes", "0.15M")).unit_errors
    assert [row["ratio"] for row in small] == [0.01, 0.01]


def test_another_study_that_is_named_calibration_is_none(tmp_path, monkeypatch):
    """It has no variants of known shares, without which every other study ended with a KeyError."""
    record = record_of(graph_of(tmp_path, "--preset", "smoke"))
    monkeypatch.setattr(
        record_module, "readable_record", lambda *of: replace(record, name="calibration")
    )
    monkeypatch.setattr(
        record_module, "read_calibration", lambda *of: pytest.fail("it is read as a calibration")
    )
    assert record_of(graph_of(tmp_path, "--preset", "smoke")).unit_errors == record.unit_errors


def test_a_size_counts_when_every_node_is_complete(tmp_path):
    record = record_of(graph_of(tmp_path, "--preset", "smoke", "--methods", "baseline"))
    runs = pd.DataFrame([{"id": e["id"], "status": State.COMPLETE} for e in record.entries])
    assert list_complete_sizes(record, runs) == {"tiny", "small"}
    last = max(place for place, e in enumerate(record.entries) if e["tags"]["size"] == "tiny")
    assert list_complete_sizes(record, runs.drop(index=last)) == {"small"}
    assert list_complete_sizes(record, runs.assign(status=State.INTERRUPTED)) == set()


def test_a_record_with_a_huge_error_can_be_read_and_one_below_zero_cannot(tmp_path):
    record = record_of(graph_of(tmp_path, *DEMO, "--sizes", "0.28M"))
    rows = [{**row, "ratio": 1e30} for row in record.unit_errors]
    plain = json.loads(replace(record, unit_errors=tuple(rows)).to_json())
    assert record_from_plain(plain).unit_errors == tuple(rows)
    for wrong in (-0.1, float("nan"), float("inf"), "0.1"):
        with pytest.raises(ValueError):
            record_from_plain({**plain, "unit_errors": [{**rows[0], "ratio": wrong}]})


@pytest.mark.slow  # a calibration and a study are trained
def test_a_calibration_in_the_storage_counts_for_studies_on_its_data(tmp_path, capsys):
    flags = [
        "--preset",
        "smoke",
        "--sizes",
        "tiny",
        "--seeds",
        "2",
        "--in-process",
        "--device",
        "cpu",
        "--storage",
        str(tmp_path),
    ]
    assert execute(calibration.STUDY, flags) == 0
    assert main([f"mine={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [line for line in lines if line.startswith("mine,")]
    assert len(printed) == 2
    assert execute(scaling.STUDY, [*flags, "--methods", "baseline"]) == 0
    assert "not calibrated" not in capsys.readouterr().out
    stored = json.loads(Store(str(tmp_path)).study_dir("scaling").read("study.json"))
    assert {row["measured_on"] for row in stored["unit_errors"]} == {"stories-smoke, tiny"}
    for row, line in zip(stored["unit_errors"], printed, strict=True):
        assert f"{row['ratio']:.4f},{row['difference']:.4f}" in line
