"""Says what went wrong in a study: nodes without a result, poor fits, errors of the unit."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from gram_platform.analysis.calibration import FITS, NOT_KNOWN, UnitError, errors_by_class
from gram_platform.analysis.compute_ratio import PUBLISHED_STEP_RMS
from gram_platform.config import State
from gram_platform.config.ladder import CALIBRATED_SIZES
from gram_platform.pages.report.page import Section, render
from gram_platform.pages.report.sections import CURVES, MISSING, RUNS
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.paper.verdicts import UNJUDGED_PRESET

NOT_BEGUN = "not begun"
# By class. The unit has the same error in all classes of auxiliary domains.
UNIT_WORDS = {"core": "core", "retain": "auxiliary domains"}
BESIDES = "Intervals over seeds do not contain this; claims add it in quadrature."


def warning_sections(study: Results, about_unit: str = "") -> list[Section]:
    """Lists what went wrong, with `about_unit`, in one section; [] if nothing did."""
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
    """Says for a log or a terminal how rough compute ratios are; "" if nothing is known."""
    return " ".join(filter(None, (_poor_fits(study), unit_warning(study.record))))


def _lacking(study: Results) -> str:
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
    fits = study.analysis.fits
    poor = fits[fits["poor"].astype(bool)]
    if poor.empty:
        return ""
    ours, theirs = (
        f"{low:.0%} to {high:.0%}"
        for low, high in ((poor["step_rms"].min(), poor["step_rms"].max()), PUBLISHED_STEP_RMS)
    )
    return (
        f"{len(poor)} of {len(fits)} learning curves fit worse than the published ones: compute"
        f" ratios on them are rough. Measured losses lie {ours} of the steps off the fitted curve"
        f" (root mean square), published ones {theirs}."
    )


def unit_error(record: StudyRecord, size: str, name: str) -> UnitError:
    return errors_by_class(record.unit_errors).get((size, name), NOT_KNOWN)


def unit_warning(record: StudyRecord) -> str:
    """Says by how much compute ratios of our runs may be off.

    Returns "" if this is less than FITS everywhere, if the runs are not ours, or if the preset is
    not judged.
    """
    if record.preset in ("", UNJUDGED_PRESET):
        return ""
    of_size = {size: [unit_error(record, size, n) for n in UNIT_WORDS] for size in record.sizes}
    unknown = [size for size, errors in of_size.items() if NOT_KNOWN in errors]
    wrong = {
        size: errors
        for size, errors in of_size.items()
        if size not in unknown and any(max(error) >= FITS for error in errors)
    }
    parts = []
    if wrong:
        measured = dict.fromkeys(
            row["measured_on"] for row in record.unit_errors if row["size"] in wrong
        )
        sizes = "; ".join(_sentence(size, errors) for size, errors in wrong.items())
        place = f"90% intervals, measured on {' and '.join(measured)}"
        parts.append(f"The unit of compute ratios may be off: {sizes} ({place}). {BESIDES}")
    if unknown:
        parts.append(
            f"The unit is not calibrated at {', '.join(unknown)}, so claims there have no verdict."
        )
        parts += _commands(record.preset, unknown)
    return " ".join(parts)


def _commands(preset: str, sizes: Sequence[str]) -> list[str]:
    """Names the commands that calibrate sizes, of the same preset where it has the size."""
    found = defaultdict(list)
    for size in sizes:
        owners = [name for name, declared in CALIBRATED_SIZES.items() if size in declared]
        if owners:
            found[preset if preset in owners else owners[0]].append(size)
    return [
        "On this study's corpus and storage it is measured by gram run calibration --preset"
        f" {name} --sizes {' '.join(of_preset)} --seeds 3"
        for name, of_preset in found.items()
    ]


def _sentence(size: str, errors: Sequence[UnitError]) -> str:
    words = zip(UNIT_WORDS.values(), errors, strict=True)
    ratios = " and ".join(f"of {word} by \u00b1{error.ratio:.2f}" for word, error in words)
    differences = " and ".join(f"\u00b1{error.difference:.2f}" for error in errors)
    return f"at {size} a compute ratio {ratios}, a difference of two methods by {differences}"
