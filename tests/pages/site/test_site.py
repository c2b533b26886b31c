"""The site of a planted storage: what its pages say, that it stands alone, that only what has changed is written."""

import html
import json
import re
import shutil
import threading
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gram_platform.cli import main
from gram_platform.config import View
from gram_platform.pages.figures.style import METHOD_STYLES
from gram_platform.pages.figures.thumbnail import is_thumbnail
from gram_platform.pages.report.page import asset
from gram_platform.pages.results.record import load_record
from gram_platform.pages.site.build import tracking_of
from gram_platform.pages.site.folder import SiteFolder
from gram_platform.pages.site.pages import STUDY_SUMMARY
from gram_platform.paper.verdicts import EXPLANATIONS
from gram_platform.release.profile_numbers import profile_numbers
from gram_platform.store import Store
from gram_platform.store.folders import open_folder
from gram_platform.studies.site import build_site, watch_site
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.views import study_views
from tests.pages.site.planted import HOSTILE, MISSING_ID, PlantedStorage, every_state


@pytest.fixture(scope="module")
def planted_root(tmp_path_factory) -> Path:
    """A storage in every state, without MLflow."""
    root = tmp_path_factory.mktemp("planted")
    every_state(root)
    return root


@pytest.fixture(scope="module")
def site(planted_root) -> Path:
    built = build_site(Store(planted_root), None)
    assert built.problems == ()
    assert built.num_runs == 14
    assert built.index == f"{planted_root}/site/index.html"
    return planted_root / "site"


@pytest.fixture
def storage_copy(planted_root, site, tmp_path) -> Path:
    """The same storage with its site, to be changed."""
    shutil.copytree(planted_root, tmp_path / "storage")
    assert build_site(Store(tmp_path / "storage"), None).num_written == 1  # the index names it
    return tmp_path / "storage"


def text(page: Path) -> str:
    """What a page says, without its scripts, on one line."""
    return " ".join(html.unescape(re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.S)).split())


def rows_of(page: Path, title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = page.read_text().split(f"<h2>{html.escape(title)}</h2>")[1].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.split("<tbody>")[1])
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


def test_the_index_has_the_state_of_every_study_and_search(site):
    rows = {row[0]: row[1:] for row in rows_of(site / "index.html", "State")}
    assert set(rows) == {"Scaling <of> sizes", "Stories with holes", "A study that has not begun"}
    assert rows["Scaling <of> sizes"][:5] == ["36 of 36", "0", "0", "0", "12 of 12"]
    assert rows["Stories with holes"][:5] == ["36 of 39", "0", "1", "2", "12 of 14"]
    assert rows["A study that has not begun"][:6] == ["0 of 1", "0", "0", "1", "0 of 0", "0"]
    assert rows["Scaling <of> sizes"][6].startswith("$")
    assert rows["Stories with holes"][6] == ""
    assert rows["Scaling <of> sizes"][8] == "1.2e+10"
    search = rows_of(site / "index.html", "Searches")[0]
    assert search[:3] == ["maxent_search", "no driver", "3 complete"]
    assert "12 of 14 runs belong to more than one study or search" in text(site / "index.html")
    assert rows_of(site / "index.html", "Failed runs")[0][1] == HOSTILE


def test_the_index_shows_main_figures_and_verdicts_with_links(site):
    page = (site / "index.html").read_text()
    cards = {}
    for card in re.findall(r"<li>(.*?)</li>", page.split("<h2>Studies</h2>")[1].split("</section>")[0]):
        address, title = re.search(r'<a href="(.*?)">(.*?)</a>', card).groups()
        cards[html.unescape(title)] = (address, card)
    assert list(cards) == ["A study that has not begun", "Scaling <of> sizes", "Stories with holes"]
    address, card = cards["Scaling <of> sizes"]
    assert address == "studies/scaling.html"
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", card)[0])
    assert [place.text for place in svg.iter("text")] == ["Core", "Retain", "Forget"]
    lines = [line.get("stroke") for line in svg.iter("polyline")]
    assert lines == 3 * [METHOD_STYLES["filtering"].colour, METHOD_STYLES["gram"].colour]
    verdicts = Counter(row[0] for row in rows_of(site / address, "Claims"))
    assert f"{verdicts['agree']} agree, {verdicts['disagree']} disagree, {verdicts['cannot tell']} cannot tell" in card
    assert f"Claims: {verdicts['agree']} agree, " in text(site / address)
    assert "no figure" in cards["A study that has not begun"][1]
    assert "no claims judged" in cards["A study that has not begun"][1]
    assert "plotly" not in page


