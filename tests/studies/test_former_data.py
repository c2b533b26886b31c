"""Packed data of earlier versions, whose order a flag chose, keep their ids and those of the runs on them."""

from dataclasses import replace

import pytest

from gram_platform.corpora import prepare, resolve
from gram_platform.store import Store
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import parse
from gram_platform.studies.library.scaling import STUDY


@pytest.mark.parametrize(("corpus", "is_permuted"), [("dual-use", True), ("stories", False)])
def test_corpora_of_the_hub_alone_are_packed_in_the_order_of_their_permutation(corpus, is_permuted):
    assert resolve(corpus, seq_len=64, vocab_size=512).permuted is is_permuted


def test_a_storage_goes_on_with_the_data_that_it_has(tmp_path):
    flags = parse(STUDY, ["--preset", "smoke", "--storage", str(tmp_path)])
    new = build_graph(STUDY, flags)
    store = Store(tmp_path).open_for_writing()
    former = replace(new.recipe, permuted=True)
    (store.data_root / former.data_id).mkdir(parents=True)  # as of an upload that was interrupted
    assert build_graph(STUDY, flags).data_id == new.data_id
    prepare(former, store.data_root).verify()
    found = build_graph(STUDY, flags)
    assert (found.data_id, found.entries[0].config.data.data_id) == (former.data_id, former.data_id)
    prepare(new.recipe, store.data_root)
    assert build_graph(STUDY, flags).data_id == new.data_id
