"""Checks how pages and the terminal name the error of the unit."""

import json
import math
import re
from dataclasses import replace

import pytest

from gram_platform.analysis.calibration import errors_by_class
from gram_platform.analysis.tables import StudyLosses, analyse
from gram_platform.cli.run import OURS, find_study
from gram_platform.config import LOSSES
from gram_platform.pages.report.answers import unit_warning
from gram_platform.pages.report.claims import claim_sections
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.sections import report_sections, study_page
from gram_platform.pages.results.record import Results, record_from_plain
from gram_platform.pages.results.results import (
    brief_results,
    count_verdicts,
    judge_study,
    summary_text,
)
from gram_platform.paper.verdicts import TOO_LITTLE, UNJUDGED_PRESET
from gram_platform.studies.library import calibration
from gram_platform.studies.searches.definition import Search
from tests.pages.test_report import runs_frame
from tests.refused import refused
from tests.study_frames import curves, evaluations, study_of
from tests.submitted import plan_of, study_plan


def rows(size: str, core: float, auxiliary: float) -> tuple[dict, ...]:
    numbers = {"size": size, "difference": 0.02, "measured_on": "stories, 0.28M"}
    return tuple(
        {**numbers, "class": name, "ratio": ratio}
        for name, ratio in (("core", core), ("auxiliary", auxiliary))
    )


def study(*errors: dict, preset: str = "demo") -> Results:
    """A study of the smallest planted size whose unit has these errors, with its claims."""
    analysis = analyse(StudyLosses(evaluations(("tiny",)), curves(("tiny",))))
    about = {
        "sizes": ("tiny",),
        "params": {"preset": preset} if preset else {},
        "unit_errors": errors,
    }
    found = study_of(analysis, curves(("tiny",)), runs_frame(), **about)
    return study_of(
        analysis, found.curves, found.runs, judge_study(found.record, analysis), **about
    )


RATIO = errors_by_class(rows("1", 1.0, 1.0))["1", "core"].ratio
DIFFERENCE = errors_by_class(rows("1", 1.0, 1.0))["1", "core"].difference / 0.02


def pm(number: float) -> str:
    return f"\u00b1{number:.2f}"


def lead(found: Results) -> dict[str, Section]:
    return {section.title: section for section in report_sections(found)[0]}


def limit(found: Results, error_of: str) -> str:
    """What the report's table says of one source of error."""
    table = lead(found)["What limits these numbers"].table.set_index("error")
    assert list(table.index) == ["seeds", "unit", "fits"]
    return table.loc[error_of, "how large"]


def test_the_error_of_the_unit_is_in_the_limits_the_tiles_and_the_terminal():
    found = study(*rows("tiny", 0.07, 0.11))
    text, glance = limit(found, "unit"), lead(found)["At a glance"]
    of_core, of_others = pm(0.07 * RATIO), pm(0.11 * RATIO)
    assert re.search(f"tiny: {of_core} .*core, {of_others} .*auxiliary", text)
    assert pm(0.02 * DIFFERENCE) in text
    assert of_others in unit_warning(found.record)
    assert unit_warning(found.record) == lead(found)["What limits these numbers"].text
    assert summary_text(found.record, found).endswith(unit_warning(found.record))
    shown = re.findall(r"<small>(.*?)</small>", glance.markup)
    assert [text.rpartition(", ")[2] for text in shown[:3]] == [
        f"unit {number}" for number in (of_core, of_others, of_others)
    ]
    halves = [float(text) for text in re.findall(r"seeds \u00b1([\d.]+)", glance.markup)]
    whole = [float(text) for text in re.findall(r"<dd>[\d.]+ \u00b1 ([\d.]+)", glance.markup)]
    units = [0.07 * RATIO, 0.11 * RATIO, 0.11 * RATIO] * 2
    assert whole == pytest.approx([*map(math.hypot, halves, units)], abs=0.011)
    # Retain and forget: .11 twice.
    twice = round(0.11 * RATIO * 2**0.5, 4)
    assert found.claims["unit_error"].round(4).unique().tolist() == [twice]


