"""The site of a planted storage: what its pages say, where they lead, that only what has changed is written."""

import html
import json
import re
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gram_platform.cli import main
from gram_platform.config import View
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.results.record import load_record
from gram_platform.pages.results.results import read_results
from gram_platform.pages.site import build
from gram_platform.pages.site.build import build_site, tracking_of, watch_site
from gram_platform.paper.verdicts import EXPLANATIONS
from gram_platform.release.profile_numbers import profile_numbers
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.views import study_views
from tests.pages.site.pages import require_links_lead_somewhere, source_addresses
from tests.pages.site.planted import HOSTILE, MISSING_ID, PlantedStorage, every_state


@pytest.fixture(scope="module", autouse=True)
def one_minute():
    """All pages are built in the same one, which the index says."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build, "time", SimpleNamespace(**{**vars(time), "time": lambda: 1.7e9}))
        yield


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
    section = page.read_text().split(f"<h2>{html.escape(title)} <a")[1].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section.split("<tbody>")[1])
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


def card(page: Path, title: str) -> str:
    """What the card of a study or a search says, on one line."""
    (found,) = [part for part in page.read_text().split("<li>")[1:] if f">{html.escape(title)}</a>" in part] or [
        part for part in page.read_text().split("<li>")[1:] if part.startswith(f"<h3>{html.escape(title)}<")
    ]
    return " ".join(html.unescape(re.sub("<[^<>]*>", " ", found.split("</li>")[0])).split())


def test_the_index_says_what_it_is_what_came_out_and_of_when(site):
    first = re.search("<header>.*?<p>(.*?)</p>", (site / "index.html").read_text(), re.S)[1]
    assert first.startswith("Which capabilities of a language model can be switched off, and what does it cost? ")
    assert re.search(rf" 3 studies\W.* 1 search\W.* {site.parent}\.", first)
    (of_all,) = [row for row in rows_of(site / "claims.html", "All claims") if row[0] == "all"]
    assert re.findall(r"(\d+) (?:agree|disagree|cannot tell)", first) == of_all[1:4]
    assert first.endswith("Built 2023-11-14 22:13 UTC.")


def test_a_card_has_question_result_picture_with_legend_state_and_cost(site):
    index = site / "index.html"
    scaling = card(index, "Scaling <of> sizes")
    assert "Does it hold?" in scaling
    result = re.search(r"GRAM: core (0\.\d+), retain (0\.\d+), forget (0\.\d+)", scaling)
    assert [float(ratio) for ratio in result.groups()] == pytest.approx([0.95, 0.95, 0.75], abs=0.05)
    assert scaling.count("profile core+lisp") == 2  # of the result and of the picture
    assert re.search(r"from 0 to 1\.2 at small.* 90%", scaling)
    assert re.search("filtering +GRAM", scaling)
    assert re.search(r"(?<!Not c)omplete: 36 of 36 .*\b0 failed", scaling)
    assert re.search(r"Cost: \d+ s .*\$0\.0\d\b.* \d+ s .* 20\d\d-", scaling)
    assert re.search("Not complete: 36 of 39 .*1 failed, 2 missing", card(index, "Stories with holes"))
    begun = card(index, "A study that has not begun")
    assert re.search("Not complete: 0 of 1 .*0 failed, 1 missing", begun)
    assert "Cost: " not in begun
    search = card(index, "maxent_search")
    assert "What it asks." in search
    assert re.search(r"1\.5 to 1\.5,.* trial 0 ", search)
    assert re.search(r"trial from 0 to 2; .*loss from 1\.5 to 1\.5", search)
    assert re.search("1 agree, 0 disagree, 0 cannot tell", search)
    assert re.search("3 complete, 0 failed", search)
    assert "12 of 14 runs" in text(index)
    assert not re.search(r"\de[+-]\d", text(index))


def test_every_page_says_once_that_sizes_are_names_and_what_they_count(site):
    pages = [site / "index.html", site / "claims.html", *sorted(site.parent.glob("studies/*/report.html"))]
    studies = [page for page in pages if "maxent" not in str(page)]
    assert len(studies) >= 4
    for page in studies:
        assert text(page).count("Sizes are names") == 1, page
        assert "tiny: 1,000,000 parameters" in text(page), page


def test_the_index_leads_to_reports_and_says_which_are_not_there(site):
    page = (site / "index.html").read_text()
    claims = [row[0] for row in rows_of(site / "claims.html", "Scaling <of> sizes: differences")]
    counts = f"{claims.count('agree')} agree, {claims.count('disagree')} disagree, "
    assert claims.count("agree")
    assert f"Claims: {counts}{claims.count('cannot tell')} cannot tell." in card(
        site / "index.html", "Scaling <of> sizes"
    )
    assert '<a href="../studies/scaling/report.html">Scaling &lt;of&gt; sizes</a>' in page
    assert '<a href="../studies/scaling/table.csv">table.csv</a>' in page
    assert "studies/empty/" not in page


def test_earlier_pages_of_a_study_are_links_of_its_card(storage_copy, tmp_path):
    folder = storage_copy / "studies" / "scaling"
    earlier = folder / "history" / "2026-11-25T213751"
    earlier.mkdir(parents=True)
    shutil.copy(folder / "report.html", earlier)
    build_site(Store(storage_copy), None)
    build_site(Store(storage_copy), None, out=str(tmp_path / "out"))
    assert "until 2026-11-25 21:37" in card(storage_copy / "site" / "index.html", "Scaling <of> sizes")
    for site in (storage_copy / "site", tmp_path / "out"):
        assert sum("history/2026-11-25T213751/report.html" in link for link in require_links_lead_somewhere(site)) == 1


def test_a_report_that_is_older_than_its_nodes_is_said_to_be_so(storage_copy):
    """After a node of it has ended elsewhere, and before the next submission has written one of other nodes."""
    folder, index = storage_copy / "studies" / "stories", storage_copy / "site" / "index.html"
    lost = rows_of(index, "Not complete")[0][2]
    record = json.loads((folder / "study.json").read_text())
    fewer = [entry for entry in record["entries"] if entry["id"] != record["entries"][0]["id"]]
    for age, changed in (
        ("older", {**record, "entries": fewer}),
        ("perhaps older", {name: value for name, value in record.items() if name != "shown"}),  # of an earlier version
    ):
        (folder / "study.json").write_text(json.dumps(changed))
        build_site(Store(storage_copy), None)
        assert re.search(rf"The report is {age} than .*gram report stories ", card(index, "Stories with holes"))
        assert "The report is" not in card(index, "Scaling <of> sizes")
    main(["report", "stories", "--storage", str(storage_copy)])
    build_site(Store(storage_copy), None)
    assert "The report is" not in card(index, "Stories with holes")
    assert rows_of(index, "Not complete")[0][2] == lost


def test_explanations_are_in_the_report_and_on_the_page_of_all_claims(storage_copy, monkeypatch):
    claims = rows_of(storage_copy / "site" / "claims.html", "Scaling <of> sizes: differences")
    assert {row[0] for row in claims} == {"agree"}
    path = storage_copy / "studies" / "scaling" / "study.json"
    swapped = {"core+lisp": "core+virology", "core+virology": "core+lisp"}
    plain = json.loads(path.read_text())
    for entry in plain["entries"]:
        if entry["kind"] == "evaluation" and entry["tags"]["method"] == "gram":
            tags = entry["tags"]
            tags["profile"] = swapped.get(tags["profile"], tags["profile"])
            tags["retained"] = {"lisp": "virology", "virology": "lisp"}.get(tags["retained"], tags["retained"])
    path.write_text(json.dumps(plain))
    key = ("scaling", "tiny", "gram, tiny: retain is above forget")
    explanation = "Its profiles are swapped. Shown by this test."
    monkeypatch.setitem(EXPLANATIONS, key, explanation)
    store = Store(storage_copy).open_for_writing(min_free_bytes=0)
    record = load_record(store, "scaling")
    LOSSES_PRESENTATION.write(record, store, read_results(record, store), {}, None)
    build_site(store, None)
    report, site = path.with_name("report.html"), storage_copy / "site"
    claims_page = site / "claims.html"
    for page, title in ((report, "Claims"), (claims_page, "Scaling <of> sizes")):
        assert [row[-1] for row in rows_of(page, title) if row[0] == key[2]] == [explanation]
    for page, title in ((report, "Differences behind the claims"), (claims_page, "Scaling <of> sizes: differences")):
        rows = {row[1]: (row[0], row[-1]) for row in rows_of(page, title)}
        assert rows[key[2]] == ("disagree", explanation)
        assert all(last == "" for verdict, last in rows.values() if verdict == "agree")


def test_the_index_names_every_node_that_is_not_complete(site):
    rows = {row[0]: row[1:] for row in rows_of(site / "index.html", "Not complete")}
    assert list(rows) == ["failed", "interrupted", "missing"]
    assert rows["failed"][2:] == ["stories", HOSTILE]
    names = [row[1:4] for row in rows_of(site / "index.html", "Not complete")[2:]]
    assert ["gram small all s2", MISSING_ID, "stories"] in names
    assert ["baseline small all s2", "1" * 12, "empty"] in names
    assert "4 nodes" in text(site / "index.html")


def test_the_claims_of_all_studies_and_searches_on_one_page(site):
    page = site / "claims.html"
    assert "90%" in text(page)
    summary = {row[0]: row[1:] for row in rows_of(page, "All claims")}
    assert set(summary) == {"Scaling <of> sizes", "Stories with holes", "maxent_search", "all"}
    assert summary["maxent_search"] == ["1", "0", "0", "0", "0"]
    assert rows_of(page, "maxent_search")[0] == ["p_cr helps", "✓ agree"]
    claim = rows_of(page, "maxent_search: differences")[0]
    assert claim == ["agree", "p_cr helps", "0.100 [0.050, 0.150]", "0.020", "3", "app:hyperparams"]
    assert set(re.findall(r"(?<!--)preset (.*?)\.", text(page))) == {"?", "tiny (tiny, small)"}


def test_claims_of_a_study_with_variants_name_theirs(storage_copy):
    path = storage_copy / "studies" / "scaling" / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "varies": "width"}))
    claims = path.with_name("claims.csv")
    head, *lines = claims.read_text().splitlines()
    claims.write_text("\n".join([f"{head},width", *(f"{line},2" for line in lines)]))
    build_site(Store(storage_copy), None)
    judged = rows_of(storage_copy / "site" / "claims.html", "Scaling <of> sizes: differences")
    assert judged
    assert all("2" in row for row in judged)


def test_links_lead_to_files_in_the_storage(site):
    assert {path.name for path in site.iterdir()} == {"index.html", "claims.html", "facts.json"}
    addresses = require_links_lead_somewhere(site)
    reports = {address for address in addresses if address.endswith("report.html")}
    assert reports == {f"../studies/{name}/report.html" for name in ("scaling", "stories", "maxent_search")}
    assert all(page.stat().st_size < 50_000 for page in site.glob("*.html"))


def test_every_row_and_figure_of_the_site_leads_to_command_and_commit(site):
    reports = sorted(site.parent.glob("studies/*/report.html"))
    num_places = {page.name: len(source_addresses(page, lambda _: False)) for page in (*site.glob("*.html"), *reports)}
    assert num_places["index.html"] == 4 + 3  # nodes that are not complete, and pictures
    assert num_places["claims.html"] > 10


def test_a_site_elsewhere_has_copies_of_the_reports(storage_copy, tmp_path):
    out = tmp_path / "elsewhere"
    assert build_site(Store(storage_copy), None, out=str(out)).num_written == 2 + 5
    shutil.move(storage_copy, tmp_path / "away")
    addresses = require_links_lead_somewhere(out)
    assert "studies/scaling/report.html" in addresses
    for name in ("scaling/report.html", "scaling/table.csv", "maxent_search/report.html"):
        assert (out / "studies" / name).read_bytes() == (tmp_path / "away" / "studies" / name).read_bytes()
    shutil.move(tmp_path / "away", storage_copy)
    assert build_site(Store(storage_copy), None, out=str(out)).num_written == 0


def test_only_what_has_changed_is_written(storage_copy):
    store, site = Store(storage_copy), storage_copy / "site"
    assert build_site(store, None).num_written == 0
    before = {page: page.stat().st_mtime_ns for page in site.rglob("*.html")}
    shutil.rmtree(storage_copy / "runs" / rows_of(site / "index.html", "Not complete")[0][2])
    assert build_site(Store(storage_copy), None).num_written == 1
    assert [page.name for page, at in before.items() if page.stat().st_mtime_ns != at] == ["index.html"]
    (site / "claims.html").unlink()
    assert build_site(Store(storage_copy), None).num_written == 1


# ------------------------------------------------------------------------------------------------- hostile storages

FACTS = ({"result": 5}, {"result": None}, {"timing": 5}, {"tags": 5}, {"config": []}, {"progress": 5}, {"failure": 5})
TIMING = {"elapsed_s": "x", "num_ranks": [], "ended": "x", "device": 5, "num_threads": {}}


def test_pages_of_an_earlier_version_are_removed_and_nothing_else(storage_copy):
    site, page = storage_copy / "site", {"made_from": "1bc4e40b914b7ea4", "leaves": None}
    former = {"index.html": page, "studies/scaling.html": page, "page.css": "57356db0d0ca2408", "../store.json": page}
    kept = ("studies/mine.html", "notes.html", "../store.json")
    (site / "studies").mkdir()
    for name in (*former, *kept):
        (site / name).write_text("{}")
    (site / "manifest.json").write_text(json.dumps(former))
    build_site(Store(storage_copy), None)
    assert all((site / name).read_text() == "{}" for name in kept)
    assert not any((site / name).exists() for name in ("studies/scaling.html", "page.css", "manifest.json"))
    assert "Scaling" in text(site / "index.html")
    (site / "manifest.json").write_text('{"name": "an application of mine"}')
    build_site(Store(storage_copy), None)
    assert (site / "manifest.json").exists()


def test_a_folder_in_the_place_of_a_page_is_set_aside(storage_copy):
    page = storage_copy / "site" / "claims.html"
    page.unlink()
    page.mkdir()
    with pytest.warns(RuntimeWarning, match="folder"):
        build_site(Store(storage_copy), None)
    assert "All claims" in text(page)


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


def test_stored_text_is_text_in_the_site(storage_copy):
    """The title of a study, the size of a search, a claim and its source: the words of whoever writes the storage."""
    studies = storage_copy / "studies"
    for file, field in (
        (studies / "scaling" / "study.json", "title"),
        (studies / "maxent_search" / "search.json", "question"),
    ):
        file.write_text(json.dumps(json.loads(file.read_text()) | {field: field + HOSTILE}))
    claims = studies / "maxent_search" / "claims.csv"
    quoted = '"{}' + HOSTILE.replace('"', '""') + '"'
    text = (
        claims.read_text()
        .replace("p_cr helps", quoted.format("claim"))
        .replace("app:hyperparams", quoted.format("source"))
    )
    claims.write_text(text)
    assert build_site(Store(storage_copy), None).problems == ()
    pages = "".join((storage_copy / "site" / name).read_text() for name in ("index.html", "claims.html"))
    assert "<b>nan" not in pages
    for field in ("title", "question", "claim", "source"):
        assert html.escape(field + HOSTILE) in pages.replace("&#34;", "&quot;"), field


def test_nothing_of_a_report_is_in_the_site(storage_copy):
    """A report may be anybody's: the site leads there, and neither reads nor shows it."""
    page = storage_copy / "site" / "index.html"
    before = page.read_text()
    (storage_copy / "studies" / "maxent_search" / "report.html").write_bytes(b"<meta http-equiv=refresh>\xff")
    assert build_site(Store(storage_copy), None).problems == ()
    assert page.read_text() == before


