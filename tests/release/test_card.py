"""The card has the study's numbers for the profile, says which are missing, and has none of its own."""

import dataclasses
import re
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.tables import interval_text
from gram_platform.config import View
from gram_platform.corpora import prepare, resolve
from gram_platform.release.card import card_subject, card_text, code, codes
from gram_platform.release.profile_numbers import profile_numbers
from gram_platform.release.verification import Agreement
from tests.pages.site.planted import PROFILES, PlantedStorage, loss, ratio

AGREEMENT = Agreement(1.25e-7, 9.5, 1e-4, 320, "the validation split of core")
ELICITED = 0.8  # planted compute ratio after an attack


@pytest.fixture
def planted(tmp_path):
    planted = PlantedStorage(tmp_path)
    planted.plant(("tiny",), ("0", "1"), ("baseline", "gram"))
    return planted


def gram_run(planted, seed="0"):
    entries = [entry for entry in planted.entries if entry["kind"] == "run"]
    return next(e["id"] for e in entries if (e["tags"]["method"], e["tags"]["seed"]) == ("gram", seed))


def attack(planted, seed, profile, domain):
    run = planted.config()
    directory = planted.store.run(run.run_id)
    directory.ensure_config(run)
    tags = {"method": "gram", "size": "tiny", "seed": seed, "profile": profile, "kind": "run"}
    tags |= {"retained": ",".join(PROFILES[profile]), "elicited": domain}
    directory.add_tags(tags)
    planted.entries.append({"id": run.run_id, "kind": "run", "tags": tags})
    final = {f"best/loss/{domain}": loss("tiny", domain, 1.0, ELICITED)}
    with directory.start_attempt("test") as started:
        started.complete({"num_steps": 1, "num_tokens": 1, "parameters": 1, "final": final}, {})


def card(planted, view, part=""):
    return card_text(
        card_subject(planted.store, view, "float32", profile_numbers(planted.store, view)), part, (AGREEMENT,)
    )


def table(text):
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    head = next(number for number, row in enumerate(rows) if row[0] == "class")
    return {(row[0], row[1]): dict(zip(rows[head], row, strict=True)) for row in rows[head + 2 :]}


def test_numbers_are_the_study_s(planted):
    for seed in ("0", "1"):
        attack(planted, seed, "core+lisp", "virology")
    planted.study("scaling", "Scaling")
    view = View.of(gram_run(planted), {"lisp": 1.0})
    (numbers,) = profile_numbers(planted.store, view)
    assert (numbers.study, numbers.removed, numbers.num_seeds) == ("scaling", ("virology",), 2)
    rows = table(card(planted, view))
    assert list(rows) == [("core", "core"), ("retain", "lisp"), ("forget", "virology"), ("elicited", "virology")]
    for (kind, domain), row in rows.items():
        planted_ratios = [ratio("gram", "tiny", seed, "core+lisp", domain) for seed in ("0", "1")]
        ratios = [ELICITED, ELICITED] if kind == "elicited" else planted_ratios
        assert row["all seeds [90% interval]"] == interval_text(*t_interval(ratios))
        assert row["this run"] == f"{ratios[0]:.3f}"
        (measured,) = [cell for column, cell in row.items() if column.startswith("loss ")]
        assert measured == f"{loss('tiny', domain, 1.0, ratios[0]):.3f}"
        assert row["seeds"] == "2"
    text = card(planted, view)
    assert "Missing:" not in text
    assert ": `virology`." in text
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "license" not in text
    assert str(AGREEMENT) in text


def test_missing_numbers_are_listed(planted):
    view = View.of(gram_run(planted), {"lisp": 1.0})
    nothing = card(planted, view)
    assert "No study" in nothing
    assert "forget and elicited" in nothing
    planted.study("scaling", "Scaling")
    text = card(planted, view)
    assert "Missing: elicited" in text
    attack(planted, "0", "core+lisp", "virology")
    planted.study("scaling", "Scaling")
    text = card(planted, view)
    assert re.search("Missing: .*core.lisp, elicited: .*seed 1: virology", text)
    assert interval_text(*t_interval([ELICITED])) in table(text)["elicited", "virology"]["this run"]
    assert "Missing: gram tiny core+lisp" not in card(planted, View.of(gram_run(planted), {})), "another profile's"


def test_every_number_of_a_card_without_a_study_is_the_model_s(planted):
    """Nothing measured is typed in: without a study, no compute ratio is on the page."""
    text = card(planted, View.of(gram_run(planted), {"lisp": 0.5}))
    assert "# core+lisp=0.5" in text
    measured = text.split("## What was measured")[1].split("## Verified")[0]
    assert not re.search(r"\d\.\d", measured)
    for word in ("finetune", "label", "scale", "No safety guarantee"):
        assert word in measured


