"""The paper, figure by figure: what `Study.paper` says, what the index and docs/studies.md show.

`python -m tests.studies.test_paper_figures` writes both again, with costs by the planner.
"""

import json
import re
from collections.abc import Iterable

import pytest

from gram_platform.cli.run import OURS, find_study
from gram_platform.pages.index import PAPER_FILE
from gram_platform.studies.campaign import find_search
from gram_platform.studies.definition import Study
from gram_platform.studies.plan import work_left
from tests.submitted import plan_of
from tests.test_architecture import ROOT

FILE = ROOT / "gram_platform" / "pages" / PAPER_FILE
PAGE = ROOT / "docs" / "studies.md"
# The settings that the published figures come from, where the authors published them.
PUBLISHED = ("as_run", "paper")
# Sets of the paper's sizes without a figure of the paper.
NOT_A_FIGURE = {"calibration", "label_noise", "maxent_search"}
FINDINGS = {
    "scaling": "isolation",
    "composing": "core",
    "lr_bs_grid": "laws",
    "hyperparams": "searches",
}
TABLE = re.compile(r"(?<=\n\n)\| in the paper \|.*?\n(?=\n)", re.DOTALL)


def preset_of(study: Study) -> str:
    return next(name for name in PUBLISHED if name in study.presets)


def place(figure: str) -> tuple:
    kind, number = figure.split()
    return ("Figure", "Table", "Appendix").index(kind), number.zfill(2)


def rows() -> list[dict[str, str]]:
    """A row for each figure, in the paper's order, without the costs."""
    found = [
        {
            "in the paper": figure,
            "shows": shows,
            "as published": f"gram run {name} --preset {preset_of(study)}",
            "in minutes": f"gram run {name} --preset demo",
            "our page": name,
        }
        for name, study in ((name, find_study(name)) for name in OURS)
        for figure, shows in study.paper.items()
    ]
    return sorted(found, key=lambda row: place(row["in the paper"]))


def cost(name: str) -> str:
    """The hours and dollars of a dry run where no GPU is, with the search that comes before."""
    study = find_study(name)
    plan = plan_of(study, ["--preset", preset_of(study), "--storage", "/nowhere", "--dry-run"])
    plan = plan.with_ranks(0, {})
    studies = [part for part in plan.studies if not part.has_trials]
    needed = [search for part in studies if (search := find_search(plan, part))]
    work = work_left((*(search.with_nodes() for search in needed), *plan.studies), set())
    (machine,) = {one.part.machine for one in work}
    hours = sum(one.hours(machine) for one in work)
    return f"{hours:,.0f} {machine.name.upper()} hours, ${hours * machine.dollars_per_hour:,.0f}"


def with_costs() -> list[dict[str, str]]:
    costs = {name: cost(name) for name in {row["our page"] for row in rows()}}
    columns = ("in the paper", "shows", "as published", "cost", "in minutes", "our page")
    return [
        {name: (row | {"cost": costs[row["our page"]]})[name] for name in columns} for row in rows()
    ]


def table(shown: Iterable[dict[str, str]]) -> str:
    """The table of docs/studies.md."""
    lines = []
    for row in shown:
        name = row["our page"]
        page = f"[{name}](findings/{FINDINGS.get(name, 'methods')}.md)"
        cells = [f"`{v}`" if v.startswith("gram run") else v for v in row.values()][:-1]
        if not lines:
            lines = [" | ".join(row), " | ".join(["---"] * len(row))]
        lines.append(" | ".join([*cells, page]))
    return "".join(f"| {line} |\n" for line in lines)


def test_the_index_and_the_page_say_what_the_studies_say():
    written = json.loads(FILE.read_text())
    assert [{k: v for k, v in row.items() if k != "cost"} for row in written] == rows()
    assert TABLE.findall(PAGE.read_text()) == [table(written)]


@pytest.mark.parametrize("name", OURS)
def test_a_study_of_the_paper_has_its_figures(name):
    study = find_study(name)
    is_published = bool(set(PUBLISHED) & set(study.presets)) and name not in NOT_A_FIGURE
    assert bool(study.paper) == is_published
    assert not study.paper or "demo" in study.presets


@pytest.mark.slow
def test_the_costs_are_those_of_a_dry_run():
    assert json.loads(FILE.read_text()) == with_costs()


if __name__ == "__main__":
    made = with_costs()
    FILE.write_text(json.dumps(made, indent=1) + "\n")
    PAGE.write_text(TABLE.sub(lambda _: table(made), PAGE.read_text()))