NO_NUMBER = b"claim,verdict,difference\na,agree,much\n"
DAMAGED = [("scaling", "claims.csv", data) for data in (b"\xff", NO_NUMBER, b'runs,claim\n"', b"a\0b\n", b"")]
DAMAGED += [("maxent_search", "claims.csv", NO_NUMBER), ("maxent_search", "trials.csv", b"\xff")]


@pytest.mark.parametrize(("study", "file", "data"), DAMAGED)
def test_a_damaged_table_does_not_stop_the_site(storage_copy, study, file, data):
    (storage_copy / "studies" / study / file).write_bytes(data)
    problems = build_site(Store(storage_copy), None).problems
    assert all(re.match(rf"{study}: .*\bclaims\.csv\b", problem) for problem in problems)
    assert len(re.findall(r"Its claims\.csv ", text(storage_copy / "site" / "index.html"))) == len(problems)
    assert bool(problems) == (file == "claims.csv" and data.startswith((b"\xff", b"claim,")))
    require_links_lead_somewhere(storage_copy / "site")


def test_every_page_lets_only_its_own_scripts_run(site):
    """The policy comes before any script, names each by a hash, and differs from page to page."""
    others = "'unsafe-eval'; object-src 'none'; base-uri 'none'; frame-src 'none'; form-action 'none'"
    nonces = []
    for page in (*site.glob("*.html"), *site.parent.glob("studies/*/report.html")):
        source = page.read_text()
        (policy,) = re.findall('<meta http-equiv="Content-Security-Policy" content="(.*?)">', source)
        (nonce,) = re.findall("script-src 'nonce-([0-9a-f]{32})'", policy)
        assert policy == f"script-src 'nonce-{nonce}' {others}"
        outside = re.sub(f'<script nonce="{nonce}">.*?</script>\n', "", source, flags=re.S)
        assert outside != source
        assert set(re.findall("<script[^>]*?type=.*?>|<script.*?>", outside)) <= set(
            re.findall('<script type="application/json" id="[^"]*">', outside)
        )
        assert source.index("Content-Security-Policy") < min(map(source.index, ("<script", "<style", "<body")))
        nonces.append(nonce)
    assert len(set(nonces)) == len(nonces) == 5


