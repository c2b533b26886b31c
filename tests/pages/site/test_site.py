"""The index of a planted storage: what its cards say, where they lead, and that no stored text is
markup."""

import csv
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gram_platform.cli import main
from gram_platform.config import View
from gram_platform.pages.index import RIGHT, Shown, draw_ratios, read_shown, write_index
from gram_platform.pages.results.record import load_record
from gram_platform.release.profile_numbers import profile_numbers
from gram_platform.store import Store
from gram_platform.studies.drive import refresh_site
from tests.pages.site.pages import parse_page, require_links_lead_somewhere
from tests.pages.site.planted import HOSTILE, every_state
from tests.study_frames import analysed


@pytest.fixture(scope="module")
def planted_root(tmp_path_factory) -> Path:
    """A storage in every state, without MLflow, with its index."""
    root = tmp_path_factory.mktemp("planted")
    every_state(root)
    assert write_index(Store(root).open_for_writing()) == f"{root}/site/index.html"
    return root


@pytest.fixture
def storage_copy(planted_root, tmp_path) -> Path:
    """The same storage, to be changed."""
    return Path(shutil.copytree(planted_root, tmp_path / "storage"))


def shown(root: Path) -> dict[str, Shown]:
    """What the index shows of each study and search, by title."""
    studies, searches = read_shown(Store(root))
    return {one.title: one for one in (*studies, *searches)}


def rebuilt(root: Path) -> Path:
    return Path(write_index(Store(root).open_for_writing()))


def test_a_study_has_its_main_result_how_much_is_done_and_its_verdicts(planted_root):
    cards = shown(planted_root)
    assert len(cards) == 4
    scaling, holes = cards["Scaling <of> sizes"], cards["Stories with holes"]
    assert scaling.question == "Does it hold?"
    assert "core+lisp" in scaling.card.headline
    report = parse_page(planted_root / "studies/scaling/report.html")
    # The same sentences.
    assert set(scaling.card.headline.split("\n\n")) <= set(report.texts)
    values = re.findall(r"(core|retain|forget) (\d\.\d+)", scaling.card.headline)
    planted = {"core": 0.95, "retain": 0.95, "forget": 0.75}
    assert {name: float(value) for name, value in values} == pytest.approx(planted, abs=0.05)
    assert [one.card.state.split()[:3] for one in (scaling, holes)] == [
        ["36", "of", "36"],
        ["36", "of", "39"],
    ]
    with (planted_root / "studies/scaling/claims.csv").open() as file:
        assert scaling.card.verdicts == Counter(row["verdict"] for row in csv.DictReader(file))
    assert scaling.submission_time == "2026-11-26T10:00:00+00:00"


def test_a_study_that_has_not_begun_leads_nowhere(planted_root):
    begun = shown(planted_root)["A study that has not begun"]
    assert (begun.links, begun.report, begun.picture, begun.submission_time) == ((), "", "", "")


def test_links_and_pictures_are_files_of_the_storage(planted_root):
    site = planted_root / "site"
    addresses = require_links_lead_somewhere(site)
    for name in ("scaling", "stories", "maxent_search"):
        assert {
            f"../studies/{name}/{file}" for file in ("report.html", "claims.csv", "card.svg")
        } <= set(addresses)
    for picture in planted_root.glob("studies/*/card.svg"):
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    texts = ElementTree.parse(planted_root / "studies/scaling/card.svg").iter(
        "{http://www.w3.org/2000/svg}text"
    )
    assert {"GRAM", "filtering", "core", "retain", "forget"} <= {text.text for text in texts}


def test_a_figure_of_the_paper_leads_to_the_report_that_is_here(planted_root):
    page = parse_page(planted_root / "site" / "index.html")
    assert {"Figure 7", "gram run scaling --preset demo"} <= set(page.texts)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    rows = Counter(link for link in links if link.endswith("report.html"))
    # Twice in its card, and in the table for each of its figures.
    assert rows["../studies/scaling/report.html"] == 2 + 1
    assert rows["../studies/stories/report.html"] == 2 + 3
    assert "../studies/titration/report.html" not in rows


def test_an_interval_beyond_the_picture_ends_in_an_arrow():
    rows = analysed().table.query("method == 'gram' and size == 'tiny' and profile == 'core'")
    num_marks = draw_ratios(rows).count("translate")
    longer = draw_ratios(rows.assign(core_low=-20.0, core_high=20.0))
    assert longer.count("translate") == num_marks + 2
    ends = re.findall(r"M([\d.]+),[\d.]+H([\d.]+)", longer)
    assert max(float(right) for _, right in ends) == RIGHT


def test_earlier_pages_are_linked_the_newest_first(storage_copy):
    folder = storage_copy / "studies" / "scaling"
    for date in ("2026-11-25T213751", "2026-11-26T080000", "2026-11-26T090000"):
        (folder / "history" / date).mkdir(parents=True)
        if date != "2026-11-26T090000":  # of which no page is there
            shutil.copy(folder / "report.html", folder / "history" / date)
    earlier = [
        text
        for text, address in shown(storage_copy)["Scaling <of> sizes"].links
        if "history" in address
    ]
    assert earlier == ["until 2026-11-26 08:00", "until 2026-11-25 21:37"]
    require_links_lead_somewhere(rebuilt(storage_copy).parent)


