"""Builds saved views of MLflow's page of runs: one click shows a study's charts or runs.

MLflow keeps a saved view, which is a filter, columns and charts, as a tag of the experiment, and
its page lists them under "Views". No document describes the tag. The format is what MLflow's page
3.17 writes and reads, and `test_mlflow_pages.py` opens our views in a browser.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import quote

from gram_platform.config.identity import metric_name, short_hash
from gram_platform.config.plain import parse_json
from gram_platform.config.space import RANK, TrialColumns
from gram_platform.tracking.entry import KIND, STATUS, STUDY, STUDY_ID
from gram_platform.tracking.values import LONGEST_TEXT, text_for_people, unescape

# The kind of MLflow's runs that hold a line of a study's figures.
LINE = "line"
# The view's key follows.
VIEW_TAG = "mlflow.sharedViewState."
# The kind of MLflow's runs that are trials of a search.
TRIAL_KIND = "trial"
# Without this, MLflow's pages are those about traces of language models.
TRAINING_RUNS = "workflowType=machine_learning"
VIEW_COLUMNS = ("tags.`method`", "tags.`size`", "tags.`profile`", "tags.`seed`")
# A class follows: compute ratios are metrics of an evaluation.
RATIO = "ratio/"
_NODE_COLUMNS = (*VIEW_COLUMNS, "tags.`elicited`", "metrics.`train/loss`")
# Characters of the links in an experiment's description.
MOST_LINKS = LONGEST_TEXT - 500
ABOUT = "Runs that `gram_platform` trained"
EXPERIMENT_NOTE = f"""{ABOUT}; unfold one to see the evaluations of its views and the attacks on
them. The run `study NAME` has the study's table, report and figures. The runs of kind `line`
hold its compute ratios by model size (the step)."""


@dataclass(frozen=True)
class Line:
    """One line of a study's figures, sent to MLflow as a run whose steps are model sizes."""

    name: str
    tags: Mapping[str, str]
    # The number of parameters -> metric -> value.
    points: Mapping[int, Mapping[str, float]]

    @property
    def digest(self) -> str:
        points = {str(step): dict(values) for step, values in self.points.items()}
        return short_hash({"name": self.name, "tags": dict(self.tags), "points": points})


def study_id(name: str, params: Mapping[str, str]) -> str:
    """Identifies a study with its parameters."""
    return short_hash({"study": name, "params": dict(params)})


