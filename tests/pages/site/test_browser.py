"""A site and its reports in headless Chromium: nothing on the console, every figure drawn, for everybody."""

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import plotly.graph_objects as go
import pytest
from markupsafe import Markup

from gram_platform.config import CORE, Evaluation, RoutingConfig, RunConfig
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.config.provenance import code_of_process, command_line, provenance
from gram_platform.corpora import prepare, resolve
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.execution import Execution
from gram_platform.engine.node import execute_run
from gram_platform.methods import Setting
from gram_platform.methods.nodes import method_nodes
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.report.page import Page, Section
from gram_platform.pages.results.record import StudyRecord
from gram_platform.pages.results.results import read_results
from gram_platform.pages.site.build import build_site, tracking_of
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.pages.site.browser import running_browser
from tests.pages.site.pages import CONTRAST, DESK, DRAWN, LINKS_OF_PLACES, SOURCE_TEXT, UNPRINTED, require_whole
from tests.pages.site.planted import every_state

TINY = dataclasses.replace(SMOKE_SIZES["tiny"], core_tokens=64 * 160)


def real_study(store: Store) -> None:
    """The baseline and GRAM at one size and one seed, trained on generated stories."""
    recipe = resolve("stories-smoke", seq_len=TINY.seq_len, vocab_size=TINY.vocab_size, sample_bytes=100_000)
    prepare(recipe, store.data_root)
    auxiliary = [domain for domain in recipe.domains if domain != CORE]
    counts = {CORE: 160, **dict.fromkeys(auxiliary, 12)}
    routing = RoutingConfig(0.5, 0.3)
    shape = {"warmup_fraction": 0.1, "decay_fraction": 0.1, "num_eval_points": 6, "num_eval_sequences": 4}
    size = {"size": TINY, "seed": 0, "data_id": recipe.data_id, "num_sequences": counts}
    setting = Setting(**size, profiles=((auxiliary[0],),), routing=routing, **shape)
    nodes = [node for method in ("baseline", "gram") for node in method_nodes(method, setting)]
    for node in nodes:
        execute = {RunConfig: execute_run, Evaluation: execute_evaluation}[type(node.config)]
        execute(node.config, node.names, Execution(store.root, code=str(code_of_process())))
    entries = tuple({"id": node.id, "kind": node.kind, "tags": node.names} for node in nodes)
    record = StudyRecord(
        name="small",
        title="A small study",
        question="Does the site show it?",
        facts=(),
        params={"preset": "test"},
        sizes=("tiny",),
        parameters={"tiny": 1},
        profile=f"core+{auxiliary[0]}",
        entries=entries,
        submissions=provenance("1 machine").after(()),
    )
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    LOSSES_PRESENTATION.write(record, store, read_results(record, store), {}, tracker)


@pytest.fixture(scope="session")
def storages(tmp_path_factory) -> list[Path]:
    """Two storages with a site: of really trained runs, and of planted ones in every state."""
    real = Store(tmp_path_factory.mktemp("real")).open_for_writing()
    real_study(real)
    planted = every_state(tmp_path_factory.mktemp("planted")).store
    for store in (real, planted):
        uri = tracking_of(store, "")
        assert build_site(store, uri).problems == ()
    return [Path(store.root) for store in (real, planted)]


def pages_of(storage: Path) -> list[Path]:
    """The pages of the site, and the reports to which it leads."""
    return [*sorted(storage.glob("site/*.html")), *sorted(storage.glob("studies/*/report.html"))]


@pytest.mark.browser
def test_every_page_is_whole_for_everybody(storages, tmp_path):
    pages = [page for storage in storages for page in pages_of(storage)]
    assert len(pages) == 3 + 5
    require_whole(pages, tmp_path)


