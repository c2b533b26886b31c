"""The report is one file that works without a network, hides nothing, and escapes what it shows."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from gram_platform.analysis.tables import Analysis, analyse
from gram_platform.pages.report.build import study_page
from gram_platform.pages.report.claims import readable_claims
from gram_platform.pages.report.page import Section, readable_runs, sections_html
from gram_platform.pages.report.sections import trend_sections
from gram_platform.pages.results.record import shared_profile
from gram_platform.paper.claims import CLAIMS, STORIES_CLAIMS
from gram_platform.paper.verdicts import EXPLANATIONS, explained, paper_claims, with_published
from tests import stories_frames
from tests.pages.site.browser import running_browser
from tests.pages.site.pages import DRAWN, source_addresses
from tests.pages.site.planted import SUBMITTED
from tests.study_frames import SIZES, analysed, curves, evaluations, study_of

IN_ORDER = (
    "what-went-wrong",
    "how-to-read",
    "at-a-glance",
    "scaling",
    "claims",
    "differences-behind-the-claims",
    "capabilities",
    "profiles",
    "cost",
    "runs",
    "attacks",
)  # addresses of sections
CAPABILITIES = 'id="capabilities"'
HOSTILE = 'loss is <b>nan</b> </script><script>alert("x")</script>'


def runs_frame() -> pd.DataFrame:
    columns = {"kind": "run", "status": "complete", "elapsed_s": 3723.4, "tokens_per_second": 41234.5}
    frame = evaluations().drop_duplicates("run_id")[["run_id", "method", "size", "seed"]].assign(**columns)
    frame["run_id_url"] = [f"http://127.0.0.1:5000/#/runs/{run}" for run in frame["run_id"]]
    frame["error"] = ""
    frame.iloc[3, frame.columns.get_loc("status")] = "failed"
    frame.iloc[3, frame.columns.get_loc("error")] = HOSTILE
    frame.iloc[4, frame.columns.get_loc("run_id_url")] = "javascript:alert(1)"
    frame.iloc[5, frame.columns.get_loc("elapsed_s")] = float("nan")
    return frame


def html_of(analysis: Analysis, *args, **about) -> str:
    """The report of `study_of`."""
    study = study_of(analysis, *args, **about)
    return study_page(study.record, study, None).html()


def report_of(analysis: Analysis) -> str:
    return html_of(analysis, curves(), runs_frame(), title="A <study>", question="First.\n\nSecond.")


@pytest.fixture(scope="module")
def page() -> str:
    return report_of(analysed())


def without_plotly(page: str) -> str:
    """The page without the script elements, which hold plotly.js and the figures' data."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_it_is_one_page_that_loads_nothing(page):
    assert page.startswith("<!doctype html>")
    markup = without_plotly(page)
    assert not re.search(r"<(img|iframe|object|embed)|<script[^>]* src|@import|url\(", markup)
    assert re.findall(r"<link[^>]*>", markup) == ['<link rel="icon" href="data:,">']
    assert not re.search(r"<script[^>]+src=", page.split("<script>")[0])
    assert 'name="viewport"' in markup
    assert "prefers-color-scheme: dark" in markup
    assert page.count("plotly.js v") == 1
    assert len(page) < 8e6


def test_every_section_is_there_with_its_table(page):
    markup = without_plotly(page)
    sections = re.findall('<section id="([^"]+)"', markup)
    assert [one for one in sections if one in IN_ORDER] == [one for one in IN_ORDER if one in sections]
    assert {"scaling", "capabilities", "profiles", "runs"} <= set(sections)
    assert markup.count("<details>") == markup.count("<summary>") == 5  # four tables, and the other sizes' bars
    assert markup.count('class="plot"') == 3 + 2 * len(SIZES) + len(SIZES)
    assert "0.940 [0.938, 0.942]" in markup
    assert "9 nodes" not in markup
    assert "27 nodes: 26 complete, 1 failed." in markup


def test_the_largest_size_is_predicted_from_three_others_not_from_two():
    analysis = analysed()
    largest = analysis.table[analysis.table["size"] == "medium"].assign(size="large")
    whole = replace(analysis, table=pd.concat([analysis.table, largest]))
    assert trend_sections(study_of(analysis, curves(), runs_frame())) == []
    (section,) = trend_sections(study_of(whole, curves(), runs_frame(), parameters={**SIZES, "large": 64e6}))
    assert set(section.table["num_fitted"]) == {3}
    assert set(section.table["size"]) == {"large"}


