"""Writes the record that a report is made from, and archives pages of earlier submissions."""

import time
from collections.abc import Iterator, Mapping

import pandas as pd

from gram_platform.analysis.calibration import (
    FILE_COLUMNS,
    load_errors,
    measure_errors,
    nearest_errors,
)
from gram_platform.analysis.ratios import MEAN
from gram_platform.config import CORE, State
from gram_platform.corpora.recipe_file import recipe_text
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
    mask_place,
    preset_params,
    seeds_text,
)
from gram_platform.studies.plan import StudyPlan


def record_of(part: StudyPlan) -> StudyRecord:
    setting, preset, choice = part.settings[0], part.preset, part.choice
    names = [node.names for node in part.entries]
    seeds_of = [preset.seeds(size, choice.seeds, choice.first_seed) for size in choice.sizes]
    seeds = seeds_text({s: len(found) for s, found in zip(choice.sizes, seeds_of, strict=True)})
    # The first compared profile, or the mean if core alone is one of several.
    several = () in setting.profiles and len(setting.profiles) > 1
    profile = MEAN if several else "+".join((CORE, *setting.profiles[0]))
    params = preset_params(part.preset_name, part.changes)
    if recipe := recipe_text(choice.corpus):
        params["recipe"] = recipe
    params |= {"family": preset.family, "data_id": part.data_id, "seeds": seeds}
    params |= {"sizes": ",".join(choice.sizes), "methods": ",".join(part.methods)}
    return StudyRecord(
        **part.study.description,
        facts=tuple(_facts(part, seeds, seeds_of[0].start)),
        params=params | part.sources,
        sizes=choice.sizes,
        parameters=part.parameters,
        profile=part.study.profile or profile,
        entries=entries_of(part.entries),
        costs=part.costs,
        variants=tuple(dict.fromkeys(n["variant"] for n in names if "variant" in n)),
        measurement=preset.measurement.name,
        own_baseline=preset.own_baseline,
        probed=tuple(n.id for n in part.nodes if n.is_run and n.config.eval_points.num_probes),
        by_modules=preset.every_subset,
        unit_errors=unit_errors_of(part),
    )


def _facts(part: StudyPlan, seeds: str, first_seed: int) -> Iterator[str]:
    setting, choice = part.settings[0], part.choice
    yield f"Preset {part.preset_name}: {FAMILIES[part.preset.family]}."
    corpus, plural = f"{mask_place(choice.corpus)} (data {part.data_id})", "s" * (seeds != "1")
    yield f"Corpus {corpus}, {seeds} seed{plural} from {first_seed}."
    if choice.adjacent:
        yield f"Adjacent text: {', '.join(choice.adjacent)}."
    exceptions = "".join(f" ({domain} {factor:.3g})" for domain, factor in setting.aux_factor_of)
    kinds = dict.fromkeys(each.routing.accumulation for each in part.settings)
    yield (
        f"Routing: auxiliary batches that train core too (p_as) {setting.routing.p_aux_spread},"
        f" core batches that train a module too (p_cr) {setting.routing.p_core_robust}, weight of"
        f" auxiliary text (p_af) {setting.aux_factor:.3g}{exceptions}, {' or '.join(kinds)}"
        f" accumulation; compute {'' if setting.equal_compute else 'not '}matched by lambda."
    )
    store = Store(choice.storage)
    lost = (line for recipe in part.corpora for line in lost_text(store, recipe.data_id))
    yield from (f"{line[0].upper()}{line[1:]}." for line in dict.fromkeys(lost))
    if part.preset.family != OURS:
        yield NOT_REPRODUCED
    if part.changes:
        yield f"Changed from the preset: {'; '.join(part.changes)}."
    for flag, source in part.sources.items():
        yield SOURCES[flag].format(mask_place(source))
    yield from (f"Against its evidence: {doubt}." for doubt in part.law_doubts)


CALIBRATION_STUDY = "calibration"


def unit_errors_of(part: StudyPlan) -> tuple[dict, ...]:
    """Returns the errors of compute ratios that apply to the study's sizes.

    `nearest_errors` chooses them from the packaged errors. If the storage has a calibration study
    on the same data, its errors replace packaged errors of the same corpus, size, steps and class.
    Each dict has `size, class, ratio, difference, num_shares, measured_on`.
    """
    corpus, errors = part.choice.corpus, []
    own = load_calibration(Store(part.choice.storage), corpus, part.data_id)
    rows = pd.concat([own, load_errors()] if len(own) else [load_errors()], ignore_index=True)
    rows = rows.drop_duplicates(["corpus", "parameters", "steps", "class"])
    steps = {n.size: n.config.num_steps for n in part.entries if n.is_run and n.method == BASELINE}
    for size in (size for size in part.parameters if size in steps):
        for row in nearest_errors(rows, corpus, part.parameters[size], steps[size]):
            error = {name: row[name] for name in ("class", "ratio", "difference", "num_shares")}
            places = [f"{mask_place(place)}, {name}" for place, name in row["places"]]
            errors.append({"size": size, **error, "measured_on": " and ".join(places)})
    return tuple(errors)


