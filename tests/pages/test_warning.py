"""Checks what a report says first: the nodes without a result, and the fits on which ratios are
rough."""

import re
from dataclasses import replace

from gram_platform.pages.report.answers import headline_rows, limits_section, warning_sections
from gram_platform.pages.results.record import Results
from gram_platform.pages.results.results import brief_results, summary_text
from tests.pages.test_report import runs_frame
from tests.study_frames import analysed, curves, study_of


def test_what_went_wrong_comes_first_and_is_absent_if_nothing_did():
    analysis, runs = analysed(), runs_frame()
    assert warning_sections(study_of(analysis, curves(), runs.assign(status="complete"))) == []
    (failed,) = warning_sections(study_of(analysis, curves(), runs))
    assert re.search(r"1 of 27 .*\(1 failed\)", failed.text)
    entries = ({"id": "0123456789ab", "kind": "run", "tags": {"method": "gram"}},)
    (absent,) = warning_sections(study_of(analysis, curves(), runs, entries=entries))
    assert re.search(r"2 of 28 .*\(1 failed, 1 not begun\)", absent.text)


def limits_of(study: Results) -> str:
    return " ".join(limits_section(study, headline_rows(study)).table.to_numpy().ravel())


def test_fits_worse_than_the_published_ones_are_counted_beside_them():
    analysis, runs = analysed(), runs_frame().assign(status="complete")
    fits = analysis.fits.assign(step_rms=0.7)
    assert "%" not in limits_of(study_of(replace(analysis, fits=fits), curves(), runs))
    is_first = fits.index == fits.index[0]
    fits = fits.assign(poor=is_first, step_rms=fits["step_rms"].mask(is_first, 0.84))
    study = study_of(replace(analysis, fits=fits), curves(), runs)
    for number in (f"1 of {len(fits)}", "84%", "18% to 71%"):
        assert number in limits_of(study)
        assert number in summary_text(study.record, study)
        assert number in brief_results(study.record, study, is_wide=False).warning
