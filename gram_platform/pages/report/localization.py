"""Reports the token study, which finds the tokens whose loss rises if a domain is removed."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.localization import (
    CONTROL,
    FORGET,
    LOCALIZATION_COLUMNS,
    RETAIN,
    STATISTICS,
    TOKEN_ROW,
    Localization,
    MeasuredTokens,
    ShadedText,
    localization_tables,
    localize,
    shades,
    shading_scale,
)
from gram_platform.analysis.ratios import ALL, MEAN, VIEW
from gram_platform.analysis.tables import (
    frame_text,
    interval_text,
    label_methods,
    short_text,
    with_intervals,
)
from gram_platform.config import CORE
from gram_platform.corpora.tokenizer import load_tokenizer, text_tokens, token_texts
from gram_platform.methods.nodes import BASELINE
from gram_platform.pages.figures.style import (
    GREY,
    drop_empty,
    hover_runs,
    lay_out,
    level_line,
    method_style,
    ratio_hover,
    whiskers,
    with_table,
)
from gram_platform.pages.report.claims import verdict_sections
from gram_platform.pages.report.measurements import Presentation
from gram_platform.pages.report.page import HOW_TO_READ, Page, Section, readable_runs, render
from gram_platform.pages.report.sections import missing_sections
from gram_platform.pages.results.record import StudyRecord, study_report
from gram_platform.pages.results.results import Brief, count_verdicts, nodes_frame, with_values
from gram_platform.paper.verdicts import (
    EXPLANATION,
    PROFILE,
    TOO_LITTLE,
    UNJUDGED_PRESET,
    conclude,
    localization_claims,
)
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import Frames, store_frames

# The method whose model of the profile core sets the colour scale.
CALIBRATION_METHOD = "filtering"
NUM_SHADED = 96
SHADED = "The same text under every view, without and with this domain."
CONCENTRATION = (
    "Fewer tokens carry the loss of the removed domains if a curve rises higher at its left end."
)
NUM_LEGEND = 5
TITLES = {"gini": "Gini coefficient of increases", "increase": "increase of the loss (nats)"}
BARS = {FORGET: ("forgotten", ""), RETAIN: ("retained", "/")}
ANOTHER_SEED = "another seed's baseline"
CLAIMS_TEXT = "The paper's observations on single sentences are judged over whole sequences."


@dataclass(frozen=True)
class TokenResults:
    found: Localization
    texts: tuple[ShadedText, ...]
    claims: pd.DataFrame
    runs: pd.DataFrame
    source: str


def read_tokens(
    record: StudyRecord, store: Store, frames: Frames | None = None
) -> TokenResults | None:
    """Analyses the stored token losses. If no baseline has any, returns None.

    Token losses always come from the storage. The states of runs come from `frames`, or from the
    storage if `frames` is None.
    """
    views = [entry for entry in record.entries if entry["kind"] == "evaluation"]
    done = {e["id"] for e in views if store.evaluation(e["id"]).result() is not None}
    if not any(e["id"] in done and _is_baseline(e) for e in views):
        return None
    rows, texts = [], {}
    for size, seed in dict.fromkeys((e["tags"]["size"], e["tags"]["seed"]) for e in views):
        of_size = [e for e in views if e["tags"]["size"] == size and e["id"] in done]
        measured = _load(store, [e for e in of_size if e["tags"]["seed"] == seed])
        references = {(m.size, m.seed): m for m in measured if m.method == BASELINE}
        others = [m for m in measured if m.method != BASELINE]
        rows.append(localize(others + _load_control(store, of_size, seed), references))
        if references and size not in texts:
            texts[size] = _shade_texts(store, of_size[0]["id"], measured, references[size, seed])
    lacking = [tuple(e["tags"][name] for name in VIEW) for e in views if e["id"] not in done]
    found = localization_tables(pd.concat(rows, ignore_index=True), lacking)
    frame, _, source = frames or store_frames(store, record.ids, ())
    claims = conclude(localization_claims(found.per_seed), record.preset)
    runs = nodes_frame(record, frame)
    return TokenResults(found, list(texts.values())[-1], claims, runs, source)


def tokens_text(record: StudyRecord, results: TokenResults) -> str:
    lines = [frame_text(readable_localization(results.found.means)), ""]
    if record.preset == UNJUDGED_PRESET:
        return "\n".join([*lines, TOO_LITTLE])
    for claim in results.claims.to_dict("records"):
        line = f"{claim['verdict']}: {claim['claim']}, profile {claim[PROFILE]}"
        lines.append(f"{line} {claim[EXPLANATION]}".rstrip())
    return "\n".join(lines).rstrip()


def brief_tokens(record: StudyRecord, results: TokenResults, is_wide: bool) -> Brief:
    means = results.found.means
    names = ["method", *(["size"] if means["size"].nunique() > 1 else []), "class"]
    cells = with_values(means, STATISTICS, interval_text if is_wide else short_text)
    tables = {"means over domains and profiles": label_methods(means[names]).assign(**cells)}
    return Brief(tables, count_verdicts(results.claims))


def tokens_page(record: StudyRecord, results: TokenResults, tracker: Tracker | None) -> Page:
    found = results.found
    means = readable_localization(found.means).drop(columns=["profile", "domain"])
    figures = {}
    for size in dict.fromkeys(found.table["size"]):
        figures[f"concentration-{size}"] = concentration_figure(found.curves, size)
        figures |= {f"{v}-{size}": localization_bars(found.table, size, v) for v in TITLES}
    sections = [
        Section(HOW_TO_READ, markup=render("localization.html")),
        Section(
            "Concentration", CONCENTRATION, drop_empty(figures), table=means, table_is_open=True
        ),
        *verdict_sections(results.claims, CLAIMS_TEXT, record.preset),
        *missing_sections(found.missing),
        *(
            Section(f"Tokens of {t.domain}", SHADED, markup=shade_html(t), table=increases_frame(t))
            for t in results.texts
        ),
        Section("Every profile and domain", table=readable_localization(found.table)),
        Section("Runs", table=readable_runs(results.runs)),
    ]
    source = f"{results.source}; token losses from the storage"
    return study_report(record, sections, source, tracker, results.claims)


def readable_localization(table: pd.DataFrame) -> pd.DataFrame:
    return with_intervals(table, TOKEN_ROW, STATISTICS).assign(
        num_tokens=table["num_tokens"], num_seeds=table["num_seeds"]
    )


def concentration_figure(curves: pd.DataFrame, size: str) -> go.Figure:
    """Draws each method's cumulative share of the loss increase against the share of tokens.

    Tokens of forgotten domains are sorted by increase, largest first. Decreases count as 0. The
    dotted line is the control, another seed's baseline. The thin line is an even spread over all
    tokens.
    """
    rows = curves[(curves["size"] == size) & curves["class"].isin([FORGET, CONTROL])]
    figure = go.Figure()
    for (method, kind), points in rows.groupby(["method", "class"], sort=False):
        label, colour, _, dash = method_style(method)
        if kind == CONTROL:
            label, dash = ANOTHER_SEED, "dot"
        figure.add_scatter(
            x=points["tokens"],
            y=points["share"],
            name=label,
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2},
            customdata=hover_runs(points),
            hovertemplate=(
                f"<b>{label}</b><br>%{{x:.0%}} of the tokens:"
                " %{y:.1%}<br>%{customdata}<extra></extra>"
            ),
        )
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line={"color": GREY, "width": 1})
    lay_out(figure, f"Forgotten domains, {size}", "share of the tokens", "share of the increase")
    figure.update_xaxes(tickformat=".0%", range=[0, 1])
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    return with_table(figure, rows)


def localization_bars(table: pd.DataFrame, size: str, value: str) -> go.Figure:
    """Draws the mean of `value` over profiles and domains as a bar for each method and class.

    `value` is a key of TITLES. Bars of retained domains are hatched. The dotted line is the
    control, another seed's baseline.
    """
    means = table[(table["profile"] == MEAN) & (table["size"] == size) & table[value].notna()]
    figure = go.Figure()
    for kind, (name, pattern) in BARS.items():
        rows = means[means["class"] == kind]
        if rows.empty:
            continue
        colours = [method_style(method).colour for method in rows["method"]]
        bars = go.Bar(
            ratio_hover(rows, f"{value}_", "<b>%{x}</b>, %{fullData.name}"),
            x=label_methods(rows)["method"],
            y=rows[value],
            name=name,
            marker={"color": colours, "pattern": {"shape": pattern, "size": 6}},
            error_y=whiskers(rows, value),
        )
        figure.add_trace(bars)
    for level in means.loc[means["class"] == CONTROL, value]:
        level_line(figure, level, ANOTHER_SEED)
    title = TITLES[value]
    lay_out(figure, f"{title[0].upper()}{title[1:]}, {size}", "", title)
    figure.update_layout(barmode="group", title_font_size=13)
    names = ["method", "size", "profile", "class", *(value + end for end in ENDS)]
    return with_table(figure, means.filter([*names, "num_seeds", "runs"]))


def shade_html(text: ShadedText) -> Markup:
    steps = np.linspace(0.0, 1.0, NUM_LEGEND) if text.scale == text.scale else ()
    legend = [(f"{step:.2f}", f"{step * text.scale:.2f}") for step in steps]
    views = [(label, _shade_tokens(text, increases)) for label, increases in text.views.items()]
    return render("tokens.html", legend=legend, first=_visible(text.pieces[0]), views=views)


def _shade_tokens(text: ShadedText, increases: np.ndarray) -> Iterator[tuple[str, str, str]]:
    columns = text.pieces[1:], shades(increases, text.scale), increases, text.baseline
    for piece, level, increase, loss in zip(*columns, strict=True):
        yield f"{level:.2f}", f"{increase:+.2f} nats, the baseline has {loss:.2f}", _visible(piece)


def _visible(piece: str) -> str:
    return piece or "\u00b7"


def increases_frame(text: ShadedText) -> pd.DataFrame:
    numbers = pd.DataFrame({"baseline loss": text.baseline, **text.views}).astype(float).round(4)
    numbers.insert(0, "token", [repr(piece)[1:-1] for piece in text.pieces[1:]])
    return numbers


def _is_baseline(entry: Mapping) -> bool:
    return (entry["tags"]["method"], entry["tags"]["profile"]) == (BASELINE, ALL)


def _load(store: Store, entries: Sequence[Mapping]) -> list[MeasuredTokens]:
    measured = []
    for entry in entries:
        evaluation, tags = store.evaluation(entry["id"]), entry["tags"]
        result = evaluation.result()
        view = MeasuredTokens(
            *(tags[name] for name in ("method", "size", "seed", "profile")),
            tuple(filter(None, tags["retained"].split(","))),
            {domain: tensor.numpy() for domain, tensor in evaluation.tensors().items()},
            result["run_id"],
            tuple(map(np.array, result.get("text_losses", ()))),
        )
        measured.append(view)
    return measured


def _load_control(store: Store, of_size: Sequence[Mapping], seed: str) -> list[MeasuredTokens]:
    baselines = {entry["tags"]["seed"]: entry for entry in of_size if _is_baseline(entry)}
    seeds = list(baselines)
    if seed not in seeds or len(seeds) < 2:
        return []
    following = baselines[seeds[(seeds.index(seed) + 1) % len(seeds)]]
    return [replace(measured, seed=seed) for measured in _load(store, [following])]


def _shade_texts(
    store: Store, eval_id: str, measured: Sequence[MeasuredTokens], baseline: MeasuredTokens
) -> tuple[ShadedText, ...]:
    """Returns texts whose tokens can be shaded by their loss increase over `baseline`.

    The texts come from the evaluation's config. If it has none, they are the starts of the domains'
    validation data. Each method has two rows per text, for profiles core and core+domain. The
    colour scale comes from the loss increases of `filtering` under core.
    """
    config = store.evaluation(eval_id).config()
    corpus = open_corpus(store, config["data_id"])
    tokenizer, texts = load_tokenizer(corpus.tokenizer_path), []
    given = text_tokens(corpus.tokenizer_path, config.get("texts", ()), sys.maxsize)
    first = [(d, corpus.validation(d)[0, : NUM_SHADED + 1].tolist()) for d in baseline.losses]
    for number, (domain, tokens) in enumerate(given or first):
        part = (0, slice(len(tokens) - 1))
        losses = baseline.texts[number] if given else baseline.losses[domain][part]
        views, scale = {}, np.nan
        for view in measured:
            if view.profile in (CORE, f"{CORE}+{domain}") and view.method != BASELINE:
                state = "kept" if domain in view.retained else "removed"
                increases = (view.texts[number] if given else view.losses[domain][part]) - losses
                views[f"{method_style(view.method).label}, {domain} {state}"] = increases
                if (view.method, view.profile) == (CALIBRATION_METHOD, CORE):
                    scale = shading_scale(increases)
        name = f"{domain}, text {number + 1}" if given else domain
        pieces = tuple(token_texts(tokenizer, tokens))
        texts.append(ShadedText(name, pieces, losses, scale, views))
    return tuple(texts)


TOKENS_PRESENTATION = Presentation(
    read=read_tokens,
    text=tokens_text,
    brief=brief_tokens,
    table=lambda record, results: results.found.table[LOCALIZATION_COLUMNS],
    page=tokens_page,
)
