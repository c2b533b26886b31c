"""An import is weights and tokenizer: what text is packed with is the checkpoint's own, or there is
none."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from gram_platform.config import IMPORTED
from gram_platform.config.identity import short_hash
from gram_platform.corpora.tokenizer import END_OF_TEXT
from gram_platform.release.importing import import_checkpoint
from gram_platform.store import Store
from gram_platform.store.checkpoints import WEIGHTS
from gram_platform.store.directories import import_id
from gram_platform.store.tensors import hash_tensors
from tests.refused import refused
from tests.release.planted import checkpoint, write_words
from tests.tiny import weights_of


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


@pytest.fixture
def folder(tmp_path):
    return checkpoint(tmp_path / "foreign")


def stored(store, imported):
    """The bytes of its tokenizer, None without one."""
    path = store.import_dir(imported.import_id).tokenizer(store.data_root)
    return None if path is None else path.read_bytes()


def test_a_tokenizer_that_comes_later_is_imported(folder, store):
    bare = import_checkpoint(folder, store)
    assert [note.count("tokenizer.json") for note in bare.notes] == [1]
    given = write_words(folder, "a", END_OF_TEXT)
    whole = import_checkpoint(folder, store)
    assert (whole.is_new, whole.notes, stored(store, whole)) == (True, (), given)
    assert stored(store, bare) is None  # what has begun with it stays what it was
    again = import_checkpoint(folder, store)
    assert (again.import_id, again.is_new, again.notes) == (whole.import_id, False, ())


def test_each_checkpoint_has_its_own_tokenizer(folder, store):
    """Of equal weights too."""
    found = {}
    for words in (("a", END_OF_TEXT), (END_OF_TEXT, "a")):
        given = write_words(folder, *words)
        imported = import_checkpoint(folder, store)
        assert stored(store, imported) == given
        found[imported.import_id] = imported.model
    assert len(found) == 2
    assert len(set(found.values())) == 1
    first, second = (weights_of(store.import_dir(name)) for name in found)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_tokenizer_without_an_end_of_text_is_as_good_as_none(folder, store):
    bare = import_checkpoint(folder, store)
    write_words(folder, "a", "b")
    imported = import_checkpoint(folder, store)
    assert (imported.import_id, imported.is_new) == (bare.import_id, False)
    (note,) = imported.notes
    assert "tokenizer.json" in note
    assert "<|endoftext|>" in note
    assert stored(store, imported) is None


def test_a_tokenizer_that_is_not_the_model_s_is_refused(folder, store):
    write_words(folder, *(f"word{number}" for number in range(70)))
    with refused("vocab_size", 64):
        import_checkpoint(folder, store)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError):
        import_checkpoint(folder, store)
    assert not store.list_imports()


def test_a_tokenizer_that_fails_on_a_page_is_not_imported(folder, store):
    """Not even the words that it knows: it makes a million tokens of one letter."""
    plain = json.loads(write_words(folder, "a", END_OF_TEXT))
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a " * 30}] * 4
    plain["normalizer"] = {"type": "Sequence", "normalizers": steps}
    plain["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    with refused("tokenizer", str(folder / "tokenizer.json")):
        import_checkpoint(folder, store)
    assert not store.list_imports()


def test_ids_without_a_tokenizer_are_of_shape_and_weights(folder, store):
    imported = import_checkpoint(folder, store)
    weights_sha256 = hash_tensors(weights_of(store.import_dir(imported.import_id)))
    expected = IMPORTED + short_hash({"model": imported.model, "weights_sha256": weights_sha256})
    assert imported.import_id == expected == import_id(imported.model, weights_sha256)
    with refused("import_id", import_id(imported.model, weights_sha256, b"x")):
        store.import_dir(expected).complete(
            imported.model, {"weights_sha256": weights_sha256}, None, b"x"
        )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_damaged_import_is_refused_and_importing_again_mends_it(folder, store, name, is_removed):
    write_words(folder, "a", END_OF_TEXT)
    import_id = import_checkpoint(folder, store).import_id
    place = store.import_dir(import_id)
    files = {
        path: path.read_bytes() for path in Path(place.folder.path).iterdir() if path.is_file()
    }
    path = Path(place.folder.file(name))
    path.unlink()
    if not is_removed:
        path.write_bytes(files[path].replace(b"1", b"3").replace(b"a", b"c"))

    def read() -> None:
        place.model_config()
        place.tokenizer(store.data_root)
        with place.open_weights():
            pass

    with pytest.raises((ValueError, FileNotFoundError)):
        read()
    with warnings.catch_warnings(action="ignore"):
        imported = import_checkpoint(folder, store)
    assert (imported.import_id, imported.is_new) == (import_id, False)
    read()
    assert {path: path.read_bytes() for path in files} == files
