"""A method has one label wherever results are read, and its id where it is typed or stored."""

import re

import pytest

from gram_platform.analysis.tables import analyse, table_csv
from gram_platform.methods import METHOD_LABELS, METHODS, method_label
from gram_platform.pages.figures.style import METHOD_STYLES
from gram_platform.pages.results.results import brief_results, format_table
from tests.study_frames import curves, evaluations, study_of

ID = re.compile(r"\bgram\b")


@pytest.fixture(scope="module")
def study():
    analysis = analyse(evaluations(), curves())
    nodes = evaluations().assign(kind="evaluation", status="complete", error="")
    return study_of(analysis, curves(), nodes, title="Sizes", question="Why?")


def test_every_method_has_one_label():
    assert {method: style.label for method, style in METHOD_STYLES.items()} == {m: method_label(m) for m in METHODS}
    assert set(METHOD_LABELS) < set(METHODS)
    assert len({method_label(method).casefold() for method in METHODS}) == len(METHODS)
    assert method_label("of_a_package") == "of_a_package"


def test_tables_of_results_show_labels_and_files_ids(study):
    table = study.analysis.table
    assert not ID.search(text := format_table(table))
    assert re.search(r"^GRAM ", text, re.MULTILINE)
    for is_wide in (True, False):
        for frame in brief_results(study.record, study, is_wide).tables.values():
            assert "GRAM" in set(frame["method"])
            assert "gram" not in set(frame["method"])
    assert {row.split(",")[0] for row in table_csv(table).splitlines()[1:]} == {"baseline", "gram", "filtering"}
