"""Every page of a small real site in headless Chromium: nothing on the console, every figure drawn, for everybody."""

import dataclasses
from pathlib import Path

import pytest

from gram_platform.config import CORE, Evaluation, RoutingConfig, RunConfig
from gram_platform.corpora import prepare, resolve
from gram_platform.engine.execution import Execution
from gram_platform.engine.node import execute_evaluation, execute_run
from gram_platform.ladder import SMOKE_SIZES
from gram_platform.methods import Setting
from gram_platform.nodes import method_nodes
from gram_platform.site import build_site
from gram_platform.site.build import tracking_of
from gram_platform.store import Store
from gram_platform.study.record import StudyRecord
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.site.browser import running_browser
from tests.site.planted import every_state

TINY = dataclasses.replace(SMOKE_SIZES["tiny"], core_tokens=64 * 160)
PHONE, DESK = (390, 20_000), (1280, 20_000)
DRAWN = "[...document.querySelectorAll('.plot')].every((plot) => plot.dataset.drawn === 'yes')"
FAULTS = """(() => {
  const faults = [];
  const say = (text, place) => faults.push(text + ": " + (place ? place.outerHTML.slice(0, 120) : ""));
  const size = (values) => (values ? values.length ?? values.bdata.length : 0); // packed numbers are bdata
  const named = (place) => (place.getAttribute("aria-label") || "").trim();
  for (const plot of document.querySelectorAll(".plot")) {
    const points = (plot.data || []).map((trace) => size(trace.y ?? trace.x ?? trace.z));
    if (!points.length || !points.some((number) => number > 0)) say("a figure without data", plot);
    if (!plot.querySelector(".main-svg")) say("a figure that is not drawn", plot);
    if (!named(plot) || plot.getAttribute("role") !== "img") say("a figure without a label", plot);
    if (!plot.closest("section").querySelector("table")) say("a figure without a table behind it", plot);
  }
  for (const box of document.querySelectorAll(".scroll")) {
    const table = box.querySelector("table");
    if (!named(box) || box.tabIndex !== 0) say("a table that cannot be reached by keyboard", box);
    if (!table.caption || !table.caption.textContent.trim()) say("a table without a caption", table);
    if (![...table.tHead.rows[0].cells].every((cell) => cell.scope === "col" && cell.textContent.trim())) {
      say("a column without a head", table);
    }
  }
  for (const place of document.querySelectorAll("input")) {
    if (!place.closest("label") || !place.closest("label").textContent.trim()) say("an input without a label", place);
  }
  for (const link of document.querySelectorAll("a")) {
    if (!link.textContent.trim()) say("a link without a text", link);
  }
  if (document.querySelectorAll("h1").length !== 1) say("not one h1");
  if (!document.documentElement.lang || !document.title) say("no language or title");
  if (document.querySelector("a, button, input, [tabindex]").className !== "skip") say("the skip link is not first");
  if (!document.querySelector("nav [aria-current=page]")) say("no place in the navigation");
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) say("the page is " + wide + " pixels too wide");
  return faults;
})()"""
CONTRAST = """(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const c = part / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const places = [document.body, document.querySelector("a:not(.skip)"), document.querySelector("footer")];
  const axis = document.querySelector(".plot .xtick text");
  const colours = [...places.map((place) => getComputedStyle(place).color), ...(axis ? [axis.style.fill] : [])];
  return colours.map(light).map((ink) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
})()"""


