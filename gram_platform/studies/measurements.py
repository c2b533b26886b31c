"""Defines the measurements. Each is one object: the nodes that a study runs, and how results are read and shown.

A new one is a class like `Losses`, and a line in the table `MEASUREMENTS` or an entry point of a package.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gram_platform.analysis.calibration import calibration_table
from gram_platform.analysis.localization import LOCALIZATION_COLUMNS
from gram_platform.analysis.ratios import ALL, BASELINE
from gram_platform.analysis.tables import table_csv
from gram_platform.config import CORE, LOSSES, SAMPLES, TOKENS, AnyEvaluation, Continuations, TokenLosses
from gram_platform.config.plugins import Table
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.pages.report import calibration, localization, samples
from gram_platform.pages.report.build import report_footer, report_sections
from gram_platform.pages.report.page import figures_of, page_html, with_verdicts
from gram_platform.pages.report.sections import renamed
from gram_platform.pages.results.record import StudyRecord, intro_text, mlflow_links, publish, with_links
from gram_platform.pages.results.results import lost_rows, ratio_lines, read_results, summary_text
from gram_platform.store import Store
from gram_platform.store.machines import cordoned_lines
from gram_platform.tracking import Tracker
from gram_platform.tracking.frame import final_frames


@dataclass(frozen=True)
class Losses:
    """The losses of every domain under every view, and the attacks. Other measurements replace every method.

    `nodes` depends on a measurement's parameters. The functions below it take results of every study with its name:
    `read` returns them, from `frames` where they are given and else from the storage, None while there is nothing to
    show. They have `source` (a text) and, where there are any, `runs` and `claims` as `pages.results.results.Results`.
    `text` is for a terminal; `table` is table.csv, `lines` are drawn in MLflow; `intro`, `sections` and `footer` are
    parts of the page. `write` makes the files of all these. `lost` has a line for each node that is done but missing
    from the tables.
    """

    name: ClassVar[str] = LOSSES  # in study.json

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        """Returns the runs and evaluations of a method in a setting."""
        return method_nodes(method, setting)

    read = staticmethod(read_results)
    lost = staticmethod(lost_rows)
    text = staticmethod(summary_text)
    lines = staticmethod(ratio_lines)

    @staticmethod
    def table(record, results):
        return renamed(results.analysis.table, record.varies)

    @staticmethod
    def intro(record, results, tracker):
        return with_verdicts(intro_text(record, results.source, tracker), results.claims)

    @staticmethod
    def sections(record, results):
        return report_sections(results)

    @staticmethod
    def footer(results):
        return report_footer(results)

    @classmethod
    def write(cls, record: StudyRecord, store: Store, results: Any, failures: Mapping, tracker: Tracker | None) -> dict:
        """Writes table.csv, report.html and study.json, logs them to MLflow if there is a tracker; returns their paths.

        `failures` are {node id: message}.
        """
        linked = replace(results, runs=with_links(results.runs, failures, mlflow_links(tracker)))
        sections, table = cls.sections(record, linked), table_csv(cls.table(record, results))
        with_machines = replace(record, facts=(*record.facts, *cordoned_lines(store, record.name)))
        report = page_html(record.title, cls.intro(with_machines, results, tracker), sections, cls.footer(results))
        return publish(record, store, table, report, figures_of(sections), tracker, cls.lines(results))


@dataclass(frozen=True)
class Calibration(Losses):
    """The same losses, of baselines of known shares of the steps: the errors of their compute ratios."""

    name: ClassVar[str] = "calibration"

    read = staticmethod(calibration.read_calibration)
    text = staticmethod(calibration.calibration_text)
    sections = staticmethod(calibration.calibration_sections)

    @staticmethod
    def table(record, results):
        return calibration_table(results.errors)

    @staticmethod
    def footer(results):
        return calibration.CALIBRATION_FOOTER


def instead_of_losses(nodes: list[Node], measure: str, evaluation_of: Callable[[Node], AnyEvaluation]) -> list[Node]:
    """Returns the runs without attacks, and each view with another evaluation in place of its losses."""
    runs = [node for node in nodes if node.is_run and not node.is_attack]
    views = [node for node in nodes if not node.is_run]
    return [*runs, *(replace(node, config=evaluation_of(node)).tagged(measure=measure) for node in views)]


@dataclass(frozen=True)
class TokenIncreases(Losses):
    """The increase of every token's loss over the baseline's."""

    name: ClassVar[str] = TOKENS

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        def token_losses(node: Node) -> TokenLosses:
            num_sequences, precision = setting.num_eval_sequences, setting.size.precision
            return TokenLosses(node.config.view, setting.data_id, setting.auxiliary, num_sequences, precision)

        return instead_of_losses(method_nodes(method, setting), self.name, token_losses)

    read = staticmethod(localization.read_tokens)
    lost = staticmethod(lambda record, store, results, done: ())
    text = staticmethod(localization.tokens_text)
    lines = staticmethod(lambda results: ())
    intro = staticmethod(localization.tokens_intro)
    sections = staticmethod(localization.tokens_sections)

    @staticmethod
    def table(record, results):
        return results.found.table[LOCALIZATION_COLUMNS]

    @staticmethod
    def footer(results):
        return localization.LOCALIZATION_FOOTER


@dataclass(frozen=True)
class Samples(Losses):
    """Continuations of documents of each auxiliary domain, by the views that keep it alone and by those without it.

    With `compared_only`: of core and of the compared profiles' domains, by the same views.
    """

    num_prompt_tokens: int
    num_tokens: int
    documents: tuple[int, ...] = (0, 1)
    temperature: float = 1.0
    seed: int = 0
    compared_only: bool = False

    name: ClassVar[str] = SAMPLES

    def nodes(self, method: str, setting: Setting) -> list[Node]:
        chosen = sorted({domain for profile in setting.profiles for domain in profile})
        domains = (CORE, *chosen) if self.compared_only else setting.auxiliary

        def continuations(node: Node) -> Continuations:
            return Continuations(
                node.config.view,
                setting.data_id,
                continued_domains(node.names, domains),
                self.documents,
                self.num_prompt_tokens,
                self.num_tokens,
                self.temperature,
                self.seed,
                setting.size.precision,
            )

        nodes = method_nodes(method, setting)
        nodes = [node for node in nodes if node.is_run or continued_domains(node.names, domains)]
        return instead_of_losses(nodes, self.name, continuations)

    read = staticmethod(samples.read_samples)
    lost = staticmethod(lambda record, store, results, done: ())
    text = staticmethod(samples.samples_text)
    lines = staticmethod(lambda results: ())
    intro = staticmethod(samples.samples_intro)
    sections = staticmethod(samples.samples_sections)

    @staticmethod
    def table(record, results):
        return results.samples

    @staticmethod
    def footer(results):
        return samples.SAMPLES_FOOTER


def continued_domains(names: dict[str, str], domains: tuple[str, ...]) -> tuple[str, ...]:
    """Returns which of the domains a view continues: all for the baseline and core alone, the kept one for core with
    one domain, none for other views. `names` are the tags of the view.
    """
    if names["profile"] == CORE or (names["method"], names["profile"]) == (BASELINE, ALL):
        return domains
    kept = names["retained"]
    return tuple(d for d in domains if d in (CORE, kept)) if kept in domains else ()


MEASUREMENTS = Table(
    "gram.measurements",
    {measurement.name: measurement for measurement in (Losses, Calibration, TokenIncreases, Samples)},
    is_usable=lambda kind: isinstance(kind, type) and issubclass(kind, Losses),
)


def read_or_lost(
    record: StudyRecord, store: Store, tracker: Tracker, done: Collection[str]
) -> tuple[Any, Sequence[str]]:
    """Returns (a study's results, a line about each part that the storage has lost); results are None as in `read`.

    Reads `final_frames`. `done`: ids of the nodes that are done.
    """
    measurement = MEASUREMENTS[record.measurement]
    try:
        frames = final_frames(store, tracker, record.ids, record.baseline_runs)
        results = measurement.read(record, store, frames)
    except ValueError as error:
        return None, [f"{record.name}: {error}"]
    return results, measurement.lost(record, store, results, done)
