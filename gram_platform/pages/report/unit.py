"""Says how far the unit of a study's compute ratios may be off: above and beside the main numbers, in the terminal."""

from gram_platform.analysis.unit_error import FITS, NOT_KNOWN, UnitError, errors_by_class
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import StudyRecord

SHOWN = ("core", "retain")  # retain stands for all classes of auxiliary domains
BESIDES = "Intervals over seeds do not contain this; claims add it in quadrature."
MEASURE = "experiments/calibration.py measures it in a study's storage"


def unit_error(record: StudyRecord, size: str, name: str) -> UnitError:
    """Returns the errors of the unit at a size for one of CLASSES, NOT_KNOWN if nobody measured them."""
    return errors_by_class(record.unit_errors).get((size, name), NOT_KNOWN)


def unit_warning(record: StudyRecord) -> str:
    """Says by how much compute ratios of our runs may be off; "" if by less than FITS everywhere, or not ours."""
    if not record.preset:
        return ""
    of_size = {size: [unit_error(record, size, name) for name in SHOWN] for size in record.sizes}
    wrong = {size: errors for size, errors in of_size.items() if any(error.ratio >= FITS for error in errors)}
    unknown = [size for size, errors in of_size.items() if NOT_KNOWN in errors]
    parts = []
    if wrong:
        measured = dict.fromkeys(row["measured_on"] for row in record.unit_errors if row["size"] in wrong)
        sizes = "; ".join(_sentence(size, *errors) for size, errors in wrong.items())
        parts.append(
            f"One unit may be off: {sizes} (root mean square, measured on {' and '.join(measured)}). {BESIDES}"
        )
    if unknown:
        parts.append(f"The unit is not calibrated at {', '.join(unknown)}: {MEASURE}.")
    return " ".join(parts)


def _sentence(size: str, core: UnitError, auxiliary: UnitError) -> str:
    ratios, differences = ([f"\u00b1{number:.2f}" for number in pair] for pair in zip(core, auxiliary, strict=True))
    of_one = f"at {size} a compute ratio of core by {ratios[0]} and of auxiliary domains by {ratios[1]}"
    return f"{of_one}, a difference of two methods by {differences[0]} and {differences[1]}"


def unit_sections(record: StudyRecord) -> list[Section]:
    """Warns above the main numbers; [] if there is nothing to warn of."""
    text = unit_warning(record)
    return [Section("The unit", text, is_warning=True)] if text else []
