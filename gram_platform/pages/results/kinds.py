"""Lists the kinds of results, one for each measurement: how they are read, printed, written and shown."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from gram_platform.config import LOSSES, SAMPLES, TOKENS
from gram_platform.pages.report import localization, report_footer, samples
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.results.results import Results, read_results, results_sections, summary_text, write_results

AnyResults = Results | localization.TokenResults | samples.SampleResults  # each has `runs` and `source`


class ResultKind(NamedTuple):
    """The functions of one measurement; `results.py` and `report_footer` document their arguments."""

    read: Callable[..., AnyResults | None]
    text: Callable[[StudyRecord, AnyResults], str]
    write: Callable[..., dict[str, str]]
    sections: Callable[[StudyRecord, AnyResults], list[Section]]
    footer: Callable[[pd.DataFrame], str]


RESULT_KINDS = {
    LOSSES: ResultKind(read_results, summary_text, write_results, results_sections, report_footer),
    TOKENS: ResultKind(
        localization.read_tokens,
        localization.tokens_text,
        localization.write_tokens,
        localization.tokens_sections,
        lambda runs: localization.FOOTER,
    ),
    SAMPLES: ResultKind(
        samples.read_samples,
        samples.samples_text,
        samples.write_samples,
        samples.samples_sections,
        lambda runs: samples.FOOTER,
    ),
}


def result_kind(record: StudyRecord) -> ResultKind:
    return RESULT_KINDS[record.measurement]
