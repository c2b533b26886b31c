"""Checks the runs that a row of a table names."""

from gram_platform.analysis.tables import StudyLosses, analyse, with_runs
from tests.study_frames import analysed, curves, evaluations


def test_each_row_names_its_runs():
    analysis = analysed()
    table = with_runs(analysis.table, analysis.ratios)
    assert table.drop(columns="runs").equals(analysis.table)
    rows = table.set_index(["method", "size", "profile"])["runs"]
    assert (
        rows["gram", "tiny", "core+biology"] == "run-gram-tiny-0, run-gram-tiny-1, run-gram-tiny-2"
    )
    assert rows["gram", "tiny", "mean"] == rows["gram", "tiny", "core"]
    assert rows["baseline", "tiny", "mean"] == rows["baseline", "tiny", "all"] != ""


def test_many_runs_are_counted():
    analysis = analysed()
    ratios = analysis.ratios.assign(
        run_id=[f"run-{place}" for place in range(len(analysis.ratios))]
    )
    rows = with_runs(analysis.table, ratios).set_index(["method", "size", "profile"])["runs"]
    assert rows["gram", "tiny", "core"].endswith(" and 3 more")  # three seeds, three domains


def test_without_run_ids_the_column_is_empty():
    analysis = analyse(StudyLosses(evaluations().drop(columns="run_id"), curves()))
    assert set(with_runs(analysis.table, analysis.ratios)["runs"]) == {""}


def test_with_one_auxiliary_domain_the_mean_names_the_runs_of_all():
    one = evaluations().drop(columns="loss/chemistry")
    one = one[one["profile"].isin(["core", "all"])]
    one = one.assign(
        retained=one["profile"].map({"core": "", "all": "biology"}),
        run_id=one["run_id"] + one["profile"],
    )
    points = curves()
    analysis = analyse(StudyLosses(one, points[points["domain"] != "chemistry"]))
    rows = with_runs(analysis.table, analysis.ratios).set_index(["method", "size", "profile"])[
        "runs"
    ]
    assert (
        rows["gram", "tiny", "mean"].count("core") == rows["gram", "tiny", "mean"].count("all") == 3
    )