def test_text_from_data_is_escaped_and_only_web_addresses_are_links(page):
    markup = without_plotly(page)
    assert "<title>A &lt;study&gt;</title>" in markup
    assert "&lt;/script&gt;" in markup
    assert "alert(" not in markup.replace("alert(&#34;x&#34;)", "")
    assert "javascript:" not in markup
    assert markup.count('<a href="http://127.0.0.1:5000/#/runs/') == 26
    assert HOSTILE not in page


def test_a_domain_named_like_markup_is_escaped_once():
    renamed = {"loss/biology": "loss/<b>&x"}
    views = evaluations().rename(columns=renamed).replace("biology", "<b>&x", regex=True)
    points = curves().replace("biology", "<b>&x", regex=True)
    analysis = analyse(views, points, tuple(SIZES))
    page = html_of(analysis, points, runs_frame())
    markup = without_plotly(page)
    assert "profile core+&lt;b&gt;&amp;x:" in markup  # in a text
    assert "<td>core+&lt;b&gt;&amp;x</td>" in markup  # and a table
    assert "<b>&x" not in page
    figures = re.findall(r'<script type="application/json".*?>(.*?)</script>', page)
    assert "<b>&x" in {trace.get("name") for figure in figures for trace in json.loads(figure)["data"]}
    assert "&amp;lt;" not in markup
    assert "&amp;amp;" not in markup


HREF = 'a href="https://elsewhere.example"'


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"<{HREF}>x</a>", f"&lt;{HREF}>x&lt;/a>"),
        (f"<<A\thref=x>{HREF}", f"&lt;&lt;A\thref=x>{HREF}"),
        (f"\\<{HREF}>", f"\\&lt;{HREF}>"),
        ("\\u003ca>", "\\u003ca>"),
        ("<b>x</b><br><extra></extra><i>", "<b>x</b><br><extra></extra><i>"),
        ("a < b, <bold>", "a &lt; b, &lt;bold>"),
    ],
)
def test_a_label_makes_no_link_in_a_figure(name, shown):
    """Plotly makes <a> of its pseudo-HTML a link; &lt; shows as <."""
    page = str(sections_html([Section("x", figures={"x": go.Figure(go.Scatter(x=[name], y=[1], name=name))})]))
    (found,) = re.findall(r'<script type="application/json".*?>(.*?)</script>', page)
    (trace,) = json.loads(found)["data"]
    assert trace["name"] == shown
    assert trace["x"] == [shown]


def tiles_of(page: str) -> dict[str, str]:
    """{label: number and interval} of the tiles, as they read without styles."""
    found = re.findall(r"<dt>(.*?)</dt> <dd>(.*?) <small>(.*?)</small></dd>", page)
    return {label: f"{number} {interval}" for label, number, interval in found}


def test_main_numbers_stand_above_the_main_figure_and_are_the_tables(page):
    markup = without_plotly(page)
    assert markup.index('class="tiles"') < markup.index('class="plot"') < markup.index(CAPABILITIES)
    assert re.search(r"GRAM \(3 .* filtering \(3 .* medium, .*core\+biology", markup)
    assert "#missing" not in markup
    table = re.findall(r"<tr>(.*?)</tr>", markup.split(CAPABILITIES)[1].split("</section>")[0])
    cells = {tuple(row[:3]): row[3:6] for row in (re.findall(r"<td.*?>(.*?)</td>", row) for row in table)}
    expected = {
        f"{label} {name}": value
        for label in ("GRAM", "filtering")
        for name, value in zip(("core", "retain", "forget"), cells[label, "medium", "core+biology"], strict=True)
    }
    assert list(tiles_of(markup).items()) == list(expected.items())
    assert len(expected) == 6


def test_main_numbers_are_of_a_size_that_both_methods_have_with_intervals():
    known = evaluations()
    one_seed = known[(known["size"] != "medium") | (known["seed"] == "0")]
    markup = without_plotly(report_of(analyse(one_seed, curves(), tuple(SIZES))))
    assert re.search(r" small, .*core\+biology", markup)
    no_filtering = known[(known["size"] == "tiny") | (known["method"] != "filtering")]
    markup = without_plotly(report_of(analyse(no_filtering, curves(), tuple(SIZES))))
    assert re.search(r"GRAM \(3 .* filtering \(3 .* tiny", markup)
    one = evaluations(seeds=("0",))
    markup = without_plotly(report_of(analyse(one[one["method"] != "filtering"], curves(), tuple(SIZES))))
    assert re.search(r"GRAM \(1 .* medium", markup)
    assert set(re.findall("no interval", " ".join(tiles_of(markup).values()))) == {"no interval"}
    assert len(tiles_of(markup)) == 3