def test_an_unknown_unit_leaves_no_verdict_and_names_the_command_that_measures_it():
    found = study()
    assert "tiny" in unit_warning(found.record)
    assert "tiny" in limit(found, "unit")
    assert "unit \u00b1" not in lead(found)["At a glance"].markup
    assert found.claims["unit_error"].isna().all()
    assert set(found.claims["verdict"]) == set(found.claims["holm_verdict"]) == {""}
    assert found.claims["difference"].notna().all()
    assert count_verdicts(found.claims) == {}
    one_class = study(rows("tiny", 0.07, 0.11)[0])
    assert set(one_class.claims["verdict"]) == {""}
    assert "nan" not in unit_warning(one_class.record)


def named_commands(preset: str, *sizes: str) -> list[list[str]]:
    """The flags of the commands that a study of this preset and these sizes names."""
    text = unit_warning(replace(study(preset=preset).record, sizes=sizes))
    commands = re.findall(r"gram run calibration (.*?--seeds \d+)", text)
    return [command.split() for command in commands]


@pytest.mark.parametrize(
    ("preset", "sizes", "named"),
    [
        ("as_run", "50M", {"paper": "50M"}),
        ("paper", "26M", {"stories": "26M"}),
        ("study", "3M", {"study": "3M"}),
        ("gpu", "3M 10M", {"gpu": "3M 10M"}),
        ("demo", "0.1M 0.15M 0.28M", {"study": "0.1M", "demo": "0.15M 0.28M"}),
    ],
)
def test_a_size_is_calibrated_by_the_preset_of_its_name_or_the_first_that_has_it(
    preset, sizes, named
):
    found = [
        study_plan(calibration.STUDY, flags) for flags in named_commands(preset, *sizes.split())
    ]
    assert {part.preset_name: " ".join(part.choice.sizes) for part in found} == named


def test_every_command_that_a_study_of_ours_can_name_passes_its_flags_as_a_dry_run():
    declared = [one for name in OURS if not isinstance(one := find_study(name), Search)]
    judged_presets = {
        (name, tuple(preset.sizes))
        for one in declared
        for name, preset in one.presets.items()
        if preset.measurement.name == LOSSES and name != UNJUDGED_PRESET
    }
    for preset, sizes in judged_presets:
        calibrated = []
        for flags in named_commands(preset, *sizes):
            plan = plan_of(calibration.STUDY, [*flags, "--dry-run"])
            assert plan.dry_run
            # Rated baselines need several seeds.
            assert plan.studies[0].choice.seeds > 1
            calibrated += plan.studies[0].choice.sizes
        assert sorted(calibrated) == sorted(sizes)


def test_a_size_of_a_preset_in_a_file_has_no_command():
    assert named_commands("demo", "mine") == []
    (command,) = named_commands("demo", "mine", "0.28M")
    assert "mine" not in command


def test_the_smoke_preset_says_why_it_has_no_verdicts():
    found = study(*rows("tiny", 0.01, 0.01), preset="smoke")
    assert set(found.claims["verdict"]) == set(found.claims["holm_verdict"]) == {""}
    assert found.claims["difference"].notna().all()
    (section,) = claim_sections(found)
    assert section.text == TOO_LITTLE
    assert section.table is None
    assert TOO_LITTLE in summary_text(found.record, found)
    brief = brief_results(found.record, found, is_wide=True)
    assert (brief.text, brief.verdicts) == (TOO_LITTLE, {})
    assert unit_warning(found.record) == ""
    page = study_page(found.record, found, None)
    assert page.answers[-1] == TOO_LITTLE
    assert "confirmed" not in page.html()


def test_numbers_of_others_are_judged_over_seeds_alone():
    """Nobody rated shorter baselines of theirs, so no error of ours is theirs."""
    found = study(preset="")
    assert unit_warning(found.record) == ""
    assert found.claims["unit_error"].isna().all()
    assert set(found.claims["verdict"]) == {"agree"}
    assert study(*rows("tiny", 9.0, 9.0), preset="").claims.equals(found.claims)


def test_a_record_keeps_its_errors():
    record = study(*rows("tiny", 0.07, 0.11)).record
    plain = json.loads(record.to_json())
    assert record_from_plain(plain).unit_errors == record.unit_errors
    with refused("unit_errors[0]"):
        record_from_plain({**plain, "unit_errors": [{"size": "tiny"}]})
