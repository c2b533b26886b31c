"""Describes a study for its tables and report: its preset, its corpus and what was chosen.

Keeps the pages of earlier submissions of another choice.
"""

import time
from collections.abc import Mapping

import pandas as pd

from gram_platform.analysis.calibration import (
    FILE_COLUMNS,
    measured_errors,
    nearest_errors,
    shipped_errors,
)
from gram_platform.analysis.ratios import MEAN
from gram_platform.config import CORE, State
from gram_platform.corpora.recipe_file import recipe_text
from gram_platform.methods import Setting
from gram_platform.methods.measurements import Calibration
from gram_platform.methods.nodes import BASELINE
from gram_platform.pages.report.calibration import read_calibration
from gram_platform.pages.report.page import REPORT_FILE
from gram_platform.pages.results.record import (
    STUDY_FILE,
    ChosenRuns,
    StudyRecord,
    entries_of,
    readable_record,
)
from gram_platform.store import Folder, Store
from gram_platform.store.data import lost_text
from gram_platform.store.files import HASHES
from gram_platform.store.root import HISTORY
from gram_platform.studies.definition import (
    FAMILIES,
    NOT_REPRODUCED,
    OURS,
    SOURCES,
    preset_params,
    seeds_text,
    shown_place,
)
from gram_platform.studies.plan import StudyPlan


def record_of(part: StudyPlan) -> StudyRecord:
    setting = part.settings[0]
    routing, data = setting.routing, part.data_id
    kinds = dict.fromkeys(each.routing.accumulation for each in part.settings)
    variants = dict.fromkeys(
        names["variant"] for node in part.entries if "variant" in (names := node.names)
    )
    seeds_of, choice = part.preset.seeds, part.choice
    ranges = {size: seeds_of(size, choice.seeds, choice.first_seed) for size in choice.sizes}
    seeds = seeds_text({size: len(found) for size, found in ranges.items()})
    first = next(iter(ranges.values())).start
    facts = (
        f"Preset {part.preset_name}: {FAMILIES[part.preset.family]}.",
        (
            f"Corpus {shown_place(choice.corpus)} (data {data}), {seeds}"
            f" seed{'s' * (seeds != '1')} from {first}."
        ),
        (
            f"Routing: p_as {routing.p_aux_spread}, p_cr {routing.p_core_robust}, p_af"
            f" {_factors(setting)}, {' or '.join(kinds)} accumulation; compute"
            f" {'' if setting.equal_compute else 'not '}matched by lambda."
        ),
    )
    store = Store(choice.storage)
    lost = (line for recipe in part.corpora for line in lost_text(store, recipe.data_id))
    facts += tuple(f"{line[0].upper()}{line[1:]}." for line in dict.fromkeys(lost))
    if part.preset.family != OURS:
        facts += (NOT_REPRODUCED,)
    if part.changes:
        facts += (f"Changed from the preset: {'; '.join(part.changes)}.",)
    params = preset_params(part.preset_name, part.changes)
    if recipe := recipe_text(part.choice.corpus):
        params["recipe"] = recipe
    params |= {"family": part.preset.family, "data_id": data, "seeds": seeds}
    params |= {"sizes": ",".join(part.choice.sizes), "methods": ",".join(part.methods)}
    facts += tuple(
        SOURCES[flag].format(shown_place(source)) for flag, source in part.sources.items()
    )
    params |= part.sources
    facts += tuple(f"Against its evidence: {doubt}." for doubt in part.law_doubts)
    return StudyRecord(
        **part.study.description,
        facts=facts,
        params=params,
        sizes=part.choice.sizes,
        parameters=part.parameters,
        profile=part.study.profile or _compared_profile(setting),
        entries=entries_of(part.entries),
        costs=part.costs,
        variants=tuple(variants),
        measurement=part.preset.measurement.name,
        own_baseline=part.preset.own_baseline,
        probed=tuple(n.id for n in part.nodes if n.is_run and n.config.eval_points.num_probes),
        by_modules=part.preset.every_subset,
        unit_errors=unit_errors_of(part),
    )


def _factors(setting: Setting) -> str:
    exceptions = "".join(f" ({domain} {factor:.3g})" for domain, factor in setting.aux_factor_of)
    return f"{setting.aux_factor:.3g}{exceptions}"


def _compared_profile(setting: Setting) -> str:
    """Returns the first compared profile, or `mean` if core alone is one of several."""
    if () in setting.profiles and len(setting.profiles) > 1:
        return MEAN
    return "+".join((CORE, *setting.profiles[0]))


# The study that measures the unit.
CALIBRATION_STUDY = "calibration"


def unit_errors_of(part: StudyPlan) -> tuple[dict, ...]:
    """Returns the unit's errors at every size where they are known: `size, class, ratio,
    difference, num_shares, measured_on`.

    What a finished calibration on the same data in the storage measured replaces what was measured
    for the package at the same size of the corpus; which of all these counts, see `nearest_errors`.
    """
    corpus, found = part.choice.corpus, []
    own = measured_in(Store(part.choice.storage), corpus, part.data_id)
    rows = pd.concat([own, shipped_errors()] if len(own) else [shipped_errors()], ignore_index=True)
    rows = rows.drop_duplicates(["corpus", "parameters", "steps", "class"])
    steps = {n.size: n.config.num_steps for n in part.entries if n.is_run and n.method == BASELINE}
    for size in (size for size in part.parameters if size in steps):
        for row in nearest_errors(rows, corpus, part.parameters[size], steps[size]):
            error = {name: row[name] for name in ("class", "ratio", "difference", "num_shares")}
            places = [f"{shown_place(place)}, {name}" for place, name in row["places"]]
            found.append({"size": size, **error, "measured_on": " and ".join(places)})
    return tuple(found)


