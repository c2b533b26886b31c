"""What every page and report must be: drawn, silent, labelled, reachable by keyboard, as wide as its window."""

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tests.pages.site.browser import running_browser

SOURCE_TEXT = re.compile(
    r"(as|by) `[^`]+`, (commit|sources) [0-9a-f]{7}"
)  # of `submissions_text`, and of `gram replicate`
PHONE, DESK = (390, 900), (1280, 900)
# figures are drawn when they come near the window: the first that is not is brought there
DRAWN = """(() => {
  const waiting = [...document.querySelectorAll(".plot")].filter((plot) => plot.dataset.drawn !== "yes");
  waiting[0]?.scrollIntoView();
  return !waiting.length;
})()"""
FAULTS = """(() => {
  const faults = [];
  const say = (text, place) => faults.push(text + ": " + (place ? place.outerHTML.slice(0, 120) : ""));
  const size = (values) => (values ? values.length ?? values.bdata.length : 0); // packed numbers are bdata
  const named = (place) => (place.getAttribute("aria-label") || "").trim();
  for (const plot of document.querySelectorAll(".plot")) {
    const points = (plot.data || []).map((trace) => size(trace.y ?? trace.x ?? trace.z));
    if (!points.length || !points.some((number) => number > 0)) say("a figure without data", plot);
    if (!plot.layout?.meta?.csv) say("a figure without its table", plot);
    if (!plot.querySelector(".main-svg")) say("a figure that is not drawn", plot);
    if (!named(plot) || plot.getAttribute("role") !== "img") say("a figure without a label", plot);
    if (!plot.closest("section").querySelector("table")) say("a figure without a table behind it", plot);
  }
  for (const place of document.getElementById("source") ? document.querySelectorAll("figure, tbody tr") : []) {
    const link = place.querySelector("a[href]:not([download])");
    if (!link) say("no way to command and commit", place);
    if (place.checkVisibility() && !link?.checkVisibility()) say("a link that nobody sees", place);
  }
  for (const box of document.querySelectorAll(".scroll")) {
    const table = box.querySelector("table");
    if (box.scrollHeight > box.clientHeight + 1) say("a scroll inside the page's scroll", box);
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
  const ids = [...document.querySelectorAll("[id]")].map((place) => place.id);
  if (new Set(ids).size !== ids.length) say("two places of one address");
  for (const link of document.querySelectorAll("a[href^='#']")) {
    if (!ids.includes(decodeURIComponent(link.hash.slice(1)))) say("a link that leads nowhere", link);
  }
  if (document.querySelectorAll("h1").length !== 1) say("not one h1");
  if (!document.documentElement.lang || !document.title) say("no language or title");
  if (document.querySelector("a, button, input, [tabindex]").className !== "skip") say("the skip link is not first");
  const site = document.querySelector("nav[aria-label=Site]");
  if (site && !site.querySelector("[aria-current=page]")) {
    say("no place in the navigation");
  }
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) say("the page is " + wide + " pixels too wide");
  return faults;
})()"""
# the address of each row's and each figure's first link, null without one
FIRST_LINK = 'querySelector("a[href]:not([download])")'
LINKS_OF_PLACES = f"""[...document.querySelectorAll("figure, tbody tr")].map((place) => place.{FIRST_LINK}?.href)"""
CONTRAST = """(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const c = part / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const places = [document.body, document.querySelector("a:not(.skip)"), document.querySelector("h2 .sign")];
  const axis = document.querySelector(".plot .xtick text");
  const colours = [...places.map((place) => getComputedStyle(place).color), ...(axis ? [axis.style.fill] : [])];
  return colours.map(light).map((ink) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
})()"""

# on paper: what is not drawn, what is folded, and what lies beside the page or is clipped
UNPRINTED = """(() => {
  const faults = [];
  const say = (text, place) => faults.push(text + ": " + place.outerHTML.slice(0, 120));
  const width = document.documentElement.clientWidth;
  for (const plot of document.querySelectorAll(".plot")) {
    if (plot.dataset.drawn !== "yes" || !plot.querySelector(".main-svg")) say("a figure that is not drawn", plot);
  }
  for (const fold of document.querySelectorAll("details:not([open])")) say("a fold", fold);
  for (const place of document.querySelectorAll("body *:not(.skip):not(.hidden)")) {
    const box = place.getBoundingClientRect();
    const isShown = box.width && box.height && getComputedStyle(place).visibility !== "hidden";
    const isHelper = place.closest("defs, #js-plotly-tester"); // of plotly, of no colour or size on paper
    if (isShown && !isHelper && (box.left < -1 || box.right > width + 1)) say("outside the page", place);
  }
  for (const box of document.querySelectorAll(".scroll, figure, td, th, li, dd")) {
    if (box.scrollWidth > box.clientWidth + 1 && box.clientWidth) say("wider than its frame", box);
  }
  return faults;
})()"""


def require_whole(pages: Iterable[Path], folder: Path) -> None:
    """Opens every page at a desk's and a phone's width; AssertionError for any fault and any word on a console."""
    with running_browser(folder) as browser:
        for page in pages:
            for width, height in (DESK, PHONE):
                browser.window(width, height)
                browser.open(page)
                browser.evaluate("document.querySelectorAll('details').forEach((place) => { place.open = true; })")
                assert browser.wait_for(DRAWN), f"{page} at {width}: figures are not drawn"
                assert browser.evaluate(FAULTS) == [], f"{page} at {width}"
    assert browser.said == []


def source_addresses(page: Path, is_run: Callable[[str], bool]) -> list[str]:
    """The address that each row and figure of a page leads to; AssertionError for one without command and commit.

    `is_run` says whether an address in MLflow is that of a run with both.
    """
    markup = re.sub("<script.*?</script>", "", page.read_text(), flags=re.S)
    is_shown = cache(lambda address: is_run(address) or _has_source(page, address))
    found = []
    for place in re.findall(r"<tr><td.*?</tr>|<figure.*?</figure>", markup, re.S):
        shown = list(filter(is_shown, re.findall(r'<a [^>]*?href="([^"]*)"', place)))
        assert shown, f"{page}: no link of {place} leads to command and commit"
        found += shown[:1]
    return found


def _has_source(page: Path, address: str) -> bool:
    path, _, anchor = address.partition("#")
    target = (page.parent / path).resolve() if path else page
    if target.suffix != ".html" or not target.is_file():
        return False
    _, _, text = target.read_text().partition(f'id="{anchor}"' if anchor else 'id="source"')
    return SOURCE_TEXT.search(re.split("</p>|</section>", text)[0]) is not None


def require_links_lead_somewhere(site: Path) -> list[str]:
    """Follows every link of the pages of a site; returns their addresses."""
    found = []
    for page in sorted(site.glob("*.html")):
        for address in re.findall(r'(?:href|src)="([^"]*)"', page.read_text()):
            path, _, anchor = address.partition("#")
            if address.startswith("data:"):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), (page, address)
            is_of_mlflow = target.name == "mlflow.html"
            assert not anchor or is_of_mlflow or f'id="{anchor}"' in target.read_text(), (page, address)
            found.append(address)
    return found