def test_stored_text_is_text_in_the_site(storage_copy):
    """Titles, questions, results and states are the words of whoever writes the storage."""
    index = storage_copy / "site" / "index.html"
    tags, num_answers = Counter(tag for tag, _ in parse_page(index).tags), 0
    for file in (
        storage_copy / "studies/scaling/study.json",
        storage_copy / "studies/maxent_search/search.json",
    ):
        record = json.loads(file.read_text())
        # As many paragraphs as before.
        answers = [f"headline{HOSTILE}" for _ in record["card"]["headline"].split("\n\n")]
        num_answers += len(answers)
        card = {**record["card"], "headline": "\n\n".join(answers), "state": f"state{HOSTILE}"}
        texts = {name: name + HOSTILE for name in ("title", "question")}
        file.write_text(json.dumps({**record, **texts, "card": card}))
    rebuilt(storage_copy)
    page = parse_page(index)
    assert Counter(tag for tag, _ in page.tags) == tags
    assert num_answers == 4
    for name, number in {"title": 2, "question": 2, "state": 2, "headline": num_answers}.items():
        assert sum(name + HOSTILE in text for text in page.texts) == number, name
    require_links_lead_somewhere(index.parent)


def test_nothing_of_a_report_is_in_the_site(storage_copy):
    """A report, a table or a picture may be anybody's: the index leads there, and reads none."""
    before = shown(storage_copy)
    for name in ("report.html", "card.svg", "claims.csv", "table.csv"):
        (storage_copy / "studies" / "scaling" / name).write_bytes(b"<meta http-equiv=refresh>\xff")
    assert shown(storage_copy) == before
    assert b"http-equiv=refresh" not in rebuilt(storage_copy).read_bytes()


def test_every_page_lets_only_its_own_scripts_run(planted_root):
    """The policy comes before any script, names each by a hash, and differs from page to page."""
    others = (
        "'unsafe-eval'; object-src 'none'; base-uri 'none'; frame-src 'none'; form-action 'none'"
    )
    pages, nonces = (
        [planted_root / "site/index.html", *planted_root.glob("studies/*/report.html")],
        set(),
    )
    for page in map(parse_page, pages):
        policies = [
            at["content"]
            for _, at in page.tags
            if at.get("http-equiv") == "Content-Security-Policy"
        ]
        scripts = [
            at for tag, at in page.tags if tag == "script" and at.get("type") != "application/json"
        ]
        (nonce,) = {at["nonce"] for at in scripts}
        assert policies == [f"script-src 'nonce-{nonce}' {others}"]
        order = [
            tag for tag, at in page.tags if tag in ("script", "style", "body") or "http-equiv" in at
        ]
        assert order[0] == "meta"
        assert all(set(at) == {"nonce"} for at in scripts)
        nonces.add(nonce)
    assert len(nonces) == len(pages) == 4


@pytest.mark.parametrize(
    "change", [{"entries": [{"id": 1}]}, {"title": None}, {"card": {"verdicts": {"agree": "x"}}}]
)
def test_a_damaged_record_is_left_out_with_a_warning(storage_copy, change):
    path, store = storage_copy / "studies" / "scaling" / "study.json", Store(storage_copy)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if "entries" not in change:  # which the index does not read
        with pytest.warns(RuntimeWarning, match="scaling"):
            assert set(shown(storage_copy)) >= {"Stories with holes", "maxent_search"}
    with pytest.warns(RuntimeWarning, match=r"scaling/study\.json"):
        assert profile_numbers(store, View("0" * 12)) == ()
    with pytest.raises(ValueError, match=r"scaling/study\.json"):
        load_record(store, "scaling")


def test_gram_report_without_a_study_writes_the_index(storage_copy, capsys):
    (storage_copy / "site" / "index.html").unlink()
    main(["report", "--storage", str(storage_copy)])
    index = Path(capsys.readouterr().out.strip())
    assert index.is_file()
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "report",
                "scaling",
                "--storage",
                str(storage_copy),
                "--out",
                str(storage_copy / "out"),
            ]
        )
    assert ended.value.code == 2
    assert "--out " in capsys.readouterr().err


def test_a_submission_says_where_the_site_is_or_why_it_has_none(tmp_path):
    """The tables are written by then: no error of the site ends a submission."""
    store, said = Store(tmp_path).open_for_writing(min_free_bytes=0), []
    refresh_site(store, "sqlite:///none.db", said.append)
    assert said.pop().endswith(f"{tmp_path}/site/index.html")
    assert (tmp_path / "mlflow.html").is_file()
    shutil.rmtree(tmp_path / "site")
    (tmp_path / "site").symlink_to(tmp_path / "elsewhere")
    refresh_site(store, "http://127.0.0.1:9", said.append)
    assert "not built" in said.pop()


def test_an_object_store_has_an_index_too():
    store = Store("memory://indexed").open_for_writing()
    assert write_index(store).endswith("/site/index.html")
    assert read_shown(store) == ([], [])
