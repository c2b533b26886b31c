"""Reads a study's losses, judges its claims, and formats its tables for a terminal."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from gram_platform.analysis.calibration import errors_by_class
from gram_platform.analysis.intervals import ENDS, JACKKNIFE
from gram_platform.analysis.ratios import ELICITED, MEAN, VIEW
from gram_platform.analysis.recovery import ATTACK_CURVE, EVERY, RECOVERY
from gram_platform.analysis.tables import (
    CLASSES,
    Analysis,
    StudyLosses,
    analyse,
    frame_text,
    in_reading_order,
    interval_text,
    interval_texts,
    label_methods,
    readable_table,
    short_text,
)
from gram_platform.analysis.variants import (
    analyse_variants,
    drop_table,
    final_shares,
    module_shares,
)
from gram_platform.config import CORE, State
from gram_platform.methods.nodes import BASELINE, VARIANT, node_name
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.answers import terminal_warning
from gram_platform.pages.report.claims import select_columns
from gram_platform.pages.report.modules import readable_drops, readable_shares
from gram_platform.pages.report.sections import rename_variant
from gram_platform.pages.results.record import Results, StudyRecord
from gram_platform.paper.claims import CLAIMS
from gram_platform.paper.paper import PAPER_SCALES, beside_paper
from gram_platform.paper.verdicts import (
    EXPLANATION,
    HOLM,
    PROFILE,
    TOO_LITTLE,
    UNIT_ERROR,
    UNJUDGED_PRESET,
    claims_frame,
    conclude,
    paper_claims,
    separation_claims,
    with_published,
)
from gram_platform.store import Store
from gram_platform.tracking.entry import BEST_LOSS, RUN_COLOUR
from gram_platform.tracking.frame import Frames, store_frames
from gram_platform.tracking.views import RATIO, Line


def read_results(
    record: StudyRecord, store: Store | None, frames: Frames | None = None
) -> Results | None:
    """Analyses all complete nodes. Returns None if there is no evaluation or no baseline curve.

    Reads the storage if `frames` is None. Leaves out the modules' shares of the squared gradient if
    `store` is None.
    """
    if frames is None:
        frames = store_frames(store, record.ids, record.curve_runs)
    frame, curves, source = frames
    complete = frame[frame["status"] == State.COMPLETE]
    evaluations = join_tags(record.tags("evaluation"), complete)
    runs = join_tags(record.tags("run"), complete)
    baselines = runs[runs["method"] == BASELINE]
    if evaluations.empty or not curves["run_id"].isin(record.baseline_runs).any():
        return None
    names = ["run_id", "method", "size", "seed", *([VARIANT] if record.variants else [])]
    attacks = join_attacks(record.tags("attack"), complete)
    by_run = curves.groupby(["run_id", "domain"])
    points = {key: [*zip(of["step"], of["loss"], strict=True)] for key, of in by_run}
    keys = zip(attacks["run_id"], attacks[ELICITED], strict=True)
    attacks[ATTACK_CURVE] = [points.get(key, ()) for key in keys]
    curves = curves.merge(baselines[names].drop_duplicates(), on="run_id")
    losses = StudyLosses(evaluations, curves, attacks, record.tags("evaluation"))
    analysis = analyse_study(record, losses)
    absorption = None
    if record.probed and store:
        probed = runs[runs["id"].isin(record.probed)]
        absorption = module_shares(probed, lambda run_id: store.run(run_id).records())
    nodes, claims = nodes_frame(record, frame), judge_study(record, analysis)
    return Results(record, analysis, curves, nodes, claims, source, absorption)


def lost_rows(
    record: StudyRecord, store: Store, results: Results | None, done: Collection[str]
) -> list[str]:
    """Returns a line for each complete node (in `done`) whose files are lost or damaged.

    The line says which folder to remove before submitting again. While the folder exists, the node
    does not run again. A learning curve is not lost if MLflow still has it.
    """
    entries = {e["id"]: e for e in record.entries if e["id"] in done}
    readable = entries.keys() if results is None else set(results.runs["id"])
    reasons = {node_id: "it cannot be read" for node_id in entries if node_id not in readable}
    runs = [run_id for run_id in dict.fromkeys(record.baseline_runs) if run_id in entries]
    if results is not None:
        steps = results.curves.groupby("run_id")["step"].nunique()
        runs = [
            i for i in runs if steps.get(i, 0) < store.run(i).config()["eval_points"]["num_points"]
        ]
    for run_id in runs:
        if reason := store.run(run_id).lost_history():
            reasons[run_id] = f"its curves cannot be read ({reason})"
    lines = []
    for node_id, reason in reasons.items():
        kind = entries[node_id]["kind"]
        directory = store.node(kind, node_id)
        name = node_name(kind, node_id, directory.tags() or entries[node_id]["tags"])
        place = directory.folder.path
        lines.append(f"{name}: {reason}; to make it again, remove {place} and submit again")
    return lines


def analyse_study(record: StudyRecord, losses: StudyLosses, intervals: str = JACKKNIFE) -> Analysis:
    own, sizes = record.own_baseline, record.sizes
    if not record.variants:
        return analyse(losses, sizes, own_baseline=own, intervals=intervals)
    return analyse_variants(losses, record.variants, sizes, record.unit, own, intervals)


def judge_study(record: StudyRecord, analysis: Analysis) -> pd.DataFrame:
    """Judges the paper's claims about a study, and adds verdicts on the published numbers.

    If the paper makes no claims about a study without variants, judges whether the mean compute
    ratio of retain exceeds that of forget. Uses the record's profile even if it is not in the
    table, because the profile must be chosen before there are data. Verdicts on losses measured
    elsewhere use only intervals over seeds, because the error of their compute ratios is unknown.
    """
    errors = errors_by_class(record.unit_errors) if record.preset else None
    if (study := record.compare_with) in CLAIMS:
        # Core retains no domain.
        compared = record.profile if record.profile != CORE else ""
        claims = paper_claims(analysis.per_seed, study, compared, errors, record.parameters)
        claims = with_published(claims, study)
    else:
        judgements = [] if record.variants else separation_claims(analysis.per_seed, errors)
        claims = claims_frame(judgements).assign(profile=MEAN)
    return conclude(claims, record.preset)


def summary_text(record: StudyRecord, results: Results) -> str:
    """Formats the tables for a log, with the paper's numbers and claims for the study, if any."""
    table = results.analysis.table
    if table.empty:
        missing = results.analysis.missing.to_numpy()
        return "\n".join(["no table:", *(f"{what}: {why}" for what, why in missing)])
    parts = [format_table(rename_variant(table, record.varies))]
    if results.by_number is not None:
        drops = drop_table(results.by_number, results.analysis.per_seed)
        parts += ["from one module to all", frame_text(readable_drops(drops))]
    if results.absorption is not None and len(results.absorption):
        shares = readable_shares(final_shares(results.absorption))
        parts += [
            "shares of the modules' squared gradient",
            frame_text(rename_variant(shares, record.varies)),
        ]
    if record.compare_with in PAPER_SCALES:
        beside = rename_variant(
            beside_paper(table, record.compare_with, record.profile), record.varies
        )
        parts += ["beside the paper's (for reading: another scale)", frame_text(beside)]
    if record.preset == UNJUDGED_PRESET:
        parts += [TOO_LITTLE]
    elif record.compare_with in CLAIMS:
        names = ["verdict", HOLM, "difference", "low", "high", UNIT_ERROR, "detectable", "paper"]
        names += [PROFILE, "size", VARIANT, "claim", "published", EXPLANATION]
        claims = select_columns(results.claims, names)
        same = [n for n in ("size", VARIANT) if n in claims and claims[n].nunique() < 2]
        claims = rename_variant(claims.drop(columns=same), record.varies)
        parts += ["published claims", frame_text(claims)]
    return "\n\n".join(filter(None, [*parts, terminal_warning(results)]))


