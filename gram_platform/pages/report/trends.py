"""The section that predicts a study's largest size from the others."""

import pandas as pd

from gram_platform.analysis.text import interval_text
from gram_platform.analysis.trends import trend_table
from gram_platform.pages.figures.scaling import HIDDEN
from gram_platform.pages.report.page import Section
from gram_platform.pages.report.study import StudyReport


def trend_sections(study: StudyReport) -> list[Section]:
    """Core and forget of every method with three sizes or more; none where there is no such method."""
    table = study.table
    shown = table[(table["profile"] == study.shown_profile) & ~table["method"].isin(HIDDEN)]
    found = trend_table(shown, study.parameters)
    if found.empty:
        return []
    text = "The largest size left out, and predicted by a power law in the parameter count through the means of the "
    text += "others (dashed in the figures above), beside what was measured. 90% interval: t, degrees of freedom two "
    text += "fewer than sizes fitted. Two sizes fitted leave none, and it is too narrow where the largest has fewer "
    text += "seeds than the others."
    return [Section("The largest size, predicted from the others", text, table=_readable(found), table_is_open=True)]


def _readable(found: pd.DataFrame) -> pd.DataFrame:
    triples = zip(found["predicted"], found["low"], found["high"], strict=True)
    predicted = [interval_text(*triple) for triple in triples]
    numbers = {name: [f"{value:.3f}" for value in found[name]] for name in ("exponent", "measured")}
    return found.drop(columns=["parameters", "low", "high"]).assign(**numbers, predicted=predicted)
