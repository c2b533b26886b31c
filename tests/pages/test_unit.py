"""Checks how pages and the terminal name the error of the unit."""

import html
import json
import re

from gram_platform.analysis.tables import analyse
from gram_platform.pages.report.build import report_sections
from gram_platform.pages.report.warning import unit_warning
from gram_platform.pages.results.record import Results, record_from_plain
from gram_platform.pages.results.results import judged, summary_text
from tests.pages.test_report import runs_frame
from tests.refused import refused
from tests.study_frames import curves, evaluations, study_of


def rows(size: str, core: float, auxiliary: float) -> tuple[dict, ...]:
    numbers = {"size": size, "difference": 0.02, "measured_on": "stories, 0.28M"}
    return tuple(
        {**numbers, "class": name, "ratio": ratio}
        for name, ratio in (("core", core), ("auxiliary", auxiliary))
    )


def study(*errors: dict, preset: str = "demo") -> Results:
    """A study of the smallest planted size whose unit has these errors, with its claims."""
    analysis = analyse(evaluations(("tiny",)), curves(("tiny",)))
    about = {
        "sizes": ("tiny",),
        "params": {"preset": preset} if preset else {},
        "unit_errors": errors,
    }
    found = study_of(analysis, curves(("tiny",)), runs_frame(), **about)
    return study_of(analysis, found.curves, found.runs, judged(found.record, analysis), **about)


def test_a_unit_that_is_off_is_warned_of_above_the_main_numbers_and_in_the_terminal():
    found = study(*rows("tiny", 0.07, 0.11))
    first, _, glance = report_sections(found)[:3]
    text = html.unescape(first.markup)
    assert first.is_warning
    assert re.search("tiny .* core .*\u00b10.07.* auxiliary .*\u00b10.11", text)
    assert "\u00b10.02" in text
    assert "stories, 0.28M" in text
    assert unit_warning(found.record) in text
    assert summary_text(found.record, found).endswith(unit_warning(found.record))
    shown = re.findall(r"<small>(.*?)</small>", glance.markup)
    assert [text.rpartition(", ")[2] for text in shown[:3]] == [
        "unit \u00b10.07",
        "unit \u00b10.11",
        "unit \u00b10.11",
    ]
    # Retain and forget: .11 twice.
    assert found.claims["unit_error"].round(4).unique().tolist() == [0.1556]


def test_a_unit_that_fits_is_not_warned_of_but_shown():
    found = study(*rows("tiny", 0.03, 0.04))
    assert unit_warning(found.record) == ""
    warning, _, glance = report_sections(found)[:3]
    assert "unit" not in warning.markup
    assert "unit \u00b10.03" in glance.markup


def test_an_unknown_unit_is_said_to_be_so():
    assert " tiny" in unit_warning(study().record)
    assert "unit \u00b1" not in report_sections(study())[2].markup
    assert study().claims["unit_error"].isna().all()


def test_a_class_that_was_not_measured_is_named_and_has_no_number():
    core, auxiliary = rows("tiny", 0.07, 0.11)
    for row, known, unknown in (
        (core, "core", "auxiliary domains"),
        (auxiliary, "auxiliary domains", "core"),
    ):
        text = unit_warning(study(row).record)
        assert re.search(f"{known} .*\u00b1{row['ratio']:.2f}.*\u00b10.02.* tiny .*{unknown}", text)
        assert "nan" not in text


def test_an_error_of_differences_is_warned_of_too():
    fits = [{**row, "difference": 0.08} for row in rows("tiny", 0.03, 0.04)]
    assert "\u00b10.08" in unit_warning(study(*fits).record)


def test_numbers_of_others_are_not_warned_of():
    assert unit_warning(study(preset="").record) == ""


def test_a_record_keeps_its_errors():
    record = study(*rows("tiny", 0.07, 0.11)).record
    plain = json.loads(record.to_json())
    assert record_from_plain(plain).unit_errors == record.unit_errors
    with refused("unit_errors[0]"):
        record_from_plain({**plain, "unit_errors": [{"size": "tiny"}]})