def format_table(table: pd.DataFrame) -> str:
    return frame_text(
        readable_table(in_reading_order(table)).rename(columns={"num_seeds": "seeds"})
    )


class Brief(NamedTuple):
    """A summary for a terminal: tables by title, verdict counts, a warning and a text.

    The most important columns come first, because a narrow terminal omits the last ones.
    """

    tables: Mapping[str, pd.DataFrame]
    verdicts: Mapping[str, int] = {}
    warning: str = ""
    text: str = ""


def brief_results(record: StudyRecord, results: Results, is_wide: bool) -> Brief:
    """Summarises the compute ratios of the main profile, and the means over profiles.

    Omits the column `size` or `variant` if it has only one value.
    """
    table, text, tables = results.analysis.table, interval_text if is_wide else short_text, {}
    for profile in dict.fromkeys((MEAN, results.main_profile)) if len(table) else ():
        rows = table[table["profile"] == profile]
        several = [name for name in ("size", VARIANT) if name in rows and rows[name].nunique() > 1]
        names = ["method", *several]
        cells = with_values(rows, CLASSES, text)
        tables[f"profile {profile}"] = rename_variant(
            label_methods(rows[names]).assign(**cells), record.varies
        )
    judged_not = TOO_LITTLE * (record.preset == UNJUDGED_PRESET)
    return Brief(tables, count_verdicts(results.claims), terminal_warning(results), judged_not)


