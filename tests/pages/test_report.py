"""The report: what it shows and in which order, that it loads nothing, and that it escapes what it
shows."""

import re
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go
import pytest

from gram_platform.analysis.tables import Analysis, StudyLosses, analyse, in_reading_order
from gram_platform.pages.report.answers import answer_study, headline_rows
from gram_platform.pages.report.page import Section, readable_runs, sections_html
from gram_platform.pages.report.sections import report_sections, study_page, trend_sections
from gram_platform.pages.results import results
from gram_platform.pages.results.record import Results
from gram_platform.paper.claims import GRAM_SEPARATES, SGTM, STORIES_CLAIMS, follows
from gram_platform.paper.verdicts import paper_claims, with_published
from tests import stories_frames
from tests.pages.site.pages import ParsedPage, require_whole
from tests.study_frames import SIZES, analysed, curves, evaluations, study_of

IN_ORDER = [
    "Not finished",
    "At a glance",
    "Scaling",
    "What limits these numbers",
    "How to read",
    "Claims",
    "Differences behind the claims",
    "Missing",
    "Capabilities",
    "Profiles",
    "Cost",
    "Runs",
    "Attacks",
]
HOSTILE = 'loss is <b>nan</b> </script><script>alert("x")</script>'


def runs_frame() -> pd.DataFrame:
    columns = {
        "kind": "run",
        "status": "complete",
        "elapsed_s": 3723.4,
        "tokens_per_second": 41234.5,
    }
    frame = (
        evaluations()
        .drop_duplicates("run_id")[["run_id", "method", "size", "seed"]]
        .assign(**columns)
    )
    frame["run_id_url"] = [f"http://127.0.0.1:5000/#/runs/{run}" for run in frame["run_id"]]
    frame["error"] = ""
    frame.iloc[3, frame.columns.get_loc("status")] = "failed"
    frame.iloc[3, frame.columns.get_loc("error")] = HOSTILE
    frame.iloc[4, frame.columns.get_loc("run_id_url")] = "javascript:alert(1)"
    frame.iloc[5, frame.columns.get_loc("elapsed_s")] = float("nan")
    return frame


def study_with(analysis: Analysis, *frames, **about) -> Results:
    frames = frames or (curves(), runs_frame())
    return study_of(
        analysis, *frames, **{"title": "A <study>", "question": "First.\n\nSecond.", **about}
    )


def sections_of(study: Results) -> dict[str, Section]:
    lead, others = report_sections(study)
    return {section.title: section for section in (*lead, *others)}


def page_of(study: Results) -> ParsedPage:
    return ParsedPage(study_page(study.record, study, None).html())


@pytest.fixture(scope="module")
def study() -> Results:
    return study_with(analysed())


def require_order(titles: list[str]) -> None:
    assert [title for title in titles if title in IN_ORDER] == [
        title for title in IN_ORDER if title in titles
    ]


def test_it_is_one_page_that_loads_nothing(study):
    page = page_of(study)
    loaded = [
        at for tag, at in page.tags if "src" in at or tag in ("iframe", "object", "embed", "img")
    ]
    assert loaded == []
    assert [at["href"] for tag, at in page.tags if tag == "link"] == ["data:,"]


def test_every_section_is_there_with_its_table(study):
    sections = sections_of(study)
    require_order(list(sections))
    assert {"Scaling", "Capabilities", "Profiles", "Runs"} <= set(sections)
    assert {"Attacks", "Cost", "Beside the paper"}.isdisjoint(sections)
    assert len(sections["Scaling"].figures) == 3
    assert len(sections["Capabilities"].table) == len(in_reading_order(study.table))
    assert "0.940 [0.938, 0.942]" in sections["Capabilities"].table["core"].tolist()
    assert len(sections["Runs"].table) == 27
    ids = [at["id"] for tag, at in page_of(study).tags if tag == "section"]
    # And the set-up.
    assert len(ids) == len(sections) + 1


def test_the_largest_size_is_predicted_from_three_others_not_from_two():
    analysis = analysed()
    largest = analysis.table[analysis.table["size"] == "medium"].assign(size="large")
    whole = replace(analysis, table=pd.concat([analysis.table, largest]))
    assert trend_sections(study_of(analysis, curves(), runs_frame())) == []
    (section,) = trend_sections(
        study_of(whole, curves(), runs_frame(), parameters={**SIZES, "large": 64e6})
    )
    assert set(section.table["num_fitted"]) == {3}
    assert set(section.table["size"]) == {"large"}


def test_text_from_data_is_escaped_and_only_web_addresses_are_links(study):
    page = page_of(study)
    plain = page_of(study_with(analysed(), curves(), runs_frame().assign(error="")))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert any("A <study>" in text for text in page.texts)
    assert any(HOSTILE in text for text in page.texts)
    addresses = [at["href"] for tag, at in page.tags if tag == "a"]
    assert sum(address.startswith("http://127.0.0.1:5000/#/runs/") for address in addresses) == 26
    assert not [address for address in addresses if address.startswith("javascript")]


