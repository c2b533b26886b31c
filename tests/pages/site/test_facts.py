"""Costs, times and links as the pages state them."""

import math

import pandas as pd
import pytest

from benchmarks.many_runs import write_study
from gram_platform.pages.report.page import Section, sections_html
from gram_platform.pages.site import facts as site_facts
from gram_platform.pages.site.facts import Facts, NodeFacts, read_facts, totals
from gram_platform.pages.site.index import dollars, moment, span
from gram_platform.store import Store
from gram_platform.store.folders import LocalFolder


def node(node_id: str, kind: str = "run", status: str = "complete", config=None, **timing) -> NodeFacts:
    result = {"compute_units": 10} if status == "complete" and kind == "run" else None
    return NodeFacts(kind, node_id, status, {}, config or {}, result, timing)


def test_totals_add_ranks_hours_prices_and_the_time_in_which_anything_ran():
    runs = [
        node("a", elapsed_s=3600.0, ended=7200.0, num_ranks=2, num_threads=1, device="NVIDIA H200"),
        node("b", elapsed_s=3600.0, ended=9000.0, num_ranks=1, num_threads=4, device="cpu"),
        node("c", status="failed"),
    ]
    evaluation = node("e", "evaluation", config={"view": {"run_id": "b"}}, elapsed_s=1800.0, ended=20_000.0)
    of_two_ranks = node("f", "evaluation", config={"view": {"run_id": "a"}}, elapsed_s=3600.0)
    facts = Facts({run.node_id: run for run in runs}, {"e": evaluation, "f": of_two_ranks})
    assert totals(["f"], facts).dollars == pytest.approx(4.0)  # an evaluation has one rank
    found = totals(["a", "b", "c", "e", "a", "x"], facts)
    assert found.counts == {"complete": 3, "running": 0, "failed": 1, "interrupted": 0, "missing": 1}
    assert found.rank_hours == pytest.approx(3.5)
    assert found.dollars == pytest.approx(2 * 4.0 + 4 * 0.05 + 0.5 * 4 * 0.05)
    assert found.busy_s == pytest.approx(5400.0 + 1800.0)
    assert found.changed == 20_000.0
    unknown = Facts({"a": node("a", elapsed_s=1.0, ended=2.0, device="TPU v9")}, {})
    assert totals(["a"], unknown).dollars is None
    assert totals([], unknown).num_nodes == 0


def test_what_is_not_known_is_empty():
    assert math.isnan(node("a").seconds)
    assert [dollars(value) for value in (0.0, 0.00123, 12.345)] == ["$0.00", "less than $0.01", "$12.35"]
    assert [span(s) for s in (0.0, 99.0, 100.0, 5999.0, 6000.0, 4e6)] == [
        "0 s",
        "99 s",
        "2 min",
        "100 min",
        "1.7 h",
        "1,111.1 h",
    ]
    assert (moment(0.0), moment(86_400.0)) == ("", "1970-01-02 00:00")


@pytest.mark.parametrize(
    ("address", "is_link"),
    [
        ("../studies/scaling.html#state", True),
        ("https://host/x?y=1", True),
        ("../../studies/scaling/table.csv", True),
        ("javascript:alert(1).html", False),
        ("//host/x.html", False),
        ("data:text/html,x.html", False),
        ("", False),
    ],
)
def test_only_pages_nearby_and_web_addresses_are_links(address, is_link):
    frame = pd.DataFrame({"run": ["a"], "run_url": [address]})
    assert ("<a href" in sections_html([Section("Runs", table=frame)])) == is_link


def test_a_complete_node_is_read_from_the_cache_until_its_result_or_tags_change(tmp_path, monkeypatch):
    run_ids, eval_ids = write_study(str(tmp_path / "storage"), 10, 4)
    store, cache = Store(str(tmp_path / "storage")), LocalFolder(str(tmp_path / "site"), writable=True)
    whole = read_facts(store)
    assert read_facts(store, cache).key == whole.key
    read = []
    monkeypatch.setattr(site_facts, "_run_facts", lambda run: read.append(run.run_id))
    monkeypatch.setattr(site_facts, "_evaluation_facts", lambda evaluation: read.append(evaluation.eval_id))
    again = read_facts(store, cache)
    assert sorted(read) == sorted(run_ids[7:])  # two are interrupted and one has failed
    assert again.evaluations == whole.evaluations
    monkeypatch.undo()
    Store(store.root).open_for_writing().evaluation(eval_ids[0]).add_tags({"study": "another"})
    assert read_facts(store, cache).evaluations[eval_ids[0]].tags["study"] == "another"
    (tmp_path / "storage/runs" / run_ids[0] / "result.json").unlink()
    assert read_facts(store, cache).runs[run_ids[0]].status != "complete"
    cache.write("facts.json", b'{"run/x": 3}')
    assert read_facts(store, cache).evaluations.keys() == whole.evaluations.keys()
