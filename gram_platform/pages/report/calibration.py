"""Reports the calibration study, which measures baselines of known compute ratio."""

from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.calibration import (
    AUXILIARY,
    FIT,
    LOWEST_SHARE,
    UNIT,
    by_class,
    calibration_table,
    fit_errors,
    unit_errors,
)
from gram_platform.analysis.intervals import interval_columns, t_interval
from gram_platform.analysis.tables import frame_text, interval_text, interval_texts, text_frame
from gram_platform.config import CORE
from gram_platform.methods.nodes import VARIANT
from gram_platform.pages.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    Style,
    add_line,
    drop_empty,
    lay_out,
    with_table,
)
from gram_platform.pages.report.answers import warning_sections
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.report.page import HOW_TO_READ, Page, Section, readable_runs, render
from gram_platform.pages.report.sections import curve_sections, missing_sections
from gram_platform.pages.results.record import Results, StudyRecord, study_report
from gram_platform.pages.results.results import Brief, count_verdicts, read_results
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import Frames

SHARES_TEXT = (
    "Compute ratios of finished baselines, by their share of the steps: means over seeds with 90%"
    " t-intervals."
)
STYLES = {
    (UNIT, CORE): Style("core, finished baselines", BLUE, "circle", "solid"),
    (UNIT, AUXILIARY): Style("auxiliary, finished baselines", ORANGE, "square", "solid"),
    (FIT, CORE): Style("core, left-out points", BLUE, "circle-open", "dot"),
    (FIT, AUXILIARY): Style("auxiliary, left-out points", ORANGE, "square-open", "dot"),
}


def read_calibration(
    record: StudyRecord, store: Store, frames: Frames | None = None
) -> Results | None:
    """Adds calibration errors to the result of `read_results`. If there are none, returns None."""
    results = read_results(record, store, frames)
    if results is None:
        return None
    ratios, curves = results.analysis.ratios, results.curves
    reference, points = (frame[frame[VARIANT] == record.unit] for frame in (ratios, curves))
    constant_rate = {}
    for size, run_id in points.groupby("size")["run_id"].first().items():
        optimizer = store.run(run_id).config()["optimizer"]
        constant_rate[size] = optimizer["warmup_fraction"], 1.0 - optimizer["decay_fraction"]
    parts = unit_errors(ratios, curves, record.unit), fit_errors(reference, points, constant_rate)
    errors = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return None if errors.empty else replace(results, errors=errors)


def calibration_text(record: StudyRecord, results: Results) -> str:
    errors, shares = readable_errors(results.errors), share_table(results.errors)
    return f"{frame_text(errors)}\n\n{SHARES_TEXT}\n{frame_text(shares)}"


def brief_calibration(record: StudyRecord, results: Results, is_wide: bool) -> Brief:
    errors, shares = readable_errors(results.errors), share_table(results.errors)
    tables = {"errors": text_frame(errors), "shares of the steps": text_frame(shares)}
    return Brief(tables, count_verdicts(results.claims))


def readable_errors(errors: pd.DataFrame) -> pd.DataFrame:
    table = calibration_table(errors)
    return table.assign(bias=interval_texts(table, "bias")).drop(columns=["bias_low", "bias_high"])


def share_table(errors: pd.DataFrame) -> pd.DataFrame:
    rows: dict[tuple, dict] = {}
    unit = by_class(errors[errors["error_of"] == UNIT])
    for (size, domain), of_class in unit.groupby(["size", "domain"], sort=False):
        for share, cell in of_class.groupby("share"):
            row = rows.setdefault((size, share), {"size": size, "share": round(share, 3)})
            row[domain] = interval_text(*t_interval(cell["compute_ratio"]))
    return pd.DataFrame(list(rows.values()))


def calibration_page(record: StudyRecord, results: Results, tracker: Tracker | None) -> Page:
    sizes = dict.fromkeys(results.errors["size"])
    figures = {f"calibration-{size}": calibration_figure(results.errors, size) for size in sizes}
    errors, shares = readable_errors(results.errors), share_table(results.errors)
    about = render("calibration.html", lowest=LOWEST_SHARE)
    sections = [
        *warning_sections(results),
        Section(HOW_TO_READ, render("calibration_terms.html")),
        Section("Errors", "", drop_empty(figures), table=errors, table_is_open=True, markup=about),
        *missing_sections(results.analysis.missing),
        Section("Shares of the steps", SHARES_TEXT, table=shares, table_is_open=True),
        *curve_sections(results),
        Section("Runs", table=readable_runs(results.runs)),
    ]
    return study_report(record, sections, results.source, tracker, results.claims)


def calibration_figure(errors: pd.DataFrame, size: str) -> go.Figure:
    """Draws the error of compute ratios against the true ratio, for the baselines of one size.

    The true ratio is the share of a full run's steps. Errors are means over seeds with
    90% t-intervals. `errors` has the columns ERROR_COLUMNS. Each (kind of error, domain) that is in
    both STYLES and `errors` has a line.
    """
    of_size, figure, lines = by_class(errors[errors["size"] == size]), go.Figure(), []
    for (error_of, domain), style in STYLES.items():
        cell = of_size[(of_size["error_of"] == error_of) & (of_size["domain"] == domain)]
        rows = [
            {"share": share, **interval_columns("error", of["error"])}
            for share, of in cell.groupby("share")
        ]
        if rows:
            add_line(figure, line := pd.DataFrame(rows), "share", "error", style)
            lines.append(line.assign(series=style.label))
    if lines:
        title, unit = f"Error of the compute ratio, {size}", "compute ratio minus share"
        lay_out(figure, title, "true share of the steps", unit)
        figure.add_hline(y=0.0, line={"color": GREY, "dash": "dot", "width": 1.5})
        with_table(figure, pd.concat(lines))
    return figure


CALIBRATION_PRESENTATION = replace(
    LOSSES_PRESENTATION,
    read=read_calibration,
    text=calibration_text,
    brief=brief_calibration,
    table=lambda record, results: calibration_table(results.errors),
    page=calibration_page,
)