def with_values(
    frame: pd.DataFrame, names: Iterable[str], text: Callable[..., str]
) -> dict[str, list[str]]:
    """Returns {name: cells} for the columns `names` that have values. `text` formats a cell."""
    return {n: interval_texts(frame, n, text) for n in names if frame[n].notna().any()}


def count_verdicts(claims: pd.DataFrame | None) -> Mapping[str, int]:
    has_claims = claims is not None and len(claims)
    return dict(Counter(filter(None, claims["verdict"]))) if has_claims else {}


def join_tags(
    tags: pd.DataFrame, frame: pd.DataFrame, how: Literal["inner", "left"] = "inner"
) -> pd.DataFrame:
    """Joins `tags` and `frame` on `id`. Where both have a column, keeps the one in `tags`."""
    return tags.merge(frame.drop(columns=tags.columns.drop("id"), errors="ignore"), how, on="id")


def join_attacks(tags: pd.DataFrame, complete: pd.DataFrame) -> pd.DataFrame:
    """Returns the attacks as `analyse` needs them. If an attack has no result, its loss is NaN."""
    rows = _with_best_loss(join_tags(tags, complete, "left"))
    return rows.rename(columns={"best_loss": "loss"}).assign(run_id=rows["id"])


def _with_best_loss(attacks: pd.DataFrame) -> pd.DataFrame:
    rows = attacks.to_dict("records")
    losses = [row.get(BEST_LOSS + row[ELICITED], float("nan")) for row in rows]
    return attacks.assign(best_loss=pd.Series(losses, index=attacks.index, dtype="float64"))


def nodes_frame(record: StudyRecord, frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a row for each node that has begun: runs, then evaluations, then attacks."""
    parts = [join_tags(record.tags(kind), frame) for kind in ("run", "evaluation", "attack")]
    parts[-1] = _with_best_loss(parts[-1])
    return pd.concat(parts, ignore_index=True).drop_duplicates("id", ignore_index=True)


def ratio_lines(results: Results) -> list[Line]:
    """Returns the lines that MLflow plots: compute ratio against size."""
    record, table, lines = results.record, results.analysis.table, []
    columns = [name + end for name in CLASSES for end in ENDS]
    names = ["method", *([VARIANT] if record.variants else []), "profile"]
    for values, rows in table.groupby(names, sort=False):
        counts = rows["size"].map(record.parameters)
        points = {n: rows.loc[at, columns].dropna().to_dict() for at, n in counts.items()}
        tags = {name: str(value) for name, value in zip(names, values, strict=True)}
        colour = {RUN_COLOUR: method_style(tags["method"]).colour}
        lines.append(Line(" ".join(tags.values()), tags | colour, points))
    return lines


def seed_ratios(results: Results) -> dict[str, dict[str, float]]:
    """Returns the metrics of each evaluation as {evaluation id: {metric: value}}.

    `ratio/<class>` is the mean compute ratio of a class of domains, such as `retain`. Metrics such
    as `steps_to_50/<domain>` measure how fast an attack recovers a domain.
    """
    views = results.record.tags("evaluation")
    names = [name for name in (VARIANT, *VIEW) if name in views]
    views, analysis = views[["id", *names]], results.analysis
    rows = views.merge(analysis.per_seed[[*names, *CLASSES]], on=names)
    metrics = {
        row["id"]: {RATIO + name: row[name] for name in CLASSES if np.isfinite(row[name])}
        for row in rows.drop_duplicates("id").to_dict("records")
    }
    attacks = views.merge(analysis.ratios.reindex(columns=[*names, "domain", *RECOVERY]), on=names)
    for row in attacks[attacks[EVERY].notna()].to_dict("records"):
        times = {f"{name}/{row['domain']}": row[name] for name in RECOVERY}
        metrics[row["id"]] = times | metrics[row["id"]]
    return metrics
