"""Builds saved views of MLflow's runs page, which show the charts or runs of a study.

A saved view has a filter, columns and charts. MLflow stores it as a tag of the experiment. The
tag's format is undocumented, so the views copy what the page of MLflow 3.17 writes and reads.
`test_mlflow_pages.py` opens our views in a browser.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypedDict
from urllib.parse import quote

from gram_platform.config.identity import metric_name, short_hash
from gram_platform.config.plain import parse_json
from gram_platform.config.space import RANK, TrialColumns
from gram_platform.tracking.entry import KIND, STATUS, STUDY, STUDY_ID
from gram_platform.tracking.values import LONGEST_TEXT, text_for_people, unescape

LINE = "line"
VIEW_TAG = "mlflow.sharedViewState."
TRIAL_KIND = "trial"
# Without this, MLflow shows pages about traces of language models.
TRAINING_RUNS = "workflowType=machine_learning"
_VIEW_COLUMNS = ("tags.`method`", "tags.`size`", "tags.`profile`", "tags.`seed`")
# A class follows. Compute ratios are metrics of evaluations.
RATIO = "ratio/"
_NODE_COLUMNS = (*_VIEW_COLUMNS, "tags.`elicited`", "metrics.`train/loss`")
_LINE = {
    "xAxisKey": "step",
    "xAxisScaleType": "log",
    "scaleType": "linear",
    "yAxisKey": "metric",
    "lineSmoothness": 0,
    "range": {},
    "displayPoints": True,
    "useGlobalXaxisKey": False,
}
# Characters of the links in an experiment's description.
MOST_LINKS = LONGEST_TEXT - 500
ABOUT = "Runs that `gram_platform` trained"
EXPERIMENT_NOTE = f"""{ABOUT}; unfold one to see the evaluations of its views and the attacks on
them. The run `study NAME` has the study's table, report and figures. The runs of kind `line`
hold its compute ratios by model size (the step)."""


@dataclass(frozen=True)
class Line:
    """A chart line of a study, with one point for each model size.

    MLflow stores it as a run whose steps are numbers of parameters.
    """

    name: str
    tags: Mapping[str, str]
    # The number of parameters -> metric -> value.
    points: Mapping[int, Mapping[str, float]]

    @property
    def digest(self) -> str:
        points = {str(step): dict(values) for step, values in self.points.items()}
        return short_hash({"name": self.name, "tags": dict(self.tags), "points": points})


def study_id(name: str, params: Mapping[str, str]) -> str:
    return short_hash({"study": name, "params": dict(params)})


@dataclass(frozen=True)
class StudyLog:
    """The data of a study or search that MLflow shows in addition to the nodes."""

    name: str
    # Bytes of UTF-8, by name.
    files: Mapping[str, bytes]
    figures: Mapping[str, Any]
    params: Mapping[str, str]
    lines: Sequence[Line] = ()
    # By the id of every node of the study. Each also gets the tag `gram.study.NAME`.
    node_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # By tag of the experiment, whose description may link to them.
    views: Mapping[str, str] = field(default_factory=dict)
    # The code of the newest submission, a text of `provenance.Code`.
    code: str = ""
    node_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trials: Sequence["TrialEntry"] = ()
    answers: Sequence[str] = ()
    colours: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return study_id(self.name, self.params)


@dataclass(frozen=True)
class TrialEntry:
    """A trial of a search.

    Its MLflow run has no child runs. MLflow allows one parent for each run, but several studies can
    use the trial's nodes.
    """

    # A hash of the search and the trial's point, because a grid that grows renumbers its trials.
    trial_id: str
    search: str
    trial: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    run_ids: tuple[str, ...]
    elapsed_s: float


def trials_filter(study_id: str) -> str:
    return f"tags.`{KIND}` = '{TRIAL_KIND}' and tags.`{STUDY_ID}` = '{study_id}'"


def group_metric(objective: str, group: str) -> str:
    """Returns the name of the metric in the contour chart of one group of trials."""
    return metric_name(f"{objective} at {group}")


def search_view(
    search: str, study_id: str, columns: TrialColumns, groups: Iterable[str]
) -> dict[str, str]:
    """Returns a tag with the saved view of a search's trials, sorted by their rank.

    The view has a parallel coordinates chart. If at least two parameters vary, each group of trials
    also has a contour chart over the first two parameters.
    """
    section, varied = f"gram.{search}.trials", (*columns.groups, *columns.parameters)
    fields = {"selectedParams": varied, "selectedMetrics": columns.objectives, "showAllRuns": True}
    charts, titles = [_chart("PARALLEL", section, "parallel", fields)], {section: "Trials"}
    for group in groups if len(columns.parameters) > 1 else ():
        x, y, z = *columns.parameters[:2], group_metric(columns.objectives[0], group)
        axes = {"xaxis": ("PARAM", x), "yaxis": ("PARAM", y), "zaxis": ("METRIC", z)}
        fields = {axis: {"key": key, "type": kind} for axis, (kind, key) in axes.items()}
        charts.append(_chart("CONTOUR", z, "contour", fields))
        # The title of a contour is cut before its metric, so its section has the metric's name.
        titles[z] = unescape(z)
    metrics = [f"metrics.`{name}`" for name in (RANK, *columns.objectives)]
    listed = [*metrics, *(f"params.`{name}`" for name in varied), f"tags.`{STATUS}`"]
    name = f"{search}: trials"
    return _view(section, name, trials_filter(study_id), listed, metrics[0], charts, titles)


def study_views(
    study: str, study_id: str, shown: Mapping[str, str], charts: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Returns tags with a study's three views, which show evaluations, charts and all nodes.

    `charts` lists the metrics of each chart. The first metric also names the chart. Evaluations are
    sorted by the compute ratio of the class `forget`. If no chart shows this class, they are sorted
    by the first chart's compute ratio. If `charts` is empty, returns only the view of all nodes.
    """
    of_nodes, key = f"tags.`{STUDY}.{study}` != ''", f"gram.{study}."
    nodes = _view(f"{key}runs", f"{study}: runs", of_nodes, _NODE_COLUMNS)
    if not charts:
        return nodes
    tags = {KIND: LINE, STUDY_ID: study_id, **shown}
    of_lines = " and ".join(
        f"tags.`{tag}` = {_quote(text_for_people(value))}" for tag, value in tags.items()
    )
    of_evaluations = f"tags.`{KIND}` = 'evaluation' and {of_nodes}"
    ratios = [f"metrics.`{RATIO}{name}`" for name, *_ in charts]
    best = next((name for name in ratios if name.endswith("forget`")), ratios[0])
    columns = [best, *(name for name in ratios if name != best), *_VIEW_COLUMNS]
    name, section = f"{study}: ratios by size", f"{key}ratios"
    lines = [
        _chart(
            "LINE", section, names[0], _LINE | {"metricKey": names[0], "selectedMetricKeys": names}
        )
        for names in charts
    ]
    return {
        **_view(f"{key}evaluations", f"{study}: evaluations", of_evaluations, columns, best),
        **_view(section, name, of_lines, charts=lines, titles={section: "By number of parameters"}),
        **nodes,
    }


