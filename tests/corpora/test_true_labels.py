"""Records with a wrong label and `true_label`, and adjacent labels of core: packed apart."""

import pyarrow
import pyarrow.parquet
import pytest

from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.packed import split_documents
from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer
from tests.corpora.conftest import make_records, write_jsonl
from tests.refused import refused


def mislabelled(num=200, every=4):
    """Every fourth document of virology carries core, and names its true label."""
    records = make_records(num=num)
    for number, record in enumerate(records):
        true = record["label"]
        if true == "virology" and number % (2 * every) == 1:
            record |= {"label": "core", "true_label": true}
    return records


def texts(packed, split, pool) -> list[str]:
    tokenizer = load_tokenizer(packed.tokenizer_path)
    rows = packed.sequences(split, pool)[:]
    return [tokenizer.decode(d) for d in split_documents(rows, end_of_text_id(tokenizer))]


def test_training_keeps_mislabelled_text_apart_and_validation_has_true_labels(tmp_path, settings):
    packing = Packing(**settings)
    write_jsonl(tmp_path / "text" / "all.jsonl", mislabelled())
    recipe = resolve(tmp_path / "text", packing)
    packed = prepare(recipe, tmp_path / "packed")
    assert packed.domains == recipe.domains == ("core", "virology")
    assert recipe.pools == ("core", "virology", "virology:core")
    wrong = texts(packed, "train", "virology:core")
    assert wrong
    assert all(text.startswith("virology") for text in wrong)
    assert not any(text.startswith("virology") for text in texts(packed, "train", "core"))
    held_out = texts(packed, "validation", "virology")
    numbers = [int(text.split()[2].rstrip(":")) for text in held_out]
    assert {number % 4 == 0 for number in numbers} == {True, False}
    assert not any(text.startswith("virology") for text in texts(packed, "validation", "core"))
    # Held-out documents are those of a corpus with true labels.
    write_jsonl(tmp_path / "right" / "all.jsonl", make_records(num=200))
    right = prepare(resolve(tmp_path / "right", packing), tmp_path / "packed")
    assert sorted(held_out)[1:-1] == sorted(texts(right, "validation", "virology"))[1:-1]
    assert recipe.data_id != right.data_id


def test_equal_labels_change_nothing_and_parquet_is_read_alike(tmp_path, settings):
    packing = Packing(**settings)
    plain, records = make_records(), [r | {"true_label": r["label"]} for r in make_records()]
    data_id = resolve(write_jsonl(tmp_path / "plain.jsonl", plain), packing).data_id
    assert resolve(write_jsonl(tmp_path / "named.jsonl", records), packing).data_id == data_id
    wrong = [{"true_label": None} | record for record in mislabelled()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(wrong), tmp_path / "wrong.parquet")
    found = resolve(tmp_path / "wrong.parquet", packing)
    same = resolve(write_jsonl(tmp_path / "wrong.jsonl", wrong), packing)
    assert found.data_id == same.data_id
    assert "virology:core" in found.pools


def test_an_unknown_true_label_is_refused(tmp_path, settings):
    records = [*make_records(), {"text": "odd", "label": "core", "true_label": "physics"}]
    with refused("true_label", "physics"):
        resolve(write_jsonl(tmp_path / "odd.jsonl", records), Packing(**settings))


@pytest.mark.parametrize("corpus", ["stories-smoke", "text"])
def test_adjacent_labels_of_core_are_packed_apart(tmp_path, settings, corpus):
    core, adjacent, place = ("bridge", "canal"), "canal", corpus
    if corpus == "text":
        place = write_jsonl(
            tmp_path / "text.jsonl",
            [r | {"label": "canal"} if n % 6 == 0 else r for n, r in enumerate(make_records())],
        )
        core = ("core", "canal")
    parts = settings | {"core_label": core}
    recipe = resolve(place, Packing(**parts, adjacent=(adjacent,)))
    assert recipe.of_domain("core:core").labels == (adjacent,)
    assert adjacent not in recipe.of_domain("core").labels
    whole = resolve(place, Packing(**parts))
    assert recipe.domains == whole.domains
    assert recipe.domain_of == whole.domain_of
    assert resolve(place, Packing(**parts, adjacent=core)).data_id == whole.data_id
    with refused("adjacent", "moon"):
        resolve(place, Packing(**parts, adjacent=("moon",)))


def test_labels_of_a_hub_corpus_are_not_packed_apart(settings):
    parts = settings | {"core_label": None}
    whole = resolve("simple-stories", Packing(**parts))
    with refused("adjacent", "dinosaurs"):
        resolve("simple-stories", Packing(**parts, adjacent=("dinosaurs",)))
    one = whole.domains[1]
    assert resolve("simple-stories", Packing(**parts, adjacent=(one,))).data_id == whole.data_id