def load_calibration(store: Store, corpus: str, data_id: str = "") -> pd.DataFrame:
    """Returns the errors that the storage's calibration study measured, with FILE_COLUMNS.

    If that study used data other than `data_id`, the frame is empty. "" accepts any data. Omits
    sizes with unfinished nodes. Their errors would be too small, because the longest baselines are
    trained first and have the smallest errors.
    """
    record = readable_record(store, CALIBRATION_STUDY)
    # Another study may have this name.
    is_ours = record is not None and record.measurement == Calibration.name
    is_here = is_ours and data_id in ("", record.params.get("data_id"))
    results = read_calibration(record, store, None) if is_here else None
    if results is None:
        return pd.DataFrame(columns=FILE_COLUMNS)
    is_finished = results.errors["size"].isin(list_complete_sizes(record, results.runs))
    errors = measure_errors(results.errors[is_finished])
    parameters = errors["size"].map(record.parameters)
    last_step = results.analysis.fits.groupby("size")["last_step"].max()
    steps = errors["size"].map(last_step).astype(int)
    return errors.assign(corpus=corpus, parameters=parameters, steps=steps)[FILE_COLUMNS]


def list_complete_sizes(record: StudyRecord, runs: pd.DataFrame) -> set[str]:
    """Returns the sizes whose nodes are all complete. `runs` is as in `Results`."""
    complete = set(runs.loc[runs["status"] == State.COMPLETE, "id"])
    left = (entry for entry in record.entries if entry["id"] not in complete)
    return set(record.sizes) - {entry["tags"].get("size", "") for entry in left}


# Pages of earlier submissions:
#
# `studies/STUDY/` has the newest page. If methods, sizes, seeds, preset or data change, the old one
# moves to `studies/STUDY/history/DATE/` (UTC): it is copied, the new record is written, and the old
# files are removed. report.html is always last, so one place has the whole page. After an
# interruption both have the report. The next submission finishes the move, or reverts it if its
# choice is the same.

MOST_KEPT = 10
DATE = "%Y-%m-%dT%H%M%S"
PAGE_FILES = (".html", ".csv", ".svg", HASHES)
CHOSEN_TAGS, CHOSEN_PARAMS = ("method", "size", "seed"), ("preset", "data_id")


def begin_record(store: Store, record: StudyRecord) -> None:
    """Writes a new submission's record.

    If an earlier submission had other runs or data, its page moves to the history.
    """
    folder, kept = store.study_dir(record.name), store.history_dirs(record.name)
    history = folder.child(HISTORY)
    for date, place in list(kept.items()):
        # The copy was interrupted.
        if not place.exists(REPORT_FILE):
            history.remove(date)
            del kept[date]
    report = folder.read(REPORT_FILE) if folder.exists(REPORT_FILE) else None
    copied = next((date for date in reversed(kept) if kept[date].read(REPORT_FILE) == report), "")
    # A submission killed during the move may have left its record in the folder.
    places, choice = (folder, kept.get(copied, folder)), _choice(vars(record))
    old = filter(None, (place.read_spare(STUDY_FILE, ChosenRuns) for place in places))
    moves = report is not None and any(_choice(plain) != choice for plain in old)
    if copied and not moves:
        history.remove(copied)
    elif moves and not copied:
        target = history.child(_date(kept))
        for name in (STUDY_FILE, *_tables(folder)):
            target.write(name, folder.read(name))
        target.write(REPORT_FILE, report)
    folder.remove(HASHES)
    folder.write(STUDY_FILE, record.to_json())
    for name in (*_tables(folder), REPORT_FILE) if moves else ():
        folder.remove(name)
    for date in list(store.history_dirs(record.name))[:-MOST_KEPT]:
        history.remove(date)


def _tables(folder: Folder) -> list[str]:
    return [name for name in folder.list() if name.endswith(PAGE_FILES) and name != REPORT_FILE]


def _date(taken: Mapping[str, Folder]) -> str:
    now = time.time()
    while (date := time.strftime(DATE, time.gmtime(now))) in taken:
        now += 1
    return date


def _choice(plain: Mapping) -> Mapping[str, object]:
    tags = [entry["tags"] for entry in plain["entries"]]
    return {name: {tag.get(name, "") for tag in tags} for name in CHOSEN_TAGS} | {
        name: plain["params"].get(name, "") for name in CHOSEN_PARAMS
    }