def test_a_domain_named_like_markup_is_escaped_once():
    renamed = {"loss/biology": "loss/<b>&x"}
    views = evaluations().rename(columns=renamed).replace("biology", "<b>&x", regex=True)
    points = curves().replace("biology", "<b>&x", regex=True)
    page = page_of(
        study_with(analyse(StudyLosses(views, points), tuple(SIZES)), points, runs_frame())
    )
    assert "core+<b>&x" in page.texts
    assert "<b>&x" in {trace.get("name") for figure in page.figures for trace in figure["data"]}
    assert "b" not in {tag for tag, _ in page.tags}


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
    figure = go.Figure(go.Scatter(x=[name], y=[1], name=name))
    (found,) = ParsedPage(str(sections_html([Section("x", figures={"x": figure})]))).figures
    assert (found["data"][0]["name"], found["data"][0]["x"]) == (shown, [shown])


def test_main_numbers_are_the_tables(study):
    rows = headline_rows(study)
    assert rows["method"].tolist() == ["gram", "filtering"]
    assert set(zip(rows["size"], rows["profile"], strict=True)) == {("medium", "core+biology")}
    table = study.table[
        (study.table["size"] == "medium") & (study.table["profile"] == "core+biology")
    ]
    for name in ("core", "retain", "forget"):
        assert (
            dict(zip(rows["method"], rows[name], strict=True)).items()
            <= dict(zip(table["method"], table[name], strict=True)).items()
        )


def test_main_numbers_are_of_a_size_that_both_methods_have_with_intervals():
    known = evaluations()
    one_seed = known[(known["size"] != "medium") | (known["seed"] == "0")]
    assert set(
        headline_rows(study_with(analyse(StudyLosses(one_seed, curves()), tuple(SIZES))))["size"]
    ) == {"small"}
    no_filtering = known[(known["size"] == "tiny") | (known["method"] != "filtering")]
    rows = headline_rows(study_with(analyse(StudyLosses(no_filtering, curves()), tuple(SIZES))))
    assert rows[["method", "size"]].to_numpy().tolist() == [["gram", "tiny"], ["filtering", "tiny"]]
    one = evaluations(seeds=("0",))
    rows = headline_rows(
        study_with(analyse(StudyLosses(one[one["method"] != "filtering"], curves()), tuple(SIZES)))
    )
    assert rows[["method", "size", "num_seeds"]].to_numpy().tolist() == [["gram", "medium", 1]]


def test_what_is_missing_comes_before_the_tables_and_is_named_above():
    known = evaluations()
    unfinished = known[~((known["size"] == "medium") & (known["method"] == "baseline"))]
    study = study_with(analyse(StudyLosses(unfinished, curves()), tuple(SIZES)))
    sections = sections_of(study)
    require_order(list(sections))
    assert any("medium" in what for what in sections["Missing"].table["what"])
    assert re.search(r"lack \d+ value", sections["Not finished"].text)


def test_a_study_of_which_nothing_is_finished_has_a_page():
    nothing = study_with(analyse(StudyLosses(evaluations().iloc[:0], curves()), tuple(SIZES)))
    sections = sections_of(nothing)
    assert {"At a glance", "Claims"}.isdisjoint(sections)
    assert sections["Capabilities"].table.empty
    assert page_of(nothing).figures == []


def test_every_section_has_an_address_of_its_own():
    titles = ("Tokens of \u533b\u5b66", "Tokens of \u6cd5\u5f8b", "Runs", "Runs", "!", 'a "b" <c>')
    page = ParsedPage(str(sections_html([Section(title) for title in titles])))
    ids = [at["id"] for tag, at in page.tags if tag == "section"]
    assert ids == [
        "tokens-of-\u533b\u5b66",
        "tokens-of-\u6cd5\u5f8b",
        "runs",
        "runs--2",
        "section",
        "a-b-c",
    ]


def test_the_same_study_is_the_same_page(study):
    again = study_with(analysed())
    assert (
        study_page(study.record, study, None).html() == study_page(again.record, again, None).html()
    )


def test_runs_are_readable():
    runs = readable_runs(runs_frame())
    assert runs["elapsed"].iloc[0] == "1:02:03"
    assert runs["elapsed"].iloc[5] == ""
    assert runs["tokens_per_second"].iloc[0] == "41,234"
    assert "elapsed_s" not in runs


@pytest.fixture(scope="module")
def stories() -> Results:
    frames = stories_frames
    analysis = analyse(StudyLosses(frames.evaluations(), frames.curves(), attacks=frames.attacks()))
    claims, runs = (
        with_published(paper_claims(analysis.per_seed, "stories"), "stories"),
        frames.runs(),
    )
    about = {
        "parameters": frames.PARAMETERS,
        "costs": frames.COSTS,
        "compare_with": "stories",
        "title": "Stories",
    }
    return study_with(analysis, frames.curves(), runs, claims, **about)


