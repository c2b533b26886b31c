"""A method has one label wherever results are read, and its id where it is typed or stored."""

import re

from gram_platform.analysis.tables import StudyLosses, analyse, table_csv
from gram_platform.pages.results.results import brief_results, format_table
from tests.study_frames import curves, evaluations, study_of

ID = re.compile(r"\bgram\b")


def test_tables_of_results_show_labels_and_files_ids():
    nodes = evaluations().assign(kind="evaluation", status="complete", error="")
    study = study_of(analyse(StudyLosses(evaluations(), curves())), curves(), nodes)
    table = study.analysis.table
    assert not ID.search(text := format_table(table))
    assert re.search(r"^GRAM ", text, re.MULTILINE)
    for is_wide in (True, False):
        for frame in brief_results(study.record, study, is_wide).tables.values():
            assert "GRAM" in set(frame["method"])
            assert "gram" not in set(frame["method"])
    assert {row.split(",")[0] for row in table_csv(table).splitlines()[1:]} == {
        "baseline",
        "gram",
        "filtering",
    }