def real_study(store: Store) -> None:
    """The baseline and GRAM at one size and one seed, trained on generated stories."""
    recipe = resolve("stories-smoke", seq_len=TINY.seq_len, vocab_size=TINY.vocab_size, sample_bytes=100_000)
    prepare(recipe, store.data_root)
    auxiliary = [domain for domain in recipe.domains if domain != CORE]
    counts = {CORE: 160, **dict.fromkeys(auxiliary, 12)}
    routing = RoutingConfig(0.5, 0.3)
    shape = {"warmup_fraction": 0.1, "decay_fraction": 0.1, "num_eval_points": 6, "num_eval_sequences": 4}
    setting = Setting(TINY, 0, recipe.data_id, counts, profiles=((auxiliary[0],),), routing=routing, **shape)
    nodes = [node for method in ("baseline", "gram") for node in method_nodes(method, setting)]
    for node in nodes:
        execute = {RunConfig: execute_run, Evaluation: execute_evaluation}[type(node.config)]
        execute(node.config, dict(node.tags), Execution(store.root))
    entries = tuple({"id": node.id, "kind": node.kind, "tags": dict(node.tags)} for node in nodes)
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
    )
    store.study_dir("small").write("study.json", record.to_json())
    Tracker(default_tracking_uri(store.root)).sync(store)


@pytest.fixture(scope="session")
def built_sites(tmp_path_factory):
    """Folders of two sites: of really trained runs, and of planted ones in every state."""
    real = Store(tmp_path_factory.mktemp("real")).open_for_writing()
    real_study(real)
    planted = every_state(tmp_path_factory.mktemp("planted")).store
    for store in (real, planted):
        uri, why_not = tracking_of(store, "")
        assert build_site(store, uri, why_not=why_not).problems == ()
    return [Path(store.root) / "site" for store in (real, planted)]


@pytest.mark.browser
def test_every_page_is_whole_for_everybody(built_sites, tmp_path):
    pages = [page for site in built_sites for page in sorted(site.rglob("*.html"))]
    assert len(pages) > 25
    with running_browser(tmp_path) as browser:
        for page in pages:
            for width, height in (DESK, PHONE):
                browser.window(width, height)
                browser.open(page)
                browser.evaluate("document.querySelectorAll('details').forEach((place) => { place.open = true; })")
                assert browser.wait_for(DRAWN), f"{page} at {width}: figures are not drawn"
                assert browser.evaluate(FAULTS) == [], f"{page} at {width}"
    assert browser.said == []


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_page(built_sites, tmp_path, dark):
    site = built_sites[0]
    pages = [site / "index.html", site / "studies" / "small.html", next((site / "runs").glob("*.html"))]
    with running_browser(tmp_path) as browser:
        browser.window(*DESK, dark=dark)
        for page in pages:
            browser.open(page)
            assert browser.wait_for(DRAWN)
            assert min(browser.evaluate(CONTRAST)) >= 4.5, page  # WCAG 2, level AA
            paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") != dark


@pytest.mark.browser
def test_rows_are_filtered_and_sorted_and_a_click_opens_the_run(built_sites, tmp_path):
    site = built_sites[1]
    rows = "[...document.querySelectorAll('tbody tr')].filter((row) => !row.hidden)"
    with running_browser(tmp_path) as browser:
        browser.window(*DESK)
        browser.open(site / "runs.html")
        total = browser.evaluate(f"{rows}.length")
        browser.evaluate(
            "const field = document.querySelector('input'); field.value = 'failed gram';"
            "field.dispatchEvent(new Event('input'))"
        )
        assert (browser.evaluate(f"{rows}.length"), total) == (1, 14)
        browser.evaluate("field.value = ''; field.dispatchEvent(new Event('input'))")
        browser.evaluate("document.querySelectorAll('th button')[2].click()")
        methods = browser.evaluate(f"{rows}.map((row) => row.cells[2].textContent)")
        assert methods == sorted(methods)
        browser.open(site / "studies" / "scaling.html")
        browser.wait_for(DRAWN)
        browser.evaluate(
            "const plot = [...document.querySelectorAll('.plot')].find((p) => p.data.some((t) => t.meta));"
            "const trace = plot.data.find((t) => t.meta);"
            "const data = trace.customdata; const first = Array.isArray(data) ? data[0] : data;"
            "plot.emit('plotly_click', { points: [{ data: trace, customdata: first }] })"
        )
        assert browser.wait_for("location.pathname.includes('/site/runs/') && document.readyState === 'complete'")