def test_a_study_of_every_method_beside_the_paper(stories):
    sections = sections_of(stories)
    require_order(list(sections))
    assert {
        "Claims",
        "Capabilities",
        "Profiles",
        "Cost",
        "Runs",
        "Attacks",
        "Beside the paper",
    } <= set(sections)
    of_the_paper = [claim for claim in STORIES_CLAIMS if claim.source != SGTM]
    assert stories.claims["verdict"].tolist() == ["agree"] * len(of_the_paper)
    cells = sections["Beside the paper"].table.to_numpy().ravel().tolist()
    assert {"0.855 [0.831, 0.879]", "0.983 [0.932, 1.034]"} <= set(cells)
    published = sections["Claims"].table["published"]
    assert published.str.startswith("yes, ").sum() == len(of_the_paper)
    assert "yes, -0.024 \u00b1.015" in published.tolist()
    assert "paper" not in sections["Claims"].table  # of every claim there is what its seeds say
    runs, attacks = sections["Runs"].table, sections["Attacks"].table
    assert not runs["run_id"].str.startswith("attack-").any()
    assert runs["kind"].tolist() == sorted(runs["kind"], reverse=True)
    assert "attack-gram-0-core-Bygone Eras" in attacks["run_id"].tolist()
    assert not sections["Attacks"].table_is_open


def test_costs_stand_beside_the_papers(stories):
    costs = sections_of(stories)["Cost"].table
    names = [
        "method",
        "from",
        "profiles here",
        "train FLOPs, core+Bygone Eras",
        "all profiles",
        "runs for all",
    ]
    rows = costs[[*names, "train FLOPs, all profiles"]].to_numpy().tolist()
    assert ["filtering", "ours", "1", "0.93x", "5", "5", "4.52x"] in rows
    assert ["gram", "ours", "5", "1.00x", "5", "1", "1.00x"] in rows
    assert ["filtering", "paper", "", "", "5", "", "5x"] in rows
    assert "0.91x or 1.00x" in costs.to_numpy().ravel().tolist()


def test_a_study_that_the_paper_lacks_answers_by_retain_above_forget(study):
    judged = results.judge_study(study.record, study.analysis)
    _, ratios, answer = answer_study(replace(study, claims=judged))
    assert ratios.startswith("GRAM: core 0.9")
    assert answer.startswith("Is the forgotten domain forgotten? ")
    row = judged.set_index("claim").loc["gram, medium: retain is above forget"]
    assert f"GRAM's retain is {row['difference']:.2f}" in answer
    assert answer.endswith("above its forget, mean over the profiles.")


def test_a_report_answers_before_it_says_how_it_was_made(stories):
    place, *answers = answer_study(stories)
    assert "3 seeds" in place
    assert [answer.partition("? ")[2].partition(":")[0] for answer in answers] == ["Yes"] * 4
    rows = stories.claims.set_index("claim")
    for answer, claim in zip(answers, follows("GRAM", "gram"), strict=True):
        row = rows.loc[claim.text]
        half = (row["high"] - row["low"]) / 2.0
        assert f"{abs(row['difference']):.2f} \u00b1 {half:.2f}" in answer
    record = replace(stories.record, facts=("How it was made.",))
    texts = study_page(record, stories, None).html()
    places = [texts.index(text) for text in (answers[0].partition("'")[0], 'class="tiles"')]
    places += [texts.index(f'id="{name}"') for name in ("what-limits-these-numbers", "set-up")]
    assert places == sorted(places)
    assert texts.count("How it was made.") == 1
    assert texts.index("How it was made.") > texts.index('id="set-up"')


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [
        (["agree", "agree"], "Yes"),
        (["disagree", "disagree"], "No"),
        (["agree", "disagree"], "In part"),
        (["agree", "cannot tell"], "In part"),
        (["disagree", "cannot tell"], "No"),
        (["cannot tell", "cannot tell"], "Cannot tell"),
        (["", "agree (no interval)"], "Not judged"),
    ],
)
def test_an_answer_is_of_all_claims_of_its_group(stories, verdicts, answer):
    """Forgetting has two: below retain, and no more than filtering's."""
    of_gram = (GRAM_SEPARATES.text, follows("GRAM", "gram")[2].text)
    named = dict(zip(of_gram, verdicts, strict=True))
    judged = [named.get(text, "agree") for text in stories.claims["claim"]]
    found = answer_study(replace(stories, claims=stories.claims.assign(verdict=judged)))
    assert [text for text in found if "forgotten? " in text] == [
        text for text in found if f"forgotten? {answer}: " in text
    ]


def test_an_error_of_the_unit_is_in_the_error_of_every_answer(stories):
    wide = stories.claims.assign(unit_error=0.5)
    for answer in answer_study(replace(stories, claims=wide))[1:]:
        assert all(0.5 <= float(half) < 0.6 for half in re.findall(r"\u00b1 ([\d.]+)", answer))


@pytest.mark.browser
def test_a_browser_draws_every_figure_without_a_word_on_its_console(stories, tmp_path):
    (tmp_path / "report.html").write_text(
        study_page(stories.record, stories, None).html(), encoding="utf-8"
    )
    require_whole([tmp_path / "report.html"], tmp_path)