def measured_in(store: Store, corpus: str, data_id: str = "") -> pd.DataFrame:
    """Returns the errors by the storage's calibration, FILE_COLUMNS; no rows without one on this
    data.

    Sizes of which a node is not complete are left out: the longest baselines, whose errors are
    small, come first.
    """
    record = readable_record(store, CALIBRATION_STUDY)
    # Another study may have this name.
    is_ours = record is not None and record.measurement == Calibration.name
    is_here = is_ours and data_id in ("", record.params.get("data_id"))
    results = read_calibration(record, store, None) if is_here else None
    if results is None:
        return pd.DataFrame(columns=FILE_COLUMNS)
    steps = results.analysis.fits.groupby("size")["last_step"].max()
    errors = measured_errors(
        results.errors[results.errors["size"].isin(finished_sizes(record, results.runs))]
    )
    parameters = errors["size"].map(record.parameters)
    steps_of = errors["size"].map(steps).astype(int)
    return errors.assign(corpus=corpus, parameters=parameters, steps=steps_of)[FILE_COLUMNS]


def finished_sizes(record: StudyRecord, runs: pd.DataFrame) -> set[str]:
    """Returns the sizes of which every node is complete; `runs` as in `Results`."""
    complete = set(runs.loc[runs["status"] == State.COMPLETE, "id"])
    return set(record.sizes) - {
        entry["tags"].get("size", "") for entry in record.entries if entry["id"] not in complete
    }


# ---------------------------------------------------------------- pages of earlier submissions
#
# `studies/STUDY/` has the newest submission; `studies/STUDY/history/DATE/` has what lay there until
# DATE, in UTC, of another choice of methods, sizes, seeds, preset or data. A page is copied,
# report.html last; then the new record is written; then the old files are removed, report.html
# last. So it is whole in one place at any time. After a kill in between, the next submission finds
# the report that lies in the folder among those that are kept, and finishes the move, or takes it
# back if it is of the same choice.

MOST_KEPT = 10
DATE = "%Y-%m-%dT%H%M%S"
PAGE_FILES = (".html", ".csv", ".svg", HASHES)
CHOSEN_TAGS, CHOSEN_PARAMS = ("method", "size", "seed"), ("preset", "data_id")


def begin_record(store: Store, record: StudyRecord) -> None:
    """Writes the record of a submission that begins; moves another choice's page to history."""
    folder, kept = store.study_dir(record.name), store.history_dirs(record.name)
    history = folder.child(HISTORY)
    # A copy without a report was interrupted; its files still lie in the study's folder.
    for date in [date for date, place in kept.items() if not place.exists(REPORT_FILE)]:
        history.remove(date)
        del kept[date]
    report = folder.read(REPORT_FILE) if folder.exists(REPORT_FILE) else None
    copied = next((date for date in reversed(kept) if kept[date].read(REPORT_FILE) == report), "")
    # The record in the folder may be the next one already, of a submission that was killed while it
    # moved the page.
    records = [
        place.read_spare(STUDY_FILE, ChosenRuns) for place in (folder, kept.get(copied, folder))
    ]
    moves = report is not None and any(
        one and _choice(one) != _choice(vars(record)) for one in records
    )
    if copied and not moves:
        history.remove(copied)
    elif moves and not copied:
        _copy(folder, history.child(_date(kept)), report)
    folder.remove(HASHES)
    folder.write(STUDY_FILE, record.to_json())
    for name in (*_tables(folder), REPORT_FILE) if moves else ():
        folder.remove(name)
    for date in list(store.history_dirs(record.name))[:-MOST_KEPT]:
        history.remove(date)


def _copy(folder: Folder, target: Folder, report: bytes) -> None:
    for name in (STUDY_FILE, *_tables(folder)):
        target.write(name, folder.read(name))
    target.write(REPORT_FILE, report)


def _tables(folder: Folder) -> list[str]:
    """Lists the files of a study's page without its report and its record."""
    return [name for name in folder.list() if name.endswith(PAGE_FILES) and name != REPORT_FILE]


def _date(taken: Mapping[str, Folder]) -> str:
    """Returns the time of now, or of the first second after it that is not taken."""
    now = time.time()
    while (date := time.strftime(DATE, time.gmtime(now))) in taken:
        now += 1
    return date


def _choice(plain: Mapping) -> Mapping[str, object]:
    """Returns what was chosen, of the fields of a record."""
    chosen = {
        name: {entry["tags"].get(name, "") for entry in plain["entries"]} for name in CHOSEN_TAGS
    }
    return chosen | {name: plain["params"].get(name, "") for name in CHOSEN_PARAMS}