def test_studies_with_the_same_evaluations_are_shown_once(planted):
    planted.study("scaling", "Scaling")
    planted.study("stories", "Stories")
    text = card(planted, View.of(gram_run(planted), {"lisp": 1.0}))
    assert text.count("| class |") == 1
    assert ": `stories`." in text


@pytest.mark.parametrize("kind", ["all", "core", "given", "absent"])
def test_a_card_says_what_text_the_tokenizer_has_seen(planted, kind, tmp_path):
    run_id = gram_run(planted)
    small = {"seq_len": 32, "vocab_size": 320, "sample_bytes": 50_000}
    if kind != "absent":
        packed = prepare(resolve("stories-smoke", **small, core_tokenizer=kind == "core"), tmp_path / "packed")
        if kind == "given":
            packed = prepare(resolve("stories-smoke", **small, tokenizer=str(packed.path)), tmp_path / "packed")
        planted.store.data_root.mkdir(exist_ok=True)
        packed.path.rename(planted.store.data_root / planted.store.run(run_id).config()["data"]["data_id"])
    sentences = {
        "all": "trained on all domains",
        "core": "trained on text of core alone",
        "given": "not trained here",
    }
    text = " ".join(card(planted, View(run_id)).split())
    assert [name for name, sentence in sentences.items() if sentence in text] == [kind] * (kind != "absent")


def test_a_card_says_that_attention_ended_with_a_document(planted):
    """The stock architecture's does not."""
    subject = card_subject(planted.store, View(gram_run(planted)), "float32", ())
    masked = dataclasses.replace(subject, model=dataclasses.replace(subject.model, document_end=0))
    texts = [card_text(one, "", (AGREEMENT,)) for one in (subject, masked)]
    assert ["one document" in text for text in texts] == [False, True]


def test_a_dense_run_has_nothing_absent(planted):
    baseline = next(e["id"] for e in planted.entries if e["kind"] == "run" and e["tags"]["method"] == "baseline")
    planted.study("scaling", "Scaling")
    text = card(planted, View.of(baseline))
    assert "# all" in text


# ---------------------------------------------------------------------------------------------------------- labels

LABELS = (
    "a|b",
    "<b>bold",
    "c`d",
    "`code`",
    "e\\|f",
    "&lt;",
    "first\nsecond\r\nthird\u2028fourth",
    "C++ {x}",
    "_a_ *b* [c](d)",
    "plain",
)


def shown_tables(text):
    """Every table of a Markdown text as a list of its rows' cells, as a reader sees them."""
    tokens, tables = MarkdownIt("commonmark").enable("table").parse(text), []
    for opening, token in pairwise(tokens):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif opening.type in ("th_open", "td_open"):
            assert {child.type for child in token.children} <= {"text", "text_special", "code_inline"}, token.content
            tables[-1][-1].append("".join(child.content for child in token.children))
    return tables


@pytest.mark.parametrize("label", LABELS)
def test_a_label_stays_in_its_cell(label, planted):
    planted.study("scaling", "Scaling")
    view = View.of(gram_run(planted), {"lisp": 1.0})
    planted.store.run(view.run_id).add_tags({"size": label, "elicited": label})
    about = card_subject(planted.store, view, "float32", profile_numbers(planted.store, view))
    (numbers,) = about.numbers
    domains = numbers.domains.assign(domain=label)
    about = dataclasses.replace(about, numbers=(dataclasses.replace(numbers, domains=domains),))
    facts, classes = shown_tables(card_text(about, "", (AGREEMENT,)))
    seen = " ".join(label.splitlines())
    assert [row[1] for row in facts if row[0] in ("size", "attacked for")] == [seen, seen]
    assert {len(row) for row in facts} == {2}
    assert classes[0] == list(domains.columns)
    assert [row[1] for row in classes[1:]] == [seen] * len(domains)
    assert [row[2:] for row in classes[1:]] == domains.iloc[:, 2:].astype(str).to_numpy().tolist()


def test_the_facts_of_a_study_are_text(planted):
    planted.study("scaling", "Scaling")
    view = View.of(gram_run(planted), {"lisp": 1.0})
    about = card_subject(planted.store, view, "float32", ())
    (numbers,) = profile_numbers(planted.store, view)
    fact = "Corpus [a](http://b) _c_ **d** ~~e~~ __f__ p_as `g` <i>."
    about = dataclasses.replace(about, numbers=(dataclasses.replace(numbers, facts=(fact,), title=fact),))
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(card_text(about, "", (AGREEMENT,)))
    heading, text = (token.children for token in tokens if token.type == "inline" and "Corpus" in token.content)
    for children, is_whole in ((heading, True), (text, False)):
        shown = "".join(child.content for child in children if child.type in ("text", "text_special"))
        assert shown == fact if is_whole else shown.endswith(fact)


def test_a_name_is_code_where_it_can_be():
    assert (code("virology"), code("a_b-c d"), codes(("x", "y"))) == ("`virology`", "`a_b-c d`", "`x`, `y`")
    assert code("a`|<b") == r"a\`\|\<b"
