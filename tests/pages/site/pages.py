"""What every page and report must be: drawn, silent, labelled, reachable by keyboard, as wide as
its window."""

import json
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from tests.pages.site.browser import running_browser

PHONE, DESK = (390, 900), (1280, 900)
# figures are drawn when they come near the window: the first that is not is brought there
DRAWN = """(() => {
  const plots = [...document.querySelectorAll(".plot")];
  const waiting = plots.filter((plot) => plot.dataset.drawn !== "yes");
  waiting[0]?.scrollIntoView();
  return !waiting.length;
})()"""
FAULTS = """(() => {
  const faults = [];
  const say = (text, place) => faults.push(text + ": " + (place?.outerHTML.slice(0, 120) ?? ""));
  // packed numbers are bdata
  const size = (values) => (values ? values.length ?? values.bdata.length : 0);
  const named = (place) => (place.getAttribute("aria-label") || "").trim();
  for (const plot of document.querySelectorAll(".plot")) {
    const points = (plot.data || []).map((trace) => size(trace.y ?? trace.x ?? trace.z));
    if (!points.length || !points.some((number) => number > 0)) say("a figure without data", plot);
    if (!plot.layout?.meta?.csv) say("a figure without its table", plot);
    if (!plot.querySelector(".main-svg")) say("a figure that is not drawn", plot);
    if (!named(plot) || plot.getAttribute("role") !== "img") say("a figure without a label", plot);
    const isBehind = plot.closest("section").querySelector("table");
    if (!isBehind) say("a figure without a table behind it", plot);
  }
  const sourced = document.getElementById("source") ? "figure, tbody tr" : "no-source";
  for (const place of document.querySelectorAll(sourced)) {
    const link = place.querySelector("a[href]:not([download])");
    if (!link) say("no way to command and commit", place);
    if (place.checkVisibility() && !link?.checkVisibility()) say("a link that nobody sees", place);
  }
  for (const box of document.querySelectorAll(".scroll")) {
    const table = box.querySelector("table");
    if (box.scrollHeight > box.clientHeight + 1) say("a scroll inside the page's scroll", box);
    if (!named(box) || box.tabIndex !== 0) say("a table that cannot be reached by keyboard", box);
    if (!table.caption?.textContent.trim()) say("a table without a caption", table);
    for (const cell of table.tHead.rows[0].cells) {
      if (cell.scope !== "col" || !cell.textContent.trim()) say("a column without a head", table);
    }
  }
  for (const image of document.images) {
    if (!image.naturalWidth) say("a picture that is not shown", image);
  }
  for (const place of document.querySelectorAll("input")) {
    if (!place.closest("label")?.textContent.trim()) say("an input without a label", place);
  }
  for (const link of document.querySelectorAll("a")) {
    if (!link.textContent.trim()) say("a link without a text", link);
  }
  const ids = [...document.querySelectorAll("[id]")].map((place) => place.id);
  if (new Set(ids).size !== ids.length) say("two places of one address");
  for (const link of document.querySelectorAll("a[href^='#']")) {
    const id = decodeURIComponent(link.hash.slice(1));
    if (!ids.includes(id)) say("a link that leads nowhere", link);
  }
  if (document.querySelectorAll("h1").length !== 1) say("not one h1");
  if (!document.documentElement.lang || !document.title) say("no language or title");
  const first = document.querySelector("a, button, input, [tabindex]");
  if (first.className !== "skip") say("the skip link is not first", first);
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) say("the page is " + wide + " pixels too wide");
  return faults;
})()"""
# on paper: what is not drawn, what is folded, and what lies beside the page or is clipped
UNPRINTED = """(() => {
  const faults = [];
  const say = (text, place) => faults.push(text + ": " + place.outerHTML.slice(0, 120));
  const width = document.documentElement.clientWidth;
  for (const plot of document.querySelectorAll(".plot")) {
    const isDrawn = plot.dataset.drawn === "yes" && plot.querySelector(".main-svg");
    if (!isDrawn) say("a figure that is not drawn", plot);
  }
  for (const fold of document.querySelectorAll("details:not([open])")) say("a fold", fold);
  for (const place of document.querySelectorAll("body *:not(.skip):not(.hidden)")) {
    const box = place.getBoundingClientRect();
    const isShown = box.width && box.height && getComputedStyle(place).visibility !== "hidden";
    // of plotly, of no colour or size on paper
    const isHelper = place.closest("defs, #js-plotly-tester");
    const isOutside = box.left < -1 || box.right > width + 1;
    if (isShown && !isHelper && isOutside) say("outside the page", place);
  }
  for (const box of document.querySelectorAll(".scroll, figure, td, th, li, dd")) {
    if (box.scrollWidth > box.clientWidth + 1 && box.clientWidth) say("wider than its frame", box);
  }
  return faults;
})()"""


def require_whole(pages: Iterable[Path], folder: Path) -> None:
    """Opens every page at a desk's and a phone's width; AssertionError for any fault and any word
    on a console."""
    with running_browser(folder) as browser:
        for page in pages:
            for width, height in (DESK, PHONE):
                browser.window(width, height)
                browser.open(page)
                browser.evaluate(
                    "document.querySelectorAll('details').forEach((place) => { place.open ="
                    " true; })"
                )
                assert browser.wait_for(DRAWN), f"{page} at {width}: figures are not drawn"
                assert browser.evaluate(FAULTS) == [], f"{page} at {width}"
    assert browser.said == []


class ParsedPage(HTMLParser):
    """The tags of a page with their attributes, its texts without scripts and styles, and its
    figures."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.figures: list[dict] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if attributes.get("type") == "application/json" and data.strip():
            self.figures.append(json.loads(data))
        elif tag not in ("script", "style"):
            self.texts.append(data)


def parse_page(page: Path) -> ParsedPage:
    return ParsedPage(page.read_text())


def require_links_lead_somewhere(site: Path) -> list[str]:
    """Follows every link of the index of a site, and each picture; returns their addresses."""
    index = parse_page(site / "index.html")
    ids = {attributes.get("id") for _, attributes in index.tags}
    addresses = [at[name] for _, at in index.tags for name in ("href", "src") if name in at]
    for address in addresses:
        path, _, anchor = address.partition("#")
        if path:
            assert address.startswith("data:") or (site / unquote(path)).is_file(), address
        else:
            assert anchor in ids, address
    return addresses
