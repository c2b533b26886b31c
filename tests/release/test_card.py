"""The card has the study's numbers for the profile, says which are missing, and has none of its
own."""

import dataclasses
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.tables import interval_text
from gram_platform.config import View
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.release.card import TOKENIZER_HAS_SEEN, card_subject, card_text
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
    return next(
        e["id"] for e in entries if (e["tags"]["method"], e["tags"]["seed"]) == ("gram", seed)
    )


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
        card_subject(planted.store, view, "float32", profile_numbers(planted.store, view)),
        part,
        (AGREEMENT,),
    )


def table(text):
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    head = next(number for number, row in enumerate(rows) if row[0] == "class")
    return {(row[0], row[1]): dict(zip(rows[head], row, strict=True)) for row in rows[head + 2 :]}


def test_numbers_are_the_study_s(planted):
    for seed in ("0", "1"):
        attack(planted, seed, "core+lisp", "virology")
    planted.study("scaling", "Scaling")
    view = View.of(gram_run(planted), {"lisp": 1.0})
    (numbers,) = profile_numbers(planted.store, view)
    assert (numbers.study, numbers.forget_domains, numbers.num_seeds) == (
        "scaling",
        ("virology",),
        2,
    )
    rows = table(card(planted, view))
    assert list(rows) == [
        ("core", "core"),
        ("retain", "lisp"),
        ("forget", "virology"),
        ("elicited", "virology"),
    ]
    for (kind, domain), row in rows.items():
        planted_ratios = [ratio("gram", "tiny", seed, "core+lisp", domain) for seed in ("0", "1")]
        ratios = [ELICITED, ELICITED] if kind == "elicited" else planted_ratios
        assert row["all seeds [90% interval]"] == interval_text(*t_interval(ratios))
        assert row["this run"] == f"{ratios[0]:.3f}"
        (measured,) = [cell for column, cell in row.items() if column.startswith("loss ")]
        assert measured == f"{loss('tiny', domain, 1.0, ratios[0]):.3f}"
        assert row["seeds"] == "2"
    assert not numbers.missing
    assert str(AGREEMENT) in card(planted, view)


def test_missing_numbers_are_known(planted):
    view = View.of(gram_run(planted), {"lisp": 1.0})
    assert not profile_numbers(planted.store, view)
    planted.study("scaling", "Scaling")
    (numbers,) = profile_numbers(planted.store, view)
    assert "elicited" not in numbers.classes
    attack(planted, "0", "core+lisp", "virology")
    planted.study("scaling", "Scaling")
    (numbers,) = profile_numbers(planted.store, view)
    assert len(numbers.missing) == 1  # the attack on the other seed
    assert (
        interval_text(*t_interval([ELICITED]))
        in table(card(planted, view))["elicited", "virology"]["this run"]
    )


@pytest.mark.parametrize("kind", ["all", "core"])
def test_a_card_says_whether_the_tokenizer_has_seen_removed_text(planted, kind, tmp_path):
    run_id = gram_run(planted)
    recipe = resolve(
        "stories-smoke",
        Packing(seq_len=32, vocab_size=320, sample_bytes=50_000, core_tokenizer=kind == "core"),
    )
    packed = prepare(recipe, tmp_path / "packed")
    planted.store.data_root.mkdir(exist_ok=True)
    packed.path.rename(
        planted.store.data_root / planted.store.run(run_id).config()["data"]["data_id"]
    )
    assert (TOKENIZER_HAS_SEEN in card(planted, View(run_id))) == (kind == "all")


def test_studies_with_the_same_evaluations_are_shown_once(planted):
    planted.study("scaling", "Scaling")
    planted.study("stories", "Stories")
    text = card(planted, View.of(gram_run(planted), {"lisp": 1.0}))
    assert len(shown_tables(text)) == 2  # the facts, and the classes of both studies


LABELS = (
    "<b>bold",
    "`code`",
    "e\\|f",
    "&lt;",
    "first\nsecond\r\nthird\u2028fourth",
    "_a_ *b* [c](d)",
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
            assert {child.type for child in token.children} <= {
                "text",
                "text_special",
                "code_inline",
            }, token.content
            tables[-1][-1].append("".join(child.content for child in token.children))
    return tables


def test_a_label_stays_in_its_cell(planted):
    planted.study("scaling", "Scaling")
    view = View.of(gram_run(planted), {"lisp": 1.0})
    (numbers,) = profile_numbers(planted.store, view)
    for label in LABELS:
        planted.store.run(view.run_id).add_tags({"size": label, "elicited": label})
        domains = numbers.domains.assign(domain=label)
        shown = (dataclasses.replace(numbers, domains=domains),)
        about = card_subject(planted.store, view, "float32", shown)
        facts, classes = shown_tables(card_text(about, "", (AGREEMENT,)))
        seen = " ".join(label.splitlines())
        assert [row[1] for row in facts if row[0] in ("size", "attacked for")] == [seen, seen]
        assert {len(row) for row in facts} == {2}
        assert [row[1] for row in classes[1:]] == [seen] * len(domains)
        assert [row[2:] for row in classes[1:]] == domains.iloc[:, 2:].astype(
            str
        ).to_numpy().tolist()


def test_the_facts_of_a_study_are_text(planted):
    planted.study("scaling", "Scaling")
    view = View.of(gram_run(planted), {"lisp": 1.0})
    (numbers,) = profile_numbers(planted.store, view)
    fact = "Corpus [a](http://b) _c_ **d** ~~e~~ __f__ p_as `g` <i>."
    about = card_subject(
        planted.store, view, "float32", (dataclasses.replace(numbers, facts=(fact,), title=fact),)
    )
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(card_text(about, "", (AGREEMENT,)))
    heading, text = (
        token.children for token in tokens if token.type == "inline" and "Corpus" in token.content
    )
    for children, is_whole in ((heading, True), (text, False)):
        shown = "".join(
            child.content for child in children if child.type in ("text", "text_special")
        )
        assert shown == fact if is_whole else shown.endswith(fact)
