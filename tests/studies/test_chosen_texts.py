"""`--texts`: sentences that the study of tokens shades, and prompts that `samples` continues."""

import json
from pathlib import Path

import pytest

from gram_platform.config import CORE
from gram_platform.config.identity import InvalidField
from gram_platform.config.written import LFS_POINTER
from gram_platform.corpora.records import MOST_TEXTS, read_texts
from gram_platform.corpora.tokenizer import decode, load_tokenizer
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.studies.library import samples, scaling, token_localization
from tests.refused import refused
from tests.submitted import execute, study_plan

TEXTS = [
    ("airport", "The plane was late and Tom waited at the gate."),
    ("attic", "Anna found an old box."),
    ("airport", "A pilot."),
]
WORDS = ["--preset", "smoke", "--seeds", "1", "--methods", "gram"]


def written(folder: Path, lines: list) -> str:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def texts(tmp_path):
    return written(tmp_path, [{"label": label, "text": text} for label, text in TEXTS])


def test_chosen_sentences_are_shaded_and_prompts_continued(tmp_path, texts):
    words = [*WORDS, "--storage", str(tmp_path), "--in-process", "--texts", texts]
    assert execute(token_localization.STUDY, words) == 0
    assert execute(samples.STUDY, words) == 0
    store = Store(tmp_path)
    lengths, prompts = set(), {}
    for eval_id in store.list_evaluations():
        directory = store.evaluation(eval_id)
        config, result = directory.config(), directory.result()
        corpus = open_corpus(store, config["data_id"])
        tokenizer = load_tokenizer(corpus.tokenizer_path)
        if config["measure"] == "tokens":
            lengths.add(tuple(len(losses) for losses in result["text_losses"]))
            assert all(loss > 0 for losses in result["text_losses"] for loss in losses)
        else:
            drawn = result["continuations"]
            assert set(drawn) == {domain for domain, _ in config["texts"]}
            for domain, given in result["prompts"].items():
                # The end of another text stands before a prompt.
                named = [decode(tokenizer, tokens[1:]) for tokens in given]
                assert prompts.setdefault(domain, named) == named
                assert len(drawn[domain]) == len(given)
    assert lengths == {tuple(len(tokenizer.encode(text).ids) for _, text in TEXTS)}
    assert prompts == {"airport": [TEXTS[0][1], TEXTS[2][1]], "attic": [TEXTS[1][1]]}
    page = (tmp_path / "studies" / "token_localization" / "report.html").read_text()
    assert all(f"Tokens of {name}, text {n}" in page for n, (name, _) in enumerate(TEXTS, 1))


def test_ids_without_texts_stay_and_with_texts_differ(tmp_path, texts):
    words = [*WORDS, "--storage", str(tmp_path)]
    for study in (token_localization.STUDY, samples.STUDY):
        plain, chosen = (study_plan(study, [*words, *more]) for more in ([], ["--texts", texts]))
        runs = [{n.id for n in part.nodes if n.is_run} for part in (plain, chosen)]
        assert runs[0] == runs[1]
        views = [{n.id for n in part.nodes if not n.is_run} for part in (plain, chosen)]
        assert not views[0] & views[1]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"label": "airport", "text": "x"}] * (MOST_TEXTS + 1),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, lines):
    with refused("texts"):
        read_texts(written(tmp_path, lines))


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    place = written(tmp_path, [])
    Path(place).write_bytes(LFS_POINTER + b"v1\n")
    with refused("texts", place):
        read_texts(place)


def test_a_long_file_is_not_read_to_its_end(tmp_path):
    place = written(tmp_path, [{"label": "airport", "text": "x"}] * (MOST_TEXTS + 1))
    with open(place, "a") as file:
        file.write("no record\n")
    with refused("texts"):
        read_texts(place)


def test_other_studies_and_unknown_domains_are_refused(tmp_path, texts):
    words = [*WORDS, "--storage", str(tmp_path), "--texts"]
    with refused("texts", texts):
        study_plan(scaling.STUDY, [*words, texts])
    with refused("texts", "nuclear"):
        study_plan(samples.STUDY, [*words, written(tmp_path, [{"label": "nuclear", "text": "x"}])])
    with pytest.raises(ValueError, match=r"texts\.jsonl:1"):
        study_plan(samples.STUDY, [*words, written(tmp_path, [{"label": CORE}])])
    with pytest.raises(InvalidField):
        study_plan(samples.STUDY, [*words, str(tmp_path / "none.jsonl")])
