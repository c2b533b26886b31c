"""Says what went wrong in a study: nodes without a result, poor fits, a unit that is off."""

from collections import Counter
from collections.abc import Mapping

from gram_platform.analysis.calibration import FITS, NOT_KNOWN, UnitError, errors_by_class
from gram_platform.config import State
from gram_platform.pages.report.page import Section, render
from gram_platform.pages.report.sections import CURVES, MISSING, RUNS
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.paper.claims import ABOVE, BELOW

NOT_BEGUN = "not begun"
# By class; retain stands for all of auxiliary domains.
UNIT_WORDS = {"core": "core", "retain": "auxiliary domains"}
BESIDES = "Intervals over seeds do not contain this; claims add it in quadrature."
MEASURE = "experiments/calibration.py measures it in a study's storage"


def warning_sections(study: Results, about_unit: str = "") -> list[Section]:
    """Lists what went wrong in one short section, `about_unit` of the unit; [] if nothing did."""
    warnings = [
        (
            _lacking(study),
            MISSING if len(study.analysis.missing) else RUNS if len(study.runs) else "",
        )
    ]
    warnings += [(_poor_fits(study), CURVES), (about_unit, "")]
    found = [(text, place) for text, place in warnings if text]
    title, markup = "What went wrong", render("warnings.html", warnings=found)
    return [Section(title, markup=markup, is_warning=True)] if found else []


def terminal_warning(study: Results) -> str:
    """Says beside the tables of a log or a terminal how rough their compute ratios are; "" if
    nothing is known."""
    return " ".join(filter(None, (_poor_fits(study), unit_warning(study.record))))


def _lacking(study: Results) -> str:
    """Counts the nodes without a result, and the values that tables lack; "" for none."""
    runs, num_missing, parts = study.runs, len(study.analysis.missing), []
    begun = set(runs.get("id", ()))
    counts = Counter(runs.get("status", ()))
    counts[NOT_BEGUN] = len(study.record.ids - begun)
    total = counts.total()
    lacking = {
        state: number for state, number in counts.items() if number and state != State.COMPLETE
    }
    if lacking:
        states = ", ".join(f"{number} {state}" for state, number in lacking.items())
        parts.append(
            f"{sum(lacking.values())} of {total} nodes had no result when this page was written"
            f" ({states})."
        )
    if num_missing:
        parts.append(f"Tables and figures lack {num_missing} value{'s' * (num_missing > 1)}.")
    if lacking:
        parts.append(
            f"Submit the study again to execute them; gram report {study.record.name} writes the"
            " page again."
        )
    return " ".join(parts)


def _poor_fits(study: Results) -> str:
    """Says how many curves fit poorly, and what their residual is beside the margins of claims."""
    fits = study.analysis.fits
    poor = fits[fits["poor"].astype(bool)]
    if poor.empty:
        return ""
    low, high = poor["step_rms"].min(), poor["step_rms"].max()
    text = (
        f"{len(poor)} of {len(fits)} learning curves fit poorly: compute ratios on them are rough."
        " Measured losses "
    )
    text += f"lie {low:.1%} to {high:.1%} of the steps off the fitted curve (root mean square)"
    exceeded = [f"{margin:.2f}" for margin in (BELOW, ABOVE) if high > margin]
    if len(study.claims) and exceeded:
        text += (
            f", while the margins of claims are {BELOW:.2f} and {ABOVE:.2f} of a compute ratio: an"
            " error of that size can turn a verdict"
        )
    return f"{text}."


def unit_error(record: StudyRecord, size: str, name: str) -> UnitError:
    """Returns the unit's errors at a size for one of CLASSES; NOT_KNOWN if nobody measured them."""
    return errors_by_class(record.unit_errors).get((size, name), NOT_KNOWN)


def unit_warning(record: StudyRecord) -> str:
    """Says by how much compute ratios of our runs may be off; "" if by less than FITS everywhere,
    or not ours."""
    if not record.preset:
        return ""
    of_size = {
        size: {words: unit_error(record, size, name) for name, words in UNIT_WORDS.items()}
        for size in record.sizes
    }
    known = {
        size: {k: e for k, e in errors.items() if e is not NOT_KNOWN}
        for size, errors in of_size.items()
    }
    wrong = {
        size: errors
        for size, errors in known.items()
        if any(max(error) >= FITS for error in errors.values())
    }
    unknown = [
        _unknown(size, errors) for size, errors in known.items() if len(errors) < len(UNIT_WORDS)
    ]
    parts = []
    if wrong:
        measured = dict.fromkeys(
            row["measured_on"] for row in record.unit_errors if row["size"] in wrong
        )
        sizes = "; ".join(_sentence(size, errors) for size, errors in wrong.items())
        place = f"root mean square, measured on {' and '.join(measured)}"
        parts.append(f"The unit of compute ratios may be off: {sizes} ({place}). {BESIDES}")
    if unknown:
        parts.append(f"The unit is not calibrated at {', '.join(unknown)}: {MEASURE}.")
    return " ".join(parts)


def _sentence(size: str, errors: Mapping[str, UnitError]) -> str:
    ratios = " and ".join(
        f"of {words} by \u00b1{error.ratio:.2f}" for words, error in errors.items()
    )
    differences = " and ".join(f"\u00b1{error.difference:.2f}" for error in errors.values())
    return f"at {size} a compute ratio {ratios}, a difference of two methods by {differences}"


def _unknown(size: str, known: Mapping[str, UnitError]) -> str:
    return (
        f"{size} for {' and '.join(words for words in UNIT_WORDS.values() if words not in known)}"
        if known
        else size
    )
