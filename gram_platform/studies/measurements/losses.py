"""Measures the losses of domains and attacks every view, for compute ratios."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gram_platform.config import LOSSES, AnyEvaluation
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.report import report_footer, report_sections
from gram_platform.pages.report.page import Section
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.results.results import read_results, study_report, summary_text, write_results
from gram_platform.store import Store
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import Frames


@dataclass(frozen=True)
class Losses:
    """The losses of every domain under every view. Other measurements replace all methods but `nodes_of`.

    `nodes` depends on the measurement's parameters; the other methods serve every study with its name.
    """

    name: ClassVar[str] = LOSSES  # as in `study.json`

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        """Returns the runs and evaluations of a method in a setting, and the attacks."""
        return method_nodes(method, setting)

    @staticmethod
    def read(
        record: StudyRecord, store: Store, uri: str | None, why_not: str = "", frames: Frames | None = None
    ) -> Any:
        """Returns the results so far, None while there is nothing to show.

        They have `source` (a text) and, where there are any, `runs` and `claims` as `pages.results.results.Results`.
        Reads MLflow at `uri`; `why_not` says why that is None. `frames`: of a caller who reads several studies.
        """
        return read_results(record, store, uri, why_not, frames)

    @staticmethod
    def text(record: StudyRecord, results: Any) -> str:
        """Returns the results for a terminal."""
        return summary_text(record, results)

    @staticmethod
    def write(
        record: StudyRecord, store: Store, results: Any, failures: Mapping[str, str], tracker: Tracker | None
    ) -> dict[str, str]:
        """Writes table.csv, report.html and study.json, and logs them to MLflow; returns their paths by name."""
        return write_results(record, store, results, failures, tracker)

    @staticmethod
    def sections(record: StudyRecord, results: Any) -> list[Section]:
        """Returns the sections of the report, for the study's page in the site."""
        return report_sections(study_report(record, results, results.runs))

    @staticmethod
    def footer(results: Any) -> str:
        """Returns the definitions below the sections."""
        return report_footer(results.runs)


def instead_of_losses(nodes: list[Node], measure: str, evaluation_of: Callable[[Node], AnyEvaluation]) -> list[Node]:
    """Returns the runs without attacks, and each view with another evaluation in place of its losses."""
    runs = [node for node in nodes if node.is_run and not node.is_attack]
    views = [node for node in nodes if not node.is_run]
    return [*runs, *(replace(node, config=evaluation_of(node)).tagged(measure=measure) for node in views)]