def test_a_study_leads_with_its_numbers_and_figure_and_ends_with_its_state(site):
    page = site / "studies" / "stories.html"
    titles = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    assert titles[:4] == ["The unit", "At a glance", "Scaling", "Claims"]  # the demo's unit is off, which comes first
    assert titles[-2:] == ["Not complete", "State"]
    assert text(page).index("see Not complete") < text(page).index("At a glance")
    assert "see Not complete" not in text(site / "studies" / "scaling.html")
    assert re.findall(r"<h2>(.*?)</h2>", (site / "studies" / "empty.html").read_text())[0] == "Results"
    shown = page.read_text().split("<h2>Runs</h2>")[1]
    assert shown.index("<details>") < shown.index("<table>")


def test_explanations_are_on_the_page_of_a_study_and_on_that_of_all_claims(storage_copy, monkeypatch):
    claims = rows_of(storage_copy / "site" / "claims.html", "Scaling <of> sizes")
    assert {row[0] for row in claims} == {"agree"}
    path = storage_copy / "studies" / "scaling" / "study.json"
    swapped = {"core+lisp": "core+virology", "core+virology": "core+lisp"}
    record = json.loads(path.read_text())
    for entry in record["entries"]:
        if entry["kind"] == "evaluation" and entry["tags"]["method"] == "gram":
            tags = entry["tags"]
            tags["profile"] = swapped.get(tags["profile"], tags["profile"])
            tags["retained"] = {"lisp": "virology", "virology": "lisp"}.get(tags["retained"], tags["retained"])
    path.write_text(json.dumps(record))
    key = ("scaling", "tiny", "gram, tiny: retain is above forget")
    monkeypatch.setitem(EXPLANATIONS, key, "Its profiles are swapped. Shown by this test.")
    build_site(Store(storage_copy), None, out=str(storage_copy / "again"))
    for page, title in (("studies/scaling.html", "Claims"), ("claims.html", "Scaling <of> sizes")):
        rows = {row[1]: (row[0], row[-1]) for row in rows_of(storage_copy / "again" / page, title)}
        assert rows[key[2]] == ("disagree", "Its profiles are swapped. Shown by this test.")
        assert all(last == "" for verdict, last in rows.values() if verdict == "agree")


def test_a_study_with_holes_builds_and_says_what_is_missing(site):
    page = site / "studies" / "stories.html"
    rows = {row[0]: row[1:] for row in rows_of(page, "Not complete")}
    assert set(rows) == {"failed", "interrupted", "missing"}
    assert rows["failed"][2] == HOSTILE
    assert rows["missing"][:2] == ["gram small all s2", MISSING_ID]
    assert "Read from the storage." in text(page)
    assert "<h2>Scaling</h2>" in page.read_text()
    assert "3 of 39 nodes are not complete" in text(page)
    assert "No baseline is complete" in text(site / "studies" / "empty.html")


def test_the_claims_of_all_studies_and_searches_on_one_page(site):
    page = site / "claims.html"
    assert "90% t-interval" in text(page)
    summary = {row[0]: row[1:] for row in rows_of(page, "All claims")}
    assert set(summary) == {"Scaling <of> sizes", "Stories with holes", "maxent_search", "all"}
    assert summary["maxent_search"] == ["1", "0", "0", "0", "0"]
    claim = rows_of(page, "maxent_search")[0]
    assert claim == ["agree", "p_cr helps", "0.100 [0.050, 0.150]", "0.020", "3", "app:hyperparams", "preset ?"]
    assert any("preset tiny (tiny, small)" in row[-1] for row in rows_of(page, "Scaling <of> sizes"))


def test_a_search_is_its_own_report_within_the_site(site):
    page = (site / "studies" / "maxent_search.html").read_text()
    assert len(page) < 20_000
    assert 'src="../plotly.min.js"' in page
    assert page.count("<h2>") == 3
    assert len(rows_of(site / "studies" / "maxent_search.html", "Runs behind the trials")) == 3