def test_links_into_mlflow_where_a_database_is(tmp_path):
    planted = PlantedStorage(tmp_path)
    planted.plant(("tiny",), ("0",))
    planted.failed_run("gram", "tiny", "1")
    planted.study("scaling", "Scaling")
    store = planted.store
    assert tracking_of(store, "") is None
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    tracker.log_study("scaling", {}, {}, {}, views=study_views("scaling", "0", {}, (("core",),)))
    assert tracking_of(store, "") == f"sqlite:///{tmp_path}/mlflow.db"
    build_site(store, tracking_of(store, ""))
    index = tmp_path / "site" / "index.html"
    assert f"gram ui --storage {tmp_path}" in text(index)
    assert index.read_text().count('href="../mlflow.html#/experiments/1/runs/') == 1  # of the failed run
    evaluations, ratios, runs = re.findall(r'href="../mlflow.html#/experiments/1/runs\?(.*?)"', index.read_text())
    assert f"gram ui --storage {tmp_path}" in (tmp_path / "mlflow.html").read_text()
    page = "open at another port"
    (tmp_path / "mlflow.html").write_text(page)
    build_site(store, tracking_of(store, ""), out=str(tmp_path / "out"))
    assert (tmp_path / "out" / "mlflow.html").read_text() == page
    assert 'href="mlflow.html#/experiments' in (tmp_path / "out" / "index.html").read_text()
    assert "compareRunsMode=CHART" in ratios
    assert "gram.scaling.evaluations" in evaluations
    assert "gram.scaling.ratios" in ratios
    assert "gram.scaling.runs" in runs