@dataclass(frozen=True)
class SavedView:
    """A saved view. A later one with the same key replaces it."""

    key: str
    name: str
    filter_string: str
    columns: tuple[str, ...] = ()
    # Metrics of each chart, against the step on a log axis; the first names it.
    charts: tuple[tuple[str, ...], ...] = ()
    # Two parameters and a metric.
    contours: tuple[tuple[str, str, str], ...] = ()
    # The parameters and metrics of a chart of parallel coordinates.
    parallel: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    # A column, lowest first.
    order_by: str = ""

    def to_tag(self) -> str:
        """Encodes the view as MLflow's page does."""
        state = {
            "searchFilter": self.filter_string,
            "selectedColumns": self.columns,
            "runsHiddenMode": "SHOW_ALL",
        }
        if self.order_by:
            state |= {"orderByKey": self.order_by, "orderByAsc": True}
        charts = [_line_chart(self.key, metrics) for metrics in self.charts]
        charts += [_parallel_chart(self.key, *self.parallel)] if any(self.parallel) else []
        charts += [_contour_chart(*names) for names in self.contours]
        if charts:
            # The title of a contour is cut before its metric.
            titles = {self.key: "By number of parameters" if self.charts else "Trials"}
            titles |= {metric: unescape(metric) for _, _, metric in self.contours}
            shown = {"display": True, "columns": 2}
            sections = [{"uuid": key, "name": title, **shown} for key, title in titles.items()]
            state |= {"compareRunSections": sections, "compareRunCharts": charts}
            state |= {"isAccordionReordered": True}
        view = {"name": self.name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
        return json.dumps(view)


@dataclass(frozen=True)
class StudyLog:
    """What MLflow shows of a study or a search, next to its nodes."""

    name: str
    # In UTF-8, by name.
    files: Mapping[str, bytes]
    # Of plotly, by name.
    figures: Mapping[str, Any]
    params: Mapping[str, str]
    lines: Sequence[Line] = ()
    # By the node's id, with which the node also gets `gram.study.NAME`.
    node_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # The experiment's description links to them, unless people have written another.
    views: Sequence[SavedView] = ()
    # The newest submission's, a text of `provenance.Code`.
    code: str = ""
    # By the node's id, beside the metrics of its result.
    node_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trials: Sequence["TrialEntry"] = ()
    # The main results in sentences.
    answers: Sequence[str] = ()
    # Of each method's runs and evaluations.
    colours: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return study_id(self.name, self.params)


@dataclass(frozen=True)
class TrialEntry:
    """A trial of a search as a run of MLflow, no parent of its nodes: studies share these."""

    # A hash of the search and the trial's point: a grid that grows numbers its trials anew.
    trial_id: str
    search: str
    trial: str
    name: str
    status: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    # The ids of its runs.
    run_ids: tuple[str, ...] = ()
    elapsed_s: float = 0.0


def trials_filter(study_id: str) -> str:
    return f"tags.`{KIND}` = '{TRIAL_KIND}' and tags.`{STUDY_ID}` = '{study_id}'"


def group_metric(objective: str, group: str) -> str:
    """Names the metric of an objective that only one group's trials have, for their contour."""
    return metric_name(f"{objective} at {group}")


def search_view(
    search: str, study_id: str, columns: TrialColumns, groups: Sequence[str]
) -> SavedView:
    """Returns the view of a search's trials, the best of each group first.

    It has parallel coordinates, and for each of the `groups` a contour over two parameters.
    """
    varied = (*columns.groups, *columns.parameters)
    contours = tuple(
        (*columns.parameters[:2], group_metric(columns.objectives[0], group))
        for group in groups
        if len(columns.parameters) > 1
    )
    return SavedView(
        f"gram.{search}.trials",
        f"{search}: trials",
        trials_filter(study_id),
        (
            f"metrics.`{RANK}`",
            *(f"metrics.`{name}`" for name in columns.objectives),
            *(f"params.`{name}`" for name in varied),
            f"tags.`{STATUS}`",
        ),
        contours=contours,
        order_by=f"metrics.`{RANK}`",
        parallel=(varied, columns.objectives),
    )


def study_views(
    study: str, study_id: str, shown: Mapping[str, str], charts: tuple[tuple[str, ...], ...]
) -> tuple[SavedView, ...]:
    """Returns the views of a study: charts of its lines, its evaluations, and all its nodes.

    Without charts only the last. `charts`: as of `SavedView`; evaluations have the same ratios, the
    best first.
    """
    nodes = SavedView(f"gram.{study}.runs", f"{study}: runs", _nodes_of(study), _NODE_COLUMNS)
    if not charts:
        return (nodes,)
    tags = {KIND: LINE, STUDY_ID: study_id, **shown}
    lines = " and ".join(
        f"tags.`{tag}` = {_quoted(text_for_people(value))}" for tag, value in tags.items()
    )
    ratios = tuple(f"metrics.`{RATIO}{name}`" for name, *_ in charts)
    of_evaluations = f"tags.`{KIND}` = 'evaluation' and {_nodes_of(study)}"
    best = next((name for name in ratios if name.endswith("forget`")), ratios[0])
    columns = (best, *(name for name in ratios if name != best), *VIEW_COLUMNS)
    key, name = f"gram.{study}.evaluations", f"{study}: evaluations"
    evaluations = SavedView(key, name, of_evaluations, columns, order_by=best)
    key, name = f"gram.{study}.ratios", f"{study}: ratios by size"
    return evaluations, SavedView(key, name, lines, charts=charts), nodes


def _nodes_of(study: str) -> str:
    return f"tags.`{STUDY}.{study}` != ''"


def saved_views(tags: Mapping[str, str], experiment_id: str) -> dict[str, tuple[str, str]]:
    """Reads our views among an experiment's tags: {key: (name, address below MLflow's own)}."""
    found = {}
    for tag, value in sorted(tags.items()):
        if tag.startswith(f"{VIEW_TAG}gram.") and (view := _named_state(value)) is not None:
            key, (name, state) = tag.removeprefix(VIEW_TAG), view
            address = f"#/experiments/{experiment_id}/runs?{TRAINING_RUNS}"
            address += f"&viewStateShareKey={quote(key)}"
            found[key] = name, address + "&compareRunsMode=CHART" * ("compareRunCharts" in state)
    return found


class StoredView(TypedDict):
    name: str
    state: str


def _named_state(text: str) -> tuple[str, dict] | None:
    """Reads a view's name and state; None for another text, which the next study replaces."""
    try:
        view = parse_json(text, StoredView)
        return view["name"], parse_json(view["state"], dict)
    except ValueError:
        return None


def _quoted(value: str) -> str:
    """Quotes a value for MLflow's filters, which know no escape.

    A text with both quotes loses the double ones.
    """
    return '"{}"'.format(value.replace('"', "")) if "'" in value else f"'{value}'"


def experiment_note(tags: Mapping[str, str], experiment_id: str) -> str:
    """Describes an experiment for people, in Markdown.

    Links to our views come first, because the text is folded.
    """
    links = ""
    for name, address in saved_views(tags, experiment_id).values():
        link = f"{' · ' if links else ''}[{name}]({address})"
        if len(links) + len(link) > MOST_LINKS:
            links += " · ..."
            break
        links += link
    return f"Pretraining studies: {links}\n\n{EXPERIMENT_NOTE}" if links else EXPERIMENT_NOTE


def _contour_chart(x: str, y: str, z: str) -> dict:
    """Returns a chart in a section that has the name of its metric."""
    keys = {"xaxis": ("PARAM", x), "yaxis": ("PARAM", y), "zaxis": ("METRIC", z)}
    return {
        "type": "CONTOUR",
        "uuid": f"{z}.contour",
        "metricSectionId": z,
        "runsCountToCompare": 100,
        **{axis: {"key": key, "type": kind} for axis, (kind, key) in keys.items()},
    }


def _parallel_chart(section: str, params: Sequence[str], metrics: Sequence[str]) -> dict:
    return {
        "type": "PARALLEL",
        "uuid": f"{section}.parallel",
        "metricSectionId": section,
        "runsCountToCompare": 100,
        "selectedParams": params,
        "selectedMetrics": metrics,
        "showAllRuns": True,
    }


def _line_chart(section: str, metrics: Sequence[str]) -> dict:
    return {
        "type": "LINE",
        "uuid": f"{section}.{metrics[0]}",
        "metricSectionId": section,
        "metricKey": metrics[0],
        "selectedMetricKeys": list(metrics),
        "runsCountToCompare": 100,
        "xAxisKey": "step",
        "xAxisScaleType": "log",
        "scaleType": "linear",
        "yAxisKey": "metric",
        "lineSmoothness": 0,
        "range": {},
        "displayPoints": True,
        "useGlobalXaxisKey": False,
    }