def _view(
    key: str,
    name: str,
    filter_string: str,
    columns: Sequence[str] = (),
    order_by: str = "",
    charts: Sequence[Mapping] = (),
    titles: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Encodes a saved view as a tag, in the format of MLflow's page.

    The tag replaces an older view with the same `key`. `order_by` is the column that sorts the
    rows, in ascending order. `titles` maps chart sections to titles.
    """
    state = {"searchFilter": filter_string, "selectedColumns": columns}
    state |= {"runsHiddenMode": "SHOW_ALL"}
    if order_by:
        state |= {"orderByKey": order_by, "orderByAsc": True}
    if charts:
        layout = {"display": True, "columns": 2}
        sections = [{"uuid": section, "name": title, **layout} for section, title in titles.items()]
        state |= {"compareRunSections": sections, "compareRunCharts": charts}
        state |= {"isAccordionReordered": True}
    view = {"name": name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
    return {VIEW_TAG + key: json.dumps(view)}


def _chart(kind: str, section: str, name: str, fields: Mapping[str, object]) -> dict[str, object]:
    common = {"type": kind, "uuid": f"{section}.{name}", "metricSectionId": section}
    return {**common, "runsCountToCompare": 100, **fields}


def read_views(tags: Mapping[str, str], experiment_id: str) -> dict[str, tuple[str, str]]:
    """Reads our views from an experiment's tags as {key: (name, URL)}.

    The URLs are relative to MLflow's base URL.
    """
    views = {}
    for tag, text in sorted(tags.items()):
        if tag.startswith(f"{VIEW_TAG}gram."):
            # The next study replaces a text that people have changed.
            with suppress(ValueError):
                view, key = parse_json(text, StoredView), tag.removeprefix(VIEW_TAG)
                has_charts = "compareRunCharts" in parse_json(view["state"], dict)
                address = f"#/experiments/{experiment_id}/runs?{TRAINING_RUNS}"
                address += f"&viewStateShareKey={quote(key)}"
                views[key] = view["name"], address + "&compareRunsMode=CHART" * has_charts
    return views


class StoredView(TypedDict):
    name: str
    state: str


def _quote(value: str) -> str:
    """Quotes a value for MLflow's filters, which have no escapes."""
    return '"{}"'.format(value.replace('"', "")) if "'" in value else f"'{value}'"


def experiment_note(tags: Mapping[str, str], experiment_id: str) -> str:
    """Returns the experiment's description in Markdown.

    Links to our views come first, because MLflow shows only the beginning of a description.
    """
    links = ""
    for name, address in read_views(tags, experiment_id).values():
        link = f"{' · ' if links else ''}[{name}]({address})"
        if len(links) + len(link) > MOST_LINKS:
            links += " · ..."
            break
        links += link
    return f"Pretraining studies: {links}\n\n{EXPERIMENT_NOTE}" if links else EXPERIMENT_NOTE