def test_without_a_server_there_are_no_links(storage_copy):
    built = build_site(Store(storage_copy), "http://127.0.0.1:9")
    assert built.problems == ()
    assert "127.0.0.1:9" not in "".join(re.findall("href=.*?>", (storage_copy / "site" / "index.html").read_text()))


def test_a_study_of_an_unknown_measurement_is_in_the_index(storage_copy):
    path = storage_copy / "studies" / "scaling" / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "measurement": "of a package that is not here"}))
    assert build_site(Store(storage_copy), None).problems == ()
    assert "../studies/scaling/report.html" in (storage_copy / "site" / "index.html").read_text()


@pytest.mark.parametrize("change", [{"newer": 1}, {"entries": [{"id": 1}]}, {"measurement": ["x"]}, {"title": None}])
def test_a_record_of_another_version_is_left_out_with_a_warning(storage_copy, change):
    path, store = storage_copy / "studies" / "scaling" / "study.json", Store(storage_copy)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.warns(RuntimeWarning, match=rf"scaling/study\.json: {next(iter(change))}=.*left out"):
        build_site(store, None)
    index = (storage_copy / "site" / "index.html").read_text()
    assert "studies/scaling/" not in index
    assert "studies/stories/report.html" in index
    with pytest.warns(RuntimeWarning, match="scaling/study.json"):
        assert profile_numbers(store, View("0" * 12)) == ()
    with pytest.raises(ValueError, match=rf"scaling/study\.json: {next(iter(change))}="):
        load_record(store, "scaling")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"study='other': .*empty, scaling, stories"):
        load_record(store, "other")


