"""Measures the losses of domains and attacks every view, for compute ratios."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from gram_platform.config import LOSSES, AnyEvaluation
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.report.build import report_footer
from gram_platform.pages.results.results import read_results, results_sections, summary_text, write_results


@dataclass(frozen=True)
class Losses:
    """The losses of every domain under every view, and the attacks. Other measurements replace every method.

    `nodes` depends on a measurement's parameters. The functions below it take results of every study with its name:
    `read` returns them, None while there is nothing to show. They have `source` (a text) and, where there are any,
    `runs` and `claims` as `pages.results.results.Results`. `text` is for a terminal; `write` makes table.csv,
    report.html and study.json, logs them and returns their paths; `sections` and `footer` are parts of the site's page.
    """

    name: ClassVar[str] = LOSSES  # in study.json

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        """Returns the runs and evaluations of a method in a setting."""
        return method_nodes(method, setting)

    read = staticmethod(read_results)
    text = staticmethod(summary_text)
    write = staticmethod(write_results)
    sections = staticmethod(results_sections)

    @staticmethod
    def footer(results):
        return report_footer(results.runs)


def instead_of_losses(nodes: list[Node], measure: str, evaluation_of: Callable[[Node], AnyEvaluation]) -> list[Node]:
    """Returns the runs without attacks, and each view with another evaluation in place of its losses."""
    runs = [node for node in nodes if node.is_run and not node.is_attack]
    views = [node for node in nodes if not node.is_run]
    return [*runs, *(replace(node, config=evaluation_of(node)).tagged(measure=measure) for node in views)]