def test_links_lead_somewhere_and_nothing_comes_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == 4 + 2
    for page in pages:
        for address in re.findall(r'(?:href|src)="([^"]*)"', page.read_text()):
            assert not address.startswith(("http", "//", "javascript")), (page, address)
            path, _, anchor = address.partition("#")
            if address.startswith("data:"):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), (page, address)
            assert not anchor or f'id="{anchor}"' in target.read_text(), (page, address)
    assert (site / "plotly.min.js").read_text() == asset("plotly.min.js")
    assert all(page.stat().st_size < 200_000 for page in pages)


def test_only_what_has_changed_is_written(storage_copy):
    store, site = Store(storage_copy), storage_copy / "site"
    assert build_site(store, None).num_written == 0
    before = {page: page.stat().st_mtime_ns for page in site.rglob("*.html")}
    (site / "claims.html").unlink()
    shutil.rmtree(storage_copy / "runs" / rows_of(site / "index.html", "Failed runs")[0][0])
    build_site(Store(storage_copy), None)
    changed = {
        page.relative_to(site).as_posix()
        for page, at in before.items()
        if page.exists() and page.stat().st_mtime_ns != at
    }
    assert changed == {"claims.html", "index.html", "studies/stories.html"}


def test_pages_that_are_no_longer_written_are_removed(storage_copy):
    site, page = storage_copy / "site", storage_copy / "site" / "runs" / "0123456789ab.html"
    page.parent.mkdir()
    page.write_text("of an earlier version")
    manifest = json.loads((site / "manifest.json").read_text())
    manifest["runs/0123456789ab.html"] = {"made_from": "", "leaves": None}
    (site / "manifest.json").write_text(json.dumps(manifest))
    build_site(Store(storage_copy), None)
    assert not page.exists()
    assert (site / "studies" / "scaling.html").exists()


# ------------------------------------------------------------------------------------------------- hostile storages

PICTURES = [
    '<meta http-equiv="refresh" content="0;url=http://elsewhere.example/">',
    "<svg><style>body{display:none}</style></svg>",
    '<svg onload="x()"></svg>',
    "<svg onload=x()></svg>",
    '<svg><a href="http://elsewhere.example/"><text>x</text></a></svg>',
    '<svg><image href="http://elsewhere.example/x.png"/></svg>',
    '<svg fill="url(http://elsewhere.example/x)"></svg>',
    '<svg><text style="position:fixed">x</text></svg>',
    "</div></main><svg></svg>",
    "<svg><g></svg>",
    "elsewhere.example",
    "<!-- elsewhere.example",
    ["elsewhere.example"],
    7,
    None,
]


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_of_a_manifest_is_no_markup_of_others(site, picture):
    assert not is_thumbnail(picture)
    manifest = json.loads((site / "manifest.json").read_text())
    ours = [
        e["leaves"]["picture"] for e in manifest.values() if isinstance(e, dict) and "picture" in (e["leaves"] or {})
    ]
    assert ours
    assert all(map(is_thumbnail, ours))


