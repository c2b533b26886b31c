"""Every study of the paper from one command at the smoke preset: tables, reports and site, page by
page."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gram_platform.pages.results.record import load_record
from gram_platform.pages.results.results import read_results
from gram_platform.store import Store
from tests.pages.site.pages import require_links_lead_somewhere, require_whole

ROOT = Path(__file__).resolve().parents[3]
STUDIES = (
    "scaling",
    "stories",
    "dual_use",
    "titration",
    "composing",
    "partial_labels",
    "architecture",
    "accumulation",
    "aux_scaling",
)
STUDIES += ("token_localization", "samples")
SEARCHES = ("lr_bs_grid", "hyperparams", "maxent_search")
TIMEOUT_S = 1600.0  # on busy cores; on quiet ones the whole takes ten minutes


@dataclass(frozen=True)
class Campaign:
    """What `experiments/all.py --preset smoke` is asked for, and what it leaves."""

    flags: tuple[str, ...] = ()
    names: tuple[str, ...] = (*STUDIES, *SEARCHES)
    storage: Path = Path()


SOME = ("composing", "titration")
SHORT = Campaign(("--seeds", "1", "--searches", "none", "--studies", *SOME), SOME)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(SHORT, id="some"),
        pytest.param(Campaign(), id="whole", marks=pytest.mark.slow),
    ],
)
def all_studies(request, tmp_path_factory) -> Campaign:
    """Its storage is never to be written."""
    storage = tmp_path_factory.mktemp("all") / "storage"
    command = [sys.executable, "experiments/all.py", "--preset", "smoke", *request.param.flags]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"GRAM_STORAGE": str(storage), "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    assert "saved by sharing" in done.stdout
    return replace(request.param, storage=storage)


@pytest.mark.ray
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_study_leaves_its_table_and_report(all_studies):
    for name in all_studies.names:
        folder = all_studies.storage / "studies" / name
        assert (folder / "report.html").stat().st_size > 10_000, name
        with (folder / "table.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert rows, name
        assert "method" in rows[0] or name in ("lr_bs_grid", "maxent_search"), name
    site = all_studies.storage / "site"
    require_links_lead_somewhere(site)
    assert len(list(all_studies.storage.glob("studies/*/report.html"))) == len(all_studies.names)


@pytest.mark.slow  # test_browser.py is its quick relative
@pytest.mark.ray
@pytest.mark.browser
@pytest.mark.timeout(TIMEOUT_S + 300)
def test_every_page_of_its_site_is_whole(all_studies, tmp_path):
    reports = [all_studies.storage / "studies" / name / "report.html" for name in all_studies.names]
    require_whole([all_studies.storage / "site/index.html", *reports], tmp_path)


@pytest.mark.ray
def test_the_notebook_runs_on_a_finished_study(all_studies, monkeypatch):
    """Its cells in order, as a kernel would run them."""
    study, store = all_studies.names[0], Store(all_studies.storage)
    monkeypatch.setenv("GRAM_STORAGE", store.root)
    monkeypatch.setenv("GRAM_STUDY", study)
    cells = json.loads((ROOT / "dashboards/notebooks/compute_ratio.ipynb").read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    of_report = read_results(load_record(store, study), store).analysis.ratios
    rows = of_report[(of_report["method"] == "gram") & (of_report["size"] == names["size"])]
    core = rows.loc[rows["domain"] == "core", "compute_ratio"]
    assert set(names["ratios"]["ratio"].round(9)) == set(core.round(9))
    assert len(names["figure"].data) == 2 + names["ratios"]["profile"].nunique()