@pytest.mark.parametrize("name", [["x"], "../x", None])
def test_a_search_of_another_name_is_shown_by_its_id(storage_copy, name):
    Store(storage_copy).open_for_writing().search_dir("a1b2").write_json("search.json", {"name": name})
    build_site(Store(storage_copy), None)
    assert re.match("a1b2 .*Trials: none ", card(storage_copy / "site" / "index.html", "a1b2"))


def test_watching_builds_again_when_something_has_happened(storage_copy):
    store, said = Store(storage_copy), []
    run_id = rows_of(storage_copy / "site" / "index.html", "Not complete")[0][2]

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            tags = {"profile": "changed while watched"}
            threading.Timer(0.5, lambda: Store(storage_copy).open_for_writing(0).run(run_id).add_tags(tags)).start()
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_site(store, None, 0.05, say)
    assert [line.split()[1] for line in said] == ["0", "1"]
    assert "changed while watched" in text(storage_copy / "site" / "index.html")


def test_gram_report_without_a_study_builds_the_site(storage_copy, capsys):
    main(["report", "--storage", str(storage_copy), "--out", str(storage_copy / "out")])
    assert capsys.readouterr().out.splitlines()[-1] == f"{storage_copy}/out/index.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", "scaling", "--storage", str(storage_copy), "--watch", "5"])
    assert ended.value.code == 2
    assert "study='scaling': " in capsys.readouterr().err


def test_an_empty_storage_has_a_site(tmp_path):
    build_site(Store(tmp_path), None)
    for name in ("index.html", "claims.html"):
        page = tmp_path / "site" / name
        assert "No study " in text(page)
        assert "<tbody>" not in page.read_text()
