"""How a study's results are read, said and written, by what it measures."""

from collections.abc import Callable
from typing import NamedTuple

from gram_platform.config import LOSSES, SAMPLES, TOKENS
from gram_platform.pages.report.localization import TokenResults, read_tokens, tokens_text, write_tokens
from gram_platform.pages.report.samples import SampleResults, read_samples, samples_text, write_samples
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.results.results import Results as Capabilities
from gram_platform.pages.results.results import read_results, summary_text, write_results

Results = Capabilities | TokenResults | SampleResults  # each with a `source`


class Outcome(NamedTuple):
    """Three functions with the arguments of those in `results.py`, and their own kind of results."""

    read: Callable
    text: Callable
    write: Callable


OUTCOMES = {
    LOSSES: Outcome(read_results, summary_text, write_results),
    TOKENS: Outcome(read_tokens, tokens_text, write_tokens),
    SAMPLES: Outcome(read_samples, samples_text, write_samples),
}


def outcome_of(record: StudyRecord) -> Outcome:
    return OUTCOMES[record.measurement]
