"""Says how far the unit of a study's compute ratios may be off: above and beside the main numbers, in the terminal."""

from collections.abc import Mapping

from gram_platform.analysis.unit_error import FITS, NOT_KNOWN, UnitError, errors_by_class
from gram_platform.pages.results.record import StudyRecord

UNIT_WORDS = {
    "core": "core",
    "retain": "auxiliary domains",
}  # class: words; retain stands for all of auxiliary domains
BESIDES = "Intervals over seeds do not contain this; claims add it in quadrature."
MEASURE = "experiments/calibration.py measures it in a study's storage"


def unit_error(record: StudyRecord, size: str, name: str) -> UnitError:
    """Returns the errors of the unit at a size for one of CLASSES, NOT_KNOWN if nobody measured them."""
    return errors_by_class(record.unit_errors).get((size, name), NOT_KNOWN)


def unit_warning(record: StudyRecord) -> str:
    """Says by how much compute ratios of our runs may be off; "" if by less than FITS everywhere, or not ours."""
    if not record.preset:
        return ""
    of_size = {
        size: {words: unit_error(record, size, name) for name, words in UNIT_WORDS.items()} for size in record.sizes
    }
    known = {size: {k: e for k, e in errors.items() if e != NOT_KNOWN} for size, errors in of_size.items()}
    wrong = {size: errors for size, errors in known.items() if any(max(error) >= FITS for error in errors.values())}
    unknown = [_unknown(size, errors) for size, errors in known.items() if len(errors) < len(UNIT_WORDS)]
    parts = []
    if wrong:
        measured = dict.fromkeys(row["measured_on"] for row in record.unit_errors if row["size"] in wrong)
        sizes = "; ".join(_sentence(size, errors) for size, errors in wrong.items())
        place = f"root mean square, measured on {' and '.join(measured)}"
        parts.append(f"The unit of compute ratios may be off: {sizes} ({place}). {BESIDES}")
    if unknown:
        parts.append(f"The unit is not calibrated at {', '.join(unknown)}: {MEASURE}.")
    return " ".join(parts)


def _sentence(size: str, errors: Mapping[str, UnitError]) -> str:
    ratios = " and ".join(f"of {words} by \u00b1{error.ratio:.2f}" for words, error in errors.items())
    differences = " and ".join(f"\u00b1{error.difference:.2f}" for error in errors.values())
    return f"at {size} a compute ratio {ratios}, a difference of two methods by {differences}"


def _unknown(size: str, known: Mapping[str, UnitError]) -> str:
    return f"{size} for {' and '.join(words for words in UNIT_WORDS.values() if words not in known)}" if known else size
