"""Checks what a report says first: the nodes without a result, and the fits on which ratios are
rough."""

import re
from dataclasses import replace

from gram_platform.analysis.tables import analyse
from gram_platform.pages.report.warning import warning_sections
from gram_platform.pages.results.results import brief_results, summary_text
from gram_platform.paper.verdicts import paper_claims
from tests.pages.test_report import runs_frame
from tests.study_frames import SIZES, analysed, curves, evaluations, study_of


def test_what_went_wrong_comes_first_and_is_absent_if_nothing_did():
    analysis, runs = analysed(), runs_frame()
    assert warning_sections(study_of(analysis, curves(), runs.assign(status="complete"))) == []
    (failed,) = warning_sections(study_of(analysis, curves(), runs))
    assert re.search(r"1 of 27 .*\(1 failed\)", failed.markup)
    assert 'href="#runs"' in failed.markup
    entries = ({"id": "0123456789ab", "kind": "run", "tags": {"method": "gram"}},)
    (absent,) = warning_sections(study_of(analysis, curves(), runs, entries=entries))
    assert re.search(r"2 of 28 .*\(1 failed, 1 not begun\)", absent.markup)


def test_poor_fits_are_counted_beside_the_margins_of_claims():
    """The planted losses follow the fitted form; with every second one 3% higher they do not."""
    rough, is_medium = curves(), curves()["size"] == "medium"
    rough.loc[is_medium, "loss"] *= 1.0 + 0.03 * (
        rough.loc[is_medium, "step"].rank(method="dense") % 2
    )
    analysis = analyse(evaluations(), rough, tuple(SIZES))
    study = study_of(analysis, rough, runs_frame().assign(status="complete"))
    poor = analysis.fits[analysis.fits["poor"]]
    assert set(poor["size"]) == {"medium"}
    (section,) = warning_sections(study)
    assert f"{len(poor)} of {len(analysis.fits)} learning curves" in section.markup
    assert f"{poor['step_rms'].min():.1%} to {poor['step_rms'].max():.1%} of" in section.markup
    assert "margins" not in section.markup
    judged = paper_claims(analysis.per_seed, "scaling")
    (section,) = warning_sections(replace(study, claims=judged))
    assert poor["step_rms"].max() > 0.06
    assert re.search(r"margins .*0\.06 and 0\.10", section.markup)
    first_words = f"{len(poor)} of {len(analysis.fits)} learning curves"
    assert first_words in summary_text(study.record, study)
    assert first_words in brief_results(study.record, study, is_wide=False).warning
