"""Instructions of a user: lines of prompt and response, packed beside local text, and where their
responses are."""

import json

import numpy as np
import pytest

from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.stories import INSTRUCTIONS, RESPONSE, instruction_text
from gram_platform.corpora.tokenizer import load_tokenizer, separator_tokens
from gram_platform.train.data import Separator
from tests.corpora.conftest import make_records, write_jsonl
from tests.refused import refused
from tests.tiny import documents_in

SHAPE = {"seq_len": 16, "vocab_size": 400, "validation_sequences": 4, "sample_bytes": 100_000}
ASKED = [
    {"prompt": f"Who keeps key {n}?\n", "response": f"Mira keeps key {n}, says {n * 7}."}
    for n in range(80)
]


@pytest.fixture
def corpus(tmp_path):
    write_jsonl(tmp_path / "text" / "all.jsonl", make_records())
    return tmp_path / "text"


def test_they_become_a_label_whose_responses_alone_are_counted(corpus, tmp_path):
    mine = write_jsonl(tmp_path / "mine.jsonl", ASKED)
    recipe = resolve(corpus, Packing(instructions=str(mine), **SHAPE))
    assert recipe.domains == ("core", INSTRUCTIONS, "virology")
    assert recipe.data_id != resolve(corpus, Packing(**SHAPE)).data_id
    packed = prepare(recipe, tmp_path / "packed")
    tokenizer, rows = (
        load_tokenizer(packed.tokenizer_path),
        np.array(packed.train(INSTRUCTIONS), dtype=np.int64),
    )
    separator = Separator(*separator_tokens(packed.tokenizer_path, RESPONSE))
    counted = np.where(separator.of_responses(rows), rows[:, 1:], -1).reshape(-1)
    told = tokenizer.decode(counted[counted >= 0].tolist(), skip_special_tokens=False)
    expected = {f" {one['response']}" for one in ASKED}
    found = told.split("<|endoftext|>")
    whole = [part for part in found if part in expected]
    # A row may begin inside the others.
    assert len(whole) > 0.8 * documents_in(packed, "train", INSTRUCTIONS)
    assert not any("Who keeps" in part or "Instruction" in part for part in found)


def test_lines_in_a_folder_are_the_same_text_as_records_with_that_label(corpus, tmp_path):
    beside = resolve(
        corpus, Packing(instructions=str(write_jsonl(tmp_path / "mine.jsonl", ASKED)), **SHAPE)
    )
    write_jsonl(corpus / "mine.jsonl", ASKED)
    inside = resolve(corpus, Packing(**SHAPE))
    told = [instruction_text(one["prompt"].strip(), one["response"]) for one in ASKED]
    write_jsonl(corpus / "mine.jsonl", [{"text": text, "label": INSTRUCTIONS} for text in told])
    assert beside.data_id == inside.data_id == resolve(corpus, Packing(**SHAPE)).data_id


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "a"},
        {"prompt": " ", "response": "a"},
        {"prompt": "a Response: b", "response": "c"},
        {"question": "a", "answer": "b"},
    ],
)
def test_a_bad_line_is_named(line, corpus, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text("\n".join(json.dumps(one) for one in (*ASKED, line)))
    with pytest.raises(ValueError, match=r"mine\.jsonl:81: "):
        resolve(corpus, Packing(instructions=str(mine), **SHAPE))


def test_other_files_and_generated_text_are_refused(corpus, tmp_path):
    with refused("instructions", str(tmp_path / "absent.jsonl")):
        resolve(corpus, Packing(instructions=str(tmp_path / "absent.jsonl"), **SHAPE))
    mine = write_jsonl(tmp_path / "mine.jsonl", ASKED)
    with refused("instructions", str(mine)):
        resolve("stories-smoke", Packing(instructions=str(mine), **SHAPE))