def test_what_is_missing_comes_before_the_tables_and_is_named_above():
    known = evaluations()
    unfinished = known[~((known["size"] == "medium") & (known["method"] == "baseline"))]
    page = without_plotly(report_of(analyse(unfinished, curves(), tuple(SIZES))))
    assert page.index('See <a href="#missing">') < page.index('class="tiles"')
    assert page.index('class="tiles"') < page.index('id="missing"') < page.index(CAPABILITIES)
    assert re.search(r"rows .* medium", page)


def test_a_study_of_which_nothing_is_finished_has_a_page():
    nothing = analyse(evaluations().iloc[:0], curves(), tuple(SIZES))
    page = without_plotly(report_of(nothing))
    assert CAPABILITIES in page
    assert page.count('class="plot"') == page.count('class="tiles"') == page.count("Claims:") == 0


def test_every_figure_and_row_leads_to_command_and_commit(tmp_path):
    analysis = analysed()
    claims = paper_claims(analysis.per_seed, "scaling")
    page = tmp_path / "report.html"
    page.write_text(html_of(analysis, curves(), runs_frame(), claims, submissions=(SUBMITTED,)))
    is_run = re.compile("http://127.0.0.1:5000/#/runs/").match
    addresses = source_addresses(page, is_run)
    assert sum(map(bool, map(is_run, addresses))) == len(runs_frame()) - 1  # one address is no http address
    names = re.findall('aria-label="(.*?): command and commit"', page.read_text())
    assert {"GRAM, tiny", "baseline, tiny, all"} <= set(names)
    for part in page.read_text().split("<tbody>")[1:]:
        names = re.findall('aria-label="(.*?): command and commit"', part.split("</tbody>")[0])
        assert len(set(names)) == len(names)
    without = without_plotly(html_of(analysis, curves(), runs_frame(), claims))
    assert "#source" not in without


def test_the_table_of_contents_names_every_section(page):
    markup = without_plotly(page)
    (contents,) = re.findall('<nav class="contents".*?</nav>', markup, flags=re.S)
    assert re.findall('href="#([^"]+)"', contents) == re.findall('<section id="([^"]+)"', markup)


def test_every_section_has_an_address_of_its_own():
    titles = ("Tokens of 医学", "Tokens of 法律", "Runs", "Runs", "!", 'a "b" <c>')
    markup = sections_html([Section(title) for title in titles])
    ids = re.findall(r'<section id="([^"<> ]+)"', markup)
    assert ids == ["tokens-of-医学", "tokens-of-法律", "runs", "runs--2", "section", "a-b-c"]


def test_claims_are_shown():
    analysis = analysed()
    claims = pd.DataFrame({"claim": ["retain > forget"], "verdict": ["agree"]})
    page = html_of(analysis, curves(), runs_frame(), claims)
    assert "retain &gt; forget" in page
    places = [page.index(f'id="{name}"') for name in ("at-a-glance", "scaling", "claims", "capabilities")]
    assert places == sorted(places)
    assert "1 agree, 0 disagree" in page


def test_a_disagreement_is_explained_in_the_last_column():
    numbers = dict.fromkeys(("difference", "low", "high", "detectable"), 0.1) | {"source": "fig:scaling"}
    claims = pd.DataFrame([{"claim": c, "verdict": v, **numbers} for c, v in (("a", "agree"), ("b", "disagree"))])
    why = {("scaling", "demo", name): f"It <is> {name}. See 0123456789ab." for name in "ab"}
    shown = readable_claims(explained(claims, "scaling", "demo", why))
    assert list(shown.columns)[-1] == "explanation"
    assert shown["explanation"].tolist() == ["", "It <is> b. See 0123456789ab."]
    assert "explanation" not in readable_claims(explained(claims, "scaling", "smoke", why))
    analysis = analysed()
    page = html_of(analysis, curves(), runs_frame(), explained(claims, "scaling", "demo", why))
    assert ">It &lt;is&gt; b." in page


def test_every_explanation_is_of_a_claim_that_exists():
    for study, _, claim in EXPLANATIONS:
        assert study not in CLAIMS or claim in {one.text for one in CLAIMS[study]}, (study, claim)
    assert all(". Shown by " in text and text.endswith(".") for text in EXPLANATIONS.values())


def test_the_same_study_is_the_same_page(page):
    assert page == report_of(analysed())