@pytest.mark.browser
def test_every_row_and_figure_has_a_link_to_command_and_commit(storages, tmp_path):
    """Follows each link: to a place of the page, to a report, or to a run in MLflow, whose tags are shown there."""
    runs = {run.info.run_id: run.data.tags for run in Tracker(default_tracking_uri(storages[0])).runs().values()}
    with running_browser(tmp_path) as browser:
        browser.window(*DESK)
        for page in [page for storage in storages for page in pages_of(storage)]:
            browser.open(page)
            addresses = browser.evaluate(LINKS_OF_PLACES)
            assert addresses, page
            in_page = f"{page.as_uri()}#source"
            for address in sorted(set(map(str, addresses)), key=lambda address: address != in_page):
                if "mlflow.html#" in address:
                    tags = runs[address.rpartition("/")[2].partition("?")[0]]
                    shown = f"as `{tags['gram.command']}`, {tags['gram.code']}"
                    assert tags["gram.command"] == command_line()
                else:
                    assert address.startswith("file:"), (page, address)
                    if address != in_page:
                        browser.visit(address)
                    shown = browser.evaluate("document.getElementById('source').textContent")
                assert SOURCE_TEXT.search(shown), (page, address)
    assert browser.said == []


# pixels between the margins of a landscape sheet of Letter paper, which is narrower than A4
LETTER = 964


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_paper_has_every_figure_and_fold_and_clips_nothing(storages, tmp_path, dark):
    pages = [page for storage in storages for page in pages_of(storage)]
    with running_browser(tmp_path) as browser:
        for page in pages:
            browser.window(*DESK, dark=dark)
            browser.open(page)
            num_folded = browser.evaluate("document.querySelectorAll('details:not([open])').length")
            assert browser.pdf().startswith(b"%PDF")
            drawn = "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn === 'yes')"
            assert browser.evaluate(drawn), page
            assert browser.evaluate("document.querySelectorAll('details:not([open])').length") == num_folded, page
            browser.paper(LETTER, dark)
            assert browser.evaluate(UNPRINTED) == [], page
            assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.said == []


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_page(storages, tmp_path, dark):
    pages = pages_of(storages[0])
    with running_browser(tmp_path) as browser:
        browser.window(*DESK, dark=dark)
        for page in pages:
            browser.open(page)
            assert browser.wait_for(DRAWN)
            assert min(browser.evaluate(CONTRAST)) >= 4.5, page  # WCAG 2, level AA
            paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") != dark


@pytest.mark.browser
def test_rows_are_filtered_and_sorted_and_a_click_opens_the_run_in_mlflow(storages, tmp_path):
    rows = "[...table.tBodies[0].rows].filter((row) => !row.hidden)"
    with running_browser(tmp_path) as browser:
        browser.window(*DESK)
        browser.open(storages[1] / "studies" / "scaling" / "report.html")
        browser.evaluate(
            "var table = document.querySelector('#runs table'), field = document.querySelector('#runs input')"
        )
        total = browser.evaluate(f"{rows}.length")
        browser.evaluate("field.value = 'evaluation tiny core+lisp gram'; field.dispatchEvent(new Event('input'))")
        assert (browser.evaluate(f"{rows}.length"), total) == (2, 36)
        browser.evaluate("field.value = ''; field.dispatchEvent(new Event('input'))")
        browser.evaluate("table.querySelectorAll('th button')[2].click()")
        methods = browser.evaluate(f"{rows}.map((row) => row.cells[2].textContent)")
        assert methods == sorted(methods, key=str.lower)
        browser.evaluate(f"{rows}.forEach((row, i) => row.cells[3].textContent = ['2B', '50M', '0.6M'][i % 3])")
        browser.evaluate("table.querySelectorAll('th button')[3].click()")
        sizes = browser.evaluate(f"{rows}.map((row) => row.cells[3].textContent)")
        assert list(dict.fromkeys(sizes)) == ["0.6M", "50M", "2B"]
        browser.open(storages[0] / "studies" / "small" / "report.html")
        linked = "[...document.querySelectorAll('.plot')].some((plot) => plot.data && plot.data.some((t) => t.meta))"
        assert browser.wait_for(f"{DRAWN} || {linked}")  # figures in folded parts are not drawn
        opened = browser.evaluate(
            "var opened = []; window.open = (address) => opened.push(address);"
            "const plot = [...document.querySelectorAll('.plot')].find((p) => p.data && p.data.some((t) => t.meta));"
            "const trace = plot.data.find((t) => t.meta);"
            "const data = trace.customdata; const first = Array.isArray(data) ? data[0] : data;"
            "plot.emit('plotly_click', { points: [{ data: trace, customdata: first }] });"
            "opened"
        )
        assert [address.rpartition("/")[0] for address in opened] == ["../../mlflow.html#/experiments/1/runs"]


