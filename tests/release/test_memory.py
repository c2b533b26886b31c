"""Exporting and importing hold about one layer and the embedding, whatever the depth."""

import dataclasses

import pytest

from gram_platform.config import View
from gram_platform.config.flops import total_parameters
from gram_platform.config.training import merge_config
from gram_platform.release.importing import import_checkpoint
from gram_platform.store import Store
from tests import tiny
from tests.allocations import Allocations
from tests.release.planted import complete, exported

NUM_LAYERS = 16


def config_of(num_layers):
    model = dataclasses.replace(
        tiny.model_config(num_layers=num_layers), d_model=128, d_mlp=512, vocab_size=1024
    )
    return dataclasses.replace(
        model, modules=tuple(dataclasses.replace(m, width=64) for m in model.modules)
    )


def layer_and_embedding_bytes(model):
    def num_bytes(num_layers):
        return 4 * total_parameters(
            merge_config(dataclasses.replace(model, num_layers=num_layers), {"lisp": 1.0})
        )

    return num_bytes(2) - num_bytes(1), 4 * model.vocab_size * model.d_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_holds_a_layer(dtype, tmp_path):
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    peaks = {}
    for num_layers in (NUM_LAYERS // 4, NUM_LAYERS):
        view = View.of(complete(store, tiny.run_config(model=config_of(num_layers))), {"lisp": 1.0})
        with Allocations() as memory:
            exported(store, view, tmp_path / f"out{num_layers}", dtype=dtype)
        peaks[num_layers] = memory.peak
    assert peaks[NUM_LAYERS] <= 1.01 * peaks[NUM_LAYERS // 4]  # depth does not matter
    layer, embedding = layer_and_embedding_bytes(config_of(NUM_LAYERS))
    # A layer in float64 and as it is read, or rows of two embeddings in float64; and the
    # activations of a few tokens.
    assert peaks[NUM_LAYERS] < max(3 * layer, 4 * embedding) + 2**21
    assert peaks[NUM_LAYERS] < NUM_LAYERS * layer / 3


def test_an_import_holds_a_tensor(tmp_path):
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    view = View.of(complete(store, tiny.run_config(model=config_of(NUM_LAYERS))), {"lisp": 1.0})
    exported(store, view, tmp_path / "out")
    with Allocations() as memory:
        import_checkpoint(tmp_path / "out", store)
    _, embedding = layer_and_embedding_bytes(config_of(NUM_LAYERS))
    assert memory.peak < 3 * embedding  # one tensor as it is read, and copies of it