def test_names_of_figures_and_the_shared_profile():
    analysis = analysed()
    assert shared_profile(analysis.table) == "core+biology"
    study = study_of(analysis, curves(), runs_frame())
    names = set(study_page(study.record, study, None).figures)
    assert {"scaling-core", "scaling-retain", "scaling-forget", "profiles-gram-tiny", "curves-small"} <= names
    assert "scaling-elicited" not in names
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)


def test_runs_are_readable():
    runs = readable_runs(runs_frame())
    assert runs["elapsed"].iloc[0] == "1:02:03"
    assert runs["elapsed"].iloc[5] == ""
    assert runs["tokens_per_second"].iloc[0] == "41,234"
    assert "elapsed_s" not in runs


@pytest.fixture(scope="module")
def stories_page() -> str:
    frames = stories_frames
    analysis = analyse(frames.evaluations(), frames.curves(), attacks=frames.attacks())
    claims, runs = with_published(paper_claims(analysis.per_seed, "stories"), "stories"), frames.runs()
    about = {"parameters": frames.PARAMETERS, "costs": frames.COSTS, "compare_with": "stories", "title": "Stories"}
    return html_of(analysis, frames.curves(), runs, claims, **about)


def test_a_study_of_every_method_beside_the_paper(stories_page):
    markup = html.unescape(without_plotly(stories_page))
    sections = re.findall('<section id="([^"]+)"', markup)
    assert [one for one in sections if one in IN_ORDER] == [one for one in IN_ORDER if one in sections]
    assert {"claims", "capabilities", "profiles", "cost", "runs", "attacks"} <= set(sections)
    assert f"{len(STORIES_CLAIMS)} agree, 0 disagree" in markup
    assert list(tiles_of(markup))[:4] == [f"GRAM {name}" for name in ("core", "retain", "forget", "elicited")]
    assert "0.91x or 1.00x" in markup
    costs = markup.split('id="cost"')[1].split("</section>")[0]
    assert "train FLOPs, core+Bygone Eras</th>" in costs
    filtered = "<td>ours</td><td>1</td><td>0.93x</td><td>5</td><td>5</td><td>4.52x</td>"
    of_gram = "<td>ours</td><td>5</td><td>1.00x</td><td>5</td><td>1</td><td>1.00x</td>"
    of_paper = "<td>800M</td><td>paper</td><td></td><td></td><td>5</td><td></td><td>5x</td>"
    assert all(cells in costs for cells in (filtered, of_gram, of_paper))
    assert "0.855 [0.831, 0.879]" in markup
    assert "0.983 [0.932, 1.034]" in markup
    assert markup.count("<td>agree</td>") == len(STORIES_CLAIMS)
    shown = markup.split('id="claims"')[1].split("</section>")[0]
    assert shown.count('<td class="long">agree, ') == len(STORIES_CLAIMS)
    assert ">published</th>" in shown
    assert ">paper</th>" not in shown  # of every claim there is what its seeds say
    assert '<td class="long">agree, -0.024 [-0.039, -0.008]</td>' in shown
    runs, attacks = markup.split('id="runs"')[1].split('id="attacks"')
    assert "attack-" not in runs
    kinds = re.findall(r"<td>(run|evaluation)</td>", runs)
    assert kinds == ["run"] * kinds.count("run") + ["evaluation"] * kinds.count("evaluation")
    assert attacks.index("<details>") < attacks.index("attack-gram-0-core-Bygone Eras")


def test_without_attacks_costs_or_the_paper_nothing_speaks_of_them(page):
    markup = without_plotly(page)
    assert "attack" not in markup
    assert "paper" not in markup.split("</style>")[1]


@pytest.mark.browser
@pytest.mark.parametrize("window", [(1280, 900), (500, 900)])
def test_a_browser_draws_the_stories(stories_page, tmp_path, window):
    require_drawn(stories_page, tmp_path, window)


@pytest.mark.browser
@pytest.mark.parametrize("window", [(1280, 900), (500, 900)])
def test_a_browser_draws_every_figure_without_a_word_on_its_console(page, tmp_path, window):
    require_drawn(page, tmp_path, window)


def require_drawn(page: str, folder: Path, window: tuple[int, int]) -> None:
    """Chromium draws every figure of the page and its console stays empty."""
    opened = page.replace("<details>", "<details open>")
    (folder / "report.html").write_text(opened, encoding="utf-8")
    with running_browser(folder) as browser:
        browser.window(*window)
        browser.open(folder / "report.html")
        assert browser.evaluate("document.querySelectorAll('.plot').length") == page.count('class="plot"') > 0
        assert browser.wait_for(DRAWN)
        assert browser.said == []