@pytest.mark.browser
@pytest.mark.slow
def test_a_figure_is_saved_as_svg_and_its_table_as_csv_without_a_network(storages, tmp_path):
    """The report is a file. The figure on white paper has the colours of a light page, whichever the page has."""
    study = storages[1] / "studies" / "scaling"
    name, columns = "scaling-forget", ["forget", "forget_low", "forget_high", "num_seeds"]
    rows = pd.read_csv(study / "table.csv").query("profile == 'core+lisp' and method != 'baseline' and forget.notna()")
    with running_browser(tmp_path) as browser:
        browser.window(*DESK, dark=True)
        browser.open(study / "report.html")
        place = f"document.querySelector('[data-name={name}]')"
        browser.evaluate(f"{place}.scrollIntoView()")
        assert browser.wait_for(f"{place}.dataset.drawn === 'yes'")
        controls = f"[...{place}.nextElementSibling.children]"
        assert browser.evaluate(f"{controls}.map((place) => place.getAttribute('aria-label'))") == [
            f"{kind}: Forget (lower is better)" for kind in ("SVG", "CSV", "Reset")
        ] + ["Source: command and commit of Forget (lower is better)"]
        assert browser.evaluate(f"{controls}.every((place) => (place.focus(), document.activeElement === place))")

        csv = browser.saved(f"{controls}[1]", tmp_path / "csv")
        saved = pd.read_csv(csv)
        assert csv.name == f"{name}.csv"
        values = [sorted(frame[["method", "size", *columns]].values.tolist()) for frame in (rows, saved)]
        assert values[0] == values[1]
        assert saved["forget_low"].notna().any()

        browser.evaluate(f"Plotly.relayout({place}, {{'yaxis.range': [0.5, 0.6]}}).then(() => null)")
        svg = browser.saved(f"{controls}[0]", tmp_path / "svg")
        drawing = svg.read_text()
        assert svg.name == f"{name}.svg"
        assert ElementTree.fromstring(drawing).tag.endswith("svg")
        assert all(text in drawing for text in ("Forget (lower is better)", "GRAM", "compute ratio", "0.56"))
        assert "rgb(74, 78, 84)" in drawing
        assert "rgb(201, 206, 214)" not in drawing

        browser.evaluate(f"{controls}[2].click()")
        assert browser.wait_for(f"{place}.layout.yaxis.range[1] > 0.7")
        assert browser.said == []


NOTE = "(top.ran ??= []).push"
HOSTILE = f"""<script>{NOTE}("script")</script><img src="data:," onerror="{NOTE}('handler')">
<script src="data:text/javascript,{NOTE}('file')"></script><iframe srcdoc="<script>{NOTE}('frame')</script>"></iframe>
<a id="hostile" href="javascript:{NOTE}('link')">x</a>"""


@pytest.mark.browser
def test_markup_that_got_into_a_page_runs_no_script(tmp_path):
    """Its figures are drawn all the same; without the page's policy every one of the scripts would run."""
    figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2]))
    section = Section("Trials", figures={"trials": figure}, markup=Markup(HOSTILE))
    page, bare = tmp_path / "page.html", tmp_path / "bare.html"
    page.write_text(Page("A report", "", [section]).html())
    bare.write_text(re.sub("<meta http-equiv=.Content-Security-Policy.*?>", "", page.read_text()))
    with running_browser(tmp_path) as browser:
        browser.window(*DESK)
        for place, expected in (bare, {"script", "handler", "file", "frame", "link"}), (page, set()):
            browser.open(place)
            browser.evaluate("document.querySelector('#hostile').click()")
            assert browser.wait_for(DRAWN)
            assert set(browser.evaluate("window.ran ?? []")) == expected
        assert all("Content Security Policy" in line for line in browser.said)
