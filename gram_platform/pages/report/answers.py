"""Answers a study's question in sentences. Reports missing values and errors of compute ratios."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from gram_platform.analysis.calibration import NOT_KNOWN, UnitError, errors_by_class
from gram_platform.analysis.compute_ratio import PUBLISHED_STEP_RMS
from gram_platform.analysis.intervals import ENDS, Interval, widen
from gram_platform.analysis.ratios import ELICITED, MEAN
from gram_platform.analysis.tables import CLASSES, label_methods
from gram_platform.config import State
from gram_platform.config.ladder import CALIBRATED_SIZES
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.study import HIDDEN
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.paper.claims import CLAIMS, IN_TEXTS, Claim
from gram_platform.paper.verdicts import (
    AGREE,
    CANNOT_TELL,
    DISAGREE,
    NO_INTERVAL,
    NOT_MEASURABLE,
    PROFILE,
    UNIT_ERROR,
    UNJUDGED_PRESET,
    margin,
    separation,
)

# By class. A claim about two classes is about the later one.
QUESTIONS = {
    "core": "Is core kept?",
    "retain": "Is the retained domain kept?",
    "forget": "Is the forgotten domain forgotten?",
    ELICITED: "Does it stay forgotten under attack?",
}
ANSWERS = {AGREE: "Yes", DISAGREE: "No", CANNOT_TELL: "Cannot tell", "": "Not judged"}
ANSWERS |= {NOT_MEASURABLE: "Not measurable here"}
FIRST = ("gram", "filtering")


def answer_study(study: Results) -> list[str]:
    """Returns a text that names methods, size and profile, then an answer for each class.

    Classes without claims have no answer. If the paper makes no claims about these numbers, the
    only answer is a list of the first method's compute ratios. If there are no ratios, returns [].
    """
    main = headline_rows(study)
    if main.empty:
        return []
    first, groups = main.iloc[0], {name: [] for name in CLASSES}
    for claim, row in _claims_here(study, main):
        name = max((claim.left.name, claim.right.name), key=CLASSES.index)
        over = ", mean over the profiles" * (row[PROFILE] == MEAN != first["profile"])
        groups[name].append((row["verdict"], _compare(claim, row) + over))
    sentences = []
    for name, claims in groups.items():
        if claims:
            verdicts, facts = zip(*claims, strict=True)
            sentences.append(f"{QUESTIONS[name]} {_answer(verdicts)}: {'; '.join(facts)}.")
    if not sentences or study.record.compare_with not in CLAIMS:
        texts = {name: ratio_text(study, first, name) for name in CLASSES}
        ratios = ", ".join(f"{name} {text}" for name, text in texts.items() if text)
        sentences.insert(0, f"{method_style(first['method']).label}: {ratios}.")
    return [_describe_place(study, main), *sentences]


def _describe_place(study: Results, main: pd.DataFrame) -> str:
    first, varies = main.iloc[0], study.record.varies.replace("_", " ")
    seeds = zip(label_methods(main)["method"], main["num_seeds"], strict=True)
    methods = " and ".join(f"{label} ({n} seed{'s' * (n != 1)})" for label, n in seeds)
    at = f"{methods} at {first['size']}, profile {first['profile']}"
    at += f", {varies} {first[VARIANT]}" * bool(varies)
    if main[[f"{name}_low" for name in CLASSES]].isna().all(axis=None):
        return f"{at}."
    is_known = not math.isnan(unit_error(study.record, first["size"], "core").ratio)
    errors = "with every error" if is_known else "over seeds alone"
    return f"{at}. Each \u00b1 is a 90% interval {errors}."


def _claims_here(study: Results, main: pd.DataFrame) -> Iterator[tuple[Claim, Mapping]]:
    first, methods = main.iloc[0], set(main["method"])
    separations = (separation(method, first["size"]) for method in methods)
    claims = {claim.text: claim for claim in CLAIMS.get(study.record.compare_with, separations)}
    for row in study.claims.to_dict("records"):
        claim = claims.get(row["claim"])
        here = all(row.get(name) in (None, "", first[name]) for name in ("size", VARIANT))
        is_ratio = claim and claim.left.name in CLASSES
        if is_ratio and here and len({(side.size, side.variant) for side in claim.terms}) == 1:
            compared = {side.method for side in claim.terms}
            if first["method"] in compared <= methods and not claim.left.less:
                yield claim, row


def _answer(verdicts: tuple[str, ...]) -> str:
    kinds = {"" if verdict.endswith(NO_INTERVAL) else verdict for verdict in verdicts}
    if len(kinds) == 1:
        return ANSWERS[kinds.pop()]
    return "In part" if AGREE in kinds else ANSWERS[DISAGREE if DISAGREE in kinds else CANNOT_TELL]


def _compare(claim: Claim, row: Mapping[str, Any]) -> str:
    sides = claim.left, claim.right
    name, other = (IN_TEXTS.get(side.name, side.name) for side in sides)
    whose, others = (f"{method_style(side.method).label}'s" for side in sides)
    other = others if claim.left.name == claim.right.name else f"its {other}"
    interval = Interval(row["difference"], row["low"], row["high"])
    number = error_text(interval, row[UNIT_ERROR]).removeprefix("-")
    way = "above" if interval.mean >= 0.0 else "below"
    allowed = margin(claim.within)
    limit = f" (margin {allowed:.2f})" * math.isfinite(allowed)
    return f"{whose} {name} is {number} {way} {other}{limit}"


def ratio_text(study: Results, row: Mapping[str, Any], name: str) -> str:
    interval = Interval(*(row[name + end] for end in ENDS))
    return error_text(interval, unit_error(study.record, row["size"], name).ratio)


def error_text(interval: Interval, unit: float) -> str:
    """Formats a mean and its error: "0.93 ± 0.05", "0.93" without an interval, or "" for NaN.

    The error is the root of the sum of two squares: the interval's half-width, and the error of the
    unit (`unit`).
    """
    if math.isnan(interval.mean):
        return ""
    if math.isnan(interval.low):
        return f"{interval.mean:.2f}"
    wide = widen(interval, unit)
    return f"{wide.mean:.2f} \u00b1 {(wide.high - wide.low) / 2.0:.2f}"


def headline_rows(study: Results) -> pd.DataFrame:
    """Selects the rows of the two main methods at the main profile, for one size and variant.

    Chooses size and variant by these preferences, in this order: both methods have ratios, both
    have intervals, the size is the largest, the variant is the last.
    """
    table = study.table if VARIANT in study.table else study.table.assign(**{VARIANT: ""})
    methods = [method for method in dict.fromkeys(table["method"]) if method not in HIDDEN]
    methods = list(dict.fromkeys([*(m for m in FIRST if m in methods), *methods]))[:2]
    variants = list(dict.fromkeys(table[VARIANT]))
    rows = table[(table["profile"] == study.main_profile) & table["method"].isin(methods)]
    rows = rows[rows[list(CLASSES)].notna().any(axis="columns")]
    places = dict(iter(rows.groupby(["size", VARIANT], sort=False)))

    def rank(place: tuple[str, str]) -> tuple:
        here, (size, variant) = places[place], place
        num_sure = here[[f"{name}_low" for name in CLASSES]].notna().any(axis="columns").sum()
        num_parameters = study.record.parameters.get(size, 0)
        return len(here), num_sure, num_parameters, variants.index(variant)

    rows = places[max(places, key=rank)] if places else rows
    return rows.sort_values("method", key=lambda names: names.map(methods.index), kind="stable")


NOT_BEGUN = "not begun"
# The unit has the same error in all classes of auxiliary domains.
UNIT_CLASSES = ("core", "retain")
# The flags of a command that choose its text and its storage.
OF_TEXT = re.compile(r" --(?:corpus|core-label|storage)[ =](?:'[^']*'|\S+)")


def warning_sections(study: Results) -> list[Section]:
    """Returns [a section that counts missing results and values].

    If none is missing, returns [].
    """
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
    text = " ".join(filter(None, parts))
    return [Section("Not finished", text, is_warning=True)] if text else []


def terminal_warning(study: Results) -> str:
    """Returns warnings about poor fits and the unit's error. If there are none, returns ""."""
    return " ".join(filter(None, (_poor_fits(study), unit_warning(study.record))))


def limits_section(study: Results, main: pd.DataFrame) -> Section:
    """Tabulates three errors of compute ratios: from seeds, from the unit and from fitted curves.

    The error from seeds is the largest half-width of an interval in `main`. The error of the unit
    comes from `analysis.calibration`.
    """
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
    """States the largest error of the unit (the compute ratio) over all sizes.

    For sizes with an unknown error, says how to measure it. For numbers measured elsewhere and for
    UNJUDGED_PRESET, returns "".
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
