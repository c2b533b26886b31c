"""Says what a study's numbers lack: nodes, and how large the errors of seeds, unit and fits are."""

import re
from collections import Counter, defaultdict

import pandas as pd

from gram_platform.analysis.calibration import NOT_KNOWN, UnitError, errors_by_class
from gram_platform.analysis.compute_ratio import PUBLISHED_STEP_RMS
from gram_platform.analysis.tables import CLASSES
from gram_platform.config import State
from gram_platform.config.ladder import CALIBRATED_SIZES
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.paper.verdicts import UNJUDGED_PRESET

NOT_BEGUN = "not begun"
# The unit has the same error in all classes of auxiliary domains.
UNIT_CLASSES = ("core", "retain")
# The flags of a command that choose its text and its storage.
OF_TEXT = re.compile(r" --(?:corpus|core-label|storage)[ =](?:'[^']*'|\S+)")


def warning_sections(study: Results) -> list[Section]:
    """Says which nodes and values are missing; [] if none is."""
    text = _lacking(study)
    return [Section("Not finished", text, is_warning=True)] if text else []


def terminal_warning(study: Results) -> str:
    """Says for a log or a terminal how rough compute ratios are; "" if nothing is known."""
    return " ".join(filter(None, (_poor_fits(study), unit_warning(study.record))))


def limits_section(study: Results, main: pd.DataFrame) -> Section:
    """Tabulates the errors of seeds, unit and fits; `main` has the rows of the main numbers."""
    record = study.record
    halves = pd.Series([half for n in CLASSES for half in main[f"{n}_high"] - main[n]], dtype=float)
    unit = [_describe(size, errors) for size, errors in _unit_by_size(record).items()]
    measured = dict.fromkeys(row["measured_on"] for row in record.unit_errors)
    unit += [f"measured on {' and '.join(measured)}"] * bool(measured)
    seeds = f"up to \u00b1{halves.max():.2f}" if halves.notna().any() else "not known"
    rows = [
        ("seeds", seeds, "every \u00b1, bands, bars, verdicts"),
        ("unit", "; ".join(unit) or "not known", "every \u00b1, verdicts"),
        ("fits", _poor_fits(study) or "as close as the published", "seeds and unit"),
    ]
    table = pd.DataFrame(rows, columns=["error", "how large", "counted in"])
    title = "What limits these numbers"
    return Section(title, unit_warning(record), table=table, table_is_open=True)


def _lacking(study: Results) -> str:
    runs, num_missing = study.runs, len(study.analysis.missing)
    counts = Counter(runs.get("status", ()))
    counts[NOT_BEGUN] = len(study.record.ids - set(runs.get("id", ())))
    states = {state: n for state, n in counts.items() if n and state != State.COMPLETE}
    numbers = ", ".join(f"{number} {state}" for state, number in states.items())
    lacking = f"Tables and figures lack {num_missing} value{'s' * (num_missing > 1)}."
    parts = [
        f"{sum(states.values())} of {counts.total()} nodes had no result when this page was written"
        f" ({numbers})." * bool(states),
        lacking * bool(num_missing),
        f"Submit the study again to execute them; gram report {study.record.name} writes the page"
        " again." * bool(states),
    ]
    return " ".join(filter(None, parts))


def _poor_fits(study: Results) -> str:
    fits = study.analysis.fits
    poor = fits[fits["poor"].astype(bool)]
    if poor.empty:
        return ""
    spans = poor["step_rms"].agg(["min", "max"]), PUBLISHED_STEP_RMS
    ours, theirs = ("{:.0%} to {:.0%}".format(*span) for span in spans)
    return (
        f"{len(poor)} of {len(fits)} learning curves fit worse than the published ones. Losses are"
        f" {ours} of the steps off (root mean square), published ones {theirs}."
    )


def unit_error(record: StudyRecord, size: str, name: str) -> UnitError:
    return errors_by_class(record.unit_errors).get((size, name), NOT_KNOWN)


def unit_warning(record: StudyRecord) -> str:
    """Says by how much compute ratios may be off besides seeds, or how this is measured.

    Returns "" if the runs are not ours, or if the preset is not judged.
    """
    if record.preset in ("", UNJUDGED_PRESET):
        return ""
    of_size, commands = _unit_by_size(record), defaultdict(list)
    known = [e.ratio for errors in of_size.values() for e in errors if e != NOT_KNOWN]
    parts = []
    if known:
        parts.append(
            f"Besides seeds, each compute ratio has an error of up to \u00b1{max(known):.2f}, the"
            " unit's. Verdicts include it, bands do not."
        )
    unknown = [size for size, errors in of_size.items() if NOT_KNOWN in errors]
    if unknown:
        parts.append(f"The unit's error is not known for this text at {', '.join(unknown)}.")
    for size in unknown:
        # The preset that calibrates it, the study's where it has the size.
        owners = [name for name, declared in CALIBRATED_SIZES.items() if size in declared]
        for preset in owners and [record.preset if record.preset in owners else owners[0]]:
            commands[preset].append(size)
    command = record.submissions[-1]["command"] if record.submissions else ""
    of_text = "".join(OF_TEXT.findall(command))
    parts += [
        f"It is measured by gram run calibration{of_text} --preset {name} --sizes {' '.join(sizes)}"
        " --seeds 3"
        for name, sizes in commands.items()
    ]
    return " ".join(parts)


def _unit_by_size(record: StudyRecord) -> dict[str, list[UnitError]]:
    return {size: [unit_error(record, size, n) for n in UNIT_CLASSES] for size in record.sizes}


def _describe(size: str, errors: list[UnitError]) -> str:
    if NOT_KNOWN in errors:
        return f"{size}: not known"
    core, others = (f"\u00b1{error.ratio:.2f}" for error in errors)
    differences = " and ".join(f"\u00b1{error.difference:.2f}" for error in errors)
    return f"{size}: {core} on core, {others} on auxiliary domains; of a difference {differences}"
