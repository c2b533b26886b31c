"""Says what went wrong in a study, before its numbers: nodes without a result, poor fits, a unit that is off."""

from collections import Counter

from gram_platform.config import State
from gram_platform.pages.report.page import Section, render
from gram_platform.pages.report.sections import CURVES, MISSING, RUNS
from gram_platform.pages.results.record import Results
from gram_platform.paper.claims import ABOVE, BELOW

NOT_BEGUN = "not begun"


def warning_sections(study: Results, about_unit: str = "") -> list[Section]:
    """Lists what went wrong in one short section, `about_unit` of the unit; [] if nothing did."""
    warnings = [(_lacking(study), MISSING if len(study.analysis.missing) else RUNS if len(study.runs) else "")]
    warnings += [(_poor_fits(study), CURVES), (about_unit, "")]
    found = [(text, place) for text, place in warnings if text]
    title, markup = "What went wrong", render("warnings.html", warnings=found)
    return [Section(title, markup=markup, is_warning=True)] if found else []


def _lacking(study: Results) -> str:
    """Counts the nodes without a result, and the values that tables lack; "" if nothing is lacking."""
    runs, num_missing, parts = study.runs, len(study.analysis.missing), []
    begun = set(runs.get("id", ()))
    counts = Counter(runs.get("status", ()))
    counts[NOT_BEGUN] = len(study.record.ids - begun)
    total = counts.total()
    lacking = {state: number for state, number in counts.items() if number and state != State.COMPLETE}
    if lacking:
        states = ", ".join(f"{number} {state}" for state, number in lacking.items())
        parts.append(f"{sum(lacking.values())} of {total} nodes had no result when this page was written ({states}).")
    if num_missing:
        parts.append(f"Tables and figures lack {num_missing} value{'s' * (num_missing > 1)}.")
    if lacking:
        parts.append(f"Submit the study again to execute them; gram report {study.record.name} writes the page again.")
    return " ".join(parts)


def _poor_fits(study: Results) -> str:
    """Says how many curves fit poorly, and what their residual is beside the margins of claims."""
    fits = study.analysis.fits
    poor = fits[fits["poor"].astype(bool)]
    if poor.empty:
        return ""
    low, high = poor["step_rms"].min(), poor["step_rms"].max()
    text = f"{len(poor)} of {len(fits)} learning curves fit poorly: compute ratios on them are rough. Measured losses "
    text += f"lie {low:.1%} to {high:.1%} of the steps off the fitted curve (root mean square)"
    exceeded = [f"{margin:.2f}" for margin in (BELOW, ABOVE) if high > margin]
    if len(study.claims) and exceeded:
        text += f", while the margins of claims are {BELOW:.2f} and {ABOVE:.2f} of a compute ratio: an error of "
        text += "that size can turn a verdict"
    return f"{text}."