ENTRIES = [
    *(5, None, [], {"made_from": 5}, {"made_from": ""}),
    *(
        {"leaves": leaves}
        for leaves in (None, 5, {}, {"claims": 5}, {"claims": [5]}, {"claims": [{"verdict": "agree"}]})
    ),
    {"leaves": {"claims": [], "problem": "", "picture": PICTURES[0]}},
    {"leaves": {"claims": [], "problem": 5, "picture": ""}},
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_of_a_manifest_of_another_shape_counts_as_absent(tmp_path, entry):
    """It has the hash of the page's inputs: an honest builder would take it."""
    summary = {"claims": [], "problem": "", "picture": "<svg></svg>"}
    page = ("studies/a.html", "inputs", lambda: ("page", summary), STUDY_SUMMARY)
    for expected in (1, 0, 1):
        site = SiteFolder(open_folder(str(tmp_path), writable=True))
        assert site.page(*page) == summary
        assert site.num_written == expected
        site.finish()
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        if not expected:
            manifest["studies/a.html"] = {**manifest["studies/a.html"], **entry} if isinstance(entry, dict) else entry
            (tmp_path / "manifest.json").write_text(json.dumps(manifest))


def test_a_manifest_of_another_shape_ends_no_build(storage_copy):
    path = storage_copy / "site" / "manifest.json"
    whole, index = path.read_text(), (storage_copy / "site" / "index.html").read_text()
    kept = storage_copy / "site" / "thesis.txt"
    kept.write_text("mine")
    entries = json.loads(whole)
    entries["studies/scaling.html"]["leaves"]["picture"] = PICTURES[0]
    alien = {"../../x.html": {}, "a/b/c.html": {}, "": {}, "thesis.txt": "", "studies": {}, "index.html": 5}
    for text in (json.dumps({**entries, **alien}), "[5]"):
        path.write_text(text)
        assert build_site(Store(storage_copy), None).problems == ()
        assert (storage_copy / "site" / "index.html").read_text() == index
        assert kept.read_text() == "mine"


FACTS = ({"result": 5}, {"result": None}, {"timing": 5}, {"tags": 5}, {"config": []}, {"progress": 5}, {"failure": 5})
TIMING = {"elapsed_s": "x", "num_ranks": [], "ended": "x", "device": 5, "num_threads": {}}


def test_cached_facts_of_another_shape_are_read_again(storage_copy):
    path, index = storage_copy / "site" / "facts.json", storage_copy / "site" / "index.html"
    whole, expected = json.loads(path.read_text()), index.read_text()
    assert len(whole) > len(FACTS)
    path.write_text(
        json.dumps({key: {**facts, **FACTS[i % len(FACTS)]} for i, (key, facts) in enumerate(whole.items())})
    )
    index.unlink()
    build_site(Store(storage_copy), None)
    assert index.read_text() == expected
    path.write_text(json.dumps({key: {**facts, "timing": TIMING} for key, facts in whole.items()}))
    build_site(Store(storage_copy), None)


@pytest.mark.parametrize(
    "element", ["<META http-equiv=refresh content='0;url=http://x.example'>", "<style>x</style>", "<base/>"]
)
def test_a_report_that_leads_elsewhere_is_not_shown(storage_copy, element):
    path = storage_copy / "studies" / "maxent_search" / "report.html"
    path.write_text(path.read_text().replace("What it asks.", element))
    built = build_site(Store(storage_copy), None)
    assert built.problems == ("maxent_search: its report.html has another form than this version writes: not shown",)
    assert element not in (storage_copy / "site" / "studies" / "maxent_search.html").read_text()


@pytest.mark.parametrize("file", ["claims.csv", "trials.csv"])
@pytest.mark.parametrize(
    "data", [b"\xff", b"claim,verdict,difference\na,agree,much\n", b'runs,claim\n"', b"a\0b\n", b""]
)
def test_a_damaged_table_of_a_search_does_not_stop_the_site(storage_copy, file, data):
    (storage_copy / "studies" / "maxent_search" / file).write_bytes(data)
    build_site(Store(storage_copy), None)
    assert (storage_copy / "site" / "studies" / "maxent_search.html").exists()


def test_every_page_lets_only_its_own_scripts_run(site):
    """The policy comes before any script, names each by a hash, and differs from page to page."""
    others = "'unsafe-eval'; object-src 'none'; base-uri 'none'; frame-src 'none'; form-action 'none'"
    nonces = []
    for page in sorted(site.rglob("*.html")):
        source = page.read_text()
        (policy,) = re.findall('<meta http-equiv="Content-Security-Policy" content="(.*?)">', source)
        (nonce,) = re.findall("script-src 'nonce-([0-9a-f]{32})'", policy)
        assert policy == f"script-src 'nonce-{nonce}' {others}"
        scripts = [tag for tag in re.findall("<script[^>]*>", source) if 'type="application/json"' not in tag]
        assert scripts
        assert all(f'nonce="{nonce}"' in tag for tag in scripts)
        assert source.index("Content-Security-Policy") < min(map(source.index, ("<script", "<link", "<body")))
        nonces.append(nonce)
    assert len(set(nonces)) == len(nonces) > 4


def test_links_into_mlflow_where_a_database_is(tmp_path):
    planted = PlantedStorage(tmp_path)
    planted.plant(("tiny",), ("0",))
    planted.study("scaling", "Scaling")
    store = planted.store
    assert tracking_of(store, "") is None
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    tracker.log_study("scaling", {}, {}, {}, views=study_views("scaling", "0", {}, ("core",)))
    assert tracking_of(store, "") == f"sqlite:///{tmp_path}/mlflow.db"
    build_site(store, tracking_of(store, ""))
    page = tmp_path / "site" / "studies" / "scaling.html"
    assert "Read from the storage. Links to MLflow open while this command runs: mlflow ui" in text(page)
    assert page.read_text().count('href="http://127.0.0.1:5000/#/experiments/1/runs/') == 9
    state = page.read_text().split("<h2>State</h2>")[1]
    of_study = re.findall(r'href="http://127.0.0.1:5000/#/experiments/1/runs\?(.*?)"', state)
    ratios, runs = of_study
    assert "compareRunsMode=CHART" in ratios
    assert "gram.scaling.ratios" in ratios
    assert "gram.scaling.runs" in runs
    assert runs in (tmp_path / "site" / "index.html").read_text()


def test_without_a_server_there_are_no_links(storage_copy):
    built = build_site(Store(storage_copy), "http://127.0.0.1:9")
    page = storage_copy / "site" / "studies" / "scaling.html"
    assert built.problems == ()
    assert "Read from the storage. There are no links to MLflow: it is away (" in text(page)


def test_a_study_that_cannot_be_read_does_not_stop_the_others(storage_copy):
    path = storage_copy / "studies" / "scaling" / "study.json"
    record = json.loads(path.read_text())
    twice = [entry for entry in record["entries"] if entry["kind"] == "evaluation"]
    for place, entry in enumerate(twice):
        entry["tags"] = {**twice[0]["tags"]} if place < 2 else entry["tags"]
    path.write_text(json.dumps(record))
    built = build_site(Store(storage_copy), None, out=str(storage_copy / "elsewhere"))
    assert len(built.problems) == 1
    assert "its results cannot be read" in text(storage_copy / "elsewhere" / "studies" / "scaling.html")
    assert "Read from" in text(storage_copy / "elsewhere" / "studies" / "stories.html")
    assert "report.html" not in (storage_copy / "elsewhere" / "studies" / "stories.html").read_text()


@pytest.mark.parametrize("change", [{"newer": 1}, {"entries": [{"id": 1}]}, {"measurement": ["x"]}, {"title": None}])
def test_a_record_of_another_version_is_left_out_with_a_warning(storage_copy, change):
    path, store = storage_copy / "studies" / "scaling" / "study.json", Store(storage_copy)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(RuntimeWarning, match=rf"scaling/study\.json: {next(iter(change))}=.*left out"):
        build_site(store, None)
    assert not (storage_copy / "site" / "studies" / "scaling.html").exists()
    assert (storage_copy / "site" / "studies" / "stories.html").exists()
    with pytest.warns(RuntimeWarning, match="scaling/study.json"):
        assert profile_numbers(store, View("0" * 12)) == ()
    with pytest.raises(ValueError, match=rf"scaling/study\.json: {next(iter(change))}="):
        load_record(store, "scaling")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"study='other': expected a study .*: empty, scaling, stories"):
        load_record(store, "other")


