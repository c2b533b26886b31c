"""The index and its reports in headless Chromium: nothing on the console, every figure drawn, for
everybody."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import plotly.graph_objects as go
import pytest
from markupsafe import Markup

from gram_platform.pages.index import write_index
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.report.page import Page, Section
from gram_platform.pages.results.record import load_record
from gram_platform.pages.results.results import read_results
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.pages.site.browser import running_browser
from tests.pages.site.pages import (
    DESK,
    DRAWN,
    UNPRINTED,
    require_links_lead_somewhere,
    require_whole,
)
from tests.pages.site.planted import every_state


@pytest.fixture(scope="session")
def storage(tmp_path_factory) -> Path:
    """A planted storage in every state with its index; the study `stories` has links into
    MLflow."""
    store = every_state(tmp_path_factory.mktemp("planted")).store
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    record = load_record(store, "stories")
    LOSSES_PRESENTATION.write(record, store, read_results(record, store), {}, tracker)
    write_index(store)
    return Path(store.root)


def pages_of(storage: Path) -> list[Path]:
    return [storage / "site/index.html", *sorted(storage.glob("studies/*/report.html"))]


@pytest.mark.browser
def test_every_page_is_whole_for_everybody(storage, tmp_path):
    assert len(pages_of(storage)) == 4
    require_links_lead_somewhere(storage / "site")
    require_whole(pages_of(storage), tmp_path)


# pixels between the margins of a landscape sheet of Letter paper, which is narrower than A4
LETTER = 964


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_paper_has_every_figure_and_fold_and_clips_nothing(storage, tmp_path, dark):
    with running_browser(tmp_path) as browser:
        for page in pages_of(storage):
            browser.window(*DESK, dark=dark)
            browser.open(page)
            num_folded = browser.evaluate("document.querySelectorAll('details:not([open])').length")
            assert browser.pdf().startswith(b"%PDF")
            drawn = (
                "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn ==="
                " 'yes')"
            )
            assert browser.evaluate(drawn), page
            assert (
                browser.evaluate("document.querySelectorAll('details:not([open])').length")
                == num_folded
            ), page
            browser.paper(LETTER, dark)
            assert browser.evaluate(UNPRINTED) == [], page
            assert (
                browser.evaluate("getComputedStyle(document.body).backgroundColor")
                == "rgb(255, 255, 255)"
            )
    assert browser.said == []


@pytest.mark.browser
def test_rows_are_filtered_and_sorted_and_a_click_opens_the_run_in_mlflow(storage, tmp_path):
    rows = "[...table.tBodies[0].rows].filter((row) => !row.hidden)"
    with running_browser(tmp_path) as browser:
        browser.window(*DESK)
        browser.open(storage / "studies" / "scaling" / "report.html")
        browser.evaluate(
            "var table = document.querySelector('#runs table'), field ="
            " document.querySelector('#runs input')"
        )
        total = browser.evaluate(f"{rows}.length")
        browser.evaluate(
            "field.value = 'evaluation tiny core+lisp gram'; field.dispatchEvent(new"
            " Event('input'))"
        )
        assert (browser.evaluate(f"{rows}.length"), total) == (2, 36)
        browser.evaluate("field.value = ''; field.dispatchEvent(new Event('input'))")
        browser.evaluate("table.querySelectorAll('th button')[2].click()")
        methods = browser.evaluate(f"{rows}.map((row) => row.cells[2].textContent)")
        assert methods == sorted(methods, key=str.lower)
        browser.evaluate(
            f"{rows}.forEach((row, i) => row.cells[3].textContent = ['2B', '50M', '0.6M'][i % 3])"
        )
        browser.evaluate("table.querySelectorAll('th button')[3].click()")
        sizes = browser.evaluate(f"{rows}.map((row) => row.cells[3].textContent)")
        assert list(dict.fromkeys(sizes)) == ["0.6M", "50M", "2B"]
        browser.open(storage / "studies" / "stories" / "report.html")
        linked = (
            "[...document.querySelectorAll('.plot')].some((plot) => plot.data && plot.data.some((t)"
            " => t.meta))"
        )
        assert browser.wait_for(f"{DRAWN} || {linked}")  # figures in folded parts are not drawn
        opened = browser.evaluate(
            "var opened = []; window.open = (address) => opened.push(address);const plot ="
            " [...document.querySelectorAll('.plot')].find((p) => p.data && p.data.some((t) =>"
            " t.meta));const trace = plot.data.find((t) => t.meta);const data = trace.customdata;"
            " const first = Array.isArray(data) ? data[0] : data;plot.emit('plotly_click', {"
            " points: [{ data: trace, customdata: first }] });for (const url of"
            " ['http://127.0.0.1:5000/#/1', 'javascript:alert(1)'])  plot.emit('plotly_click', {"
            " points: [{ data: { meta: { url: 0 } }, customdata: [url] }] });opened"
        )
        assert opened.pop() == "http://127.0.0.1:5000/#/1"  # as of the trials of a search
        assert [address.rpartition("/")[0] for address in opened] == [
            "../../mlflow.html#/experiments/1/runs"
        ]


@pytest.mark.browser
@pytest.mark.slow
def test_a_figure_is_saved_as_svg_and_its_table_as_csv_without_a_network(storage, tmp_path):
    """The report is a file. The figure on white paper has the colours of a light page, whichever
    the page has."""
    study = storage / "studies" / "scaling"
    name, columns = "scaling-forget", ["forget", "forget_low", "forget_high", "num_seeds"]
    rows = pd.read_csv(study / "table.csv").query(
        "profile == 'core+lisp' and method != 'baseline' and forget.notna()"
    )
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
        assert browser.evaluate(
            f"{controls}.every((place) => (place.focus(), document.activeElement === place))"
        )

        csv = browser.saved(f"{controls}[1]", tmp_path / "csv")
        saved = pd.read_csv(csv)
        assert csv.name == f"{name}.csv"
        values = [
            sorted(frame[["method", "size", *columns]].values.tolist()) for frame in (rows, saved)
        ]
        assert values[0] == values[1]
        assert saved["forget_low"].notna().any()

        browser.evaluate(
            f"Plotly.relayout({place}, {{'yaxis.range': [0.5, 0.6]}}).then(() => null)"
        )
        svg = browser.saved(f"{controls}[0]", tmp_path / "svg")
        drawing = svg.read_text()
        assert svg.name == f"{name}.svg"
        assert ElementTree.fromstring(drawing).tag.endswith("svg")
        assert all(
            text in drawing
            for text in ("Forget (lower is better)", "GRAM", "compute ratio", "0.56")
        )
        assert "rgb(74, 78, 84)" in drawing
        assert "rgb(201, 206, 214)" not in drawing

        browser.evaluate(f"{controls}[2].click()")
        assert browser.wait_for(f"{place}.layout.yaxis.range[1] > 0.7")
        assert browser.said == []


NOTE = "(top.ran ??= []).push"
HOSTILE = f"""<script>{NOTE}("script")</script><img src="data:," onerror="{NOTE}('handler')">
<script src="data:text/javascript,{NOTE}('file')"></script>
<iframe srcdoc="<script>{NOTE}('frame')</script>"></iframe>
<a id="hostile" href="javascript:{NOTE}('link')">x</a>"""


@pytest.mark.browser
def test_markup_that_got_into_a_page_runs_no_script(tmp_path):
    """Its figures are drawn all the same; without the page's policy every one of the scripts would
    run."""
    figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2]))
    section = Section("Trials", figures={"trials": figure}, markup=Markup(HOSTILE))
    page, bare = tmp_path / "page.html", tmp_path / "bare.html"
    page.write_text(Page("A report", "", [section]).html())
    bare.write_text(re.sub("<meta http-equiv=.Content-Security-Policy.*?>", "", page.read_text()))
    with running_browser(tmp_path) as browser:
        browser.window(*DESK)
        for place, expected in (
            (bare, {"script", "handler", "file", "frame", "link"}),
            (page, set()),
        ):
            browser.open(place)
            browser.evaluate("document.querySelector('#hostile').click()")
            assert browser.wait_for(DRAWN)
            assert set(browser.evaluate("window.ran ?? []")) == expected
        assert all("Content Security Policy" in line for line in browser.said)