@pytest.mark.parametrize("name", [["x"], "../x", None])
def test_a_search_of_another_name_is_shown_by_its_id(storage_copy, name):
    Store(storage_copy).open_for_writing().search_dir("a1b2").write_json("search.json", {"name": name})
    build_site(Store(storage_copy), None)
    assert (storage_copy / "site" / "studies" / "a1b2.html").exists()


def test_watching_builds_again_when_something_has_happened(storage_copy):
    store, said = Store(storage_copy), []
    run_id = rows_of(storage_copy / "site" / "studies" / "maxent_search.html", "Runs behind the trials")[0][0]

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            tags = {"profile": "changed while watched"}
            threading.Timer(0.5, lambda: Store(storage_copy).open_for_writing(0).run(run_id).add_tags(tags)).start()
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_site(store, None, 0.05, say)
    assert [line.split()[1] for line in said] == ["0", "3"]
    assert "changed while watched" in text(storage_copy / "site" / "studies" / "maxent_search.html")


def test_gram_report_without_a_study_builds_the_site(storage_copy, capsys):
    main(["report", "--storage", str(storage_copy), "--out", str(storage_copy / "out")])
    assert capsys.readouterr().out.splitlines()[-1] == f"{storage_copy}/out/index.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", "scaling", "--storage", str(storage_copy), "--watch", "5"])
    assert ended.value.code == 2
    assert "study='scaling': expected no value with --out or --watch" in capsys.readouterr().err


def test_an_empty_storage_has_a_site(tmp_path):
    build_site(Store(tmp_path), None)
    assert "No study has been submitted" in text(tmp_path / "site" / "index.html")
    assert "No study has what a claim needs yet" in text(tmp_path / "site" / "claims.html")
