"""Checkpoints that lack something, hold what is no number, or describe themselves oddly are refused
by name."""

import time
from unittest.mock import ANY

import pytest
import torch

from gram_platform.config.written import LFS_POINTER
from gram_platform.model.transformer import Transformer, parameter_shapes
from gram_platform.release.files import INDEX
from gram_platform.release.importing import import_checkpoint
from gram_platform.release.stock_config import DIMENSIONS, SIZES_OR_NULL, native_config
from gram_platform.store import Store
from tests.refused import refused
from tests.release.planted import FOREIGN, checkpoint
from tests.tiny import weights_of

LAYER = "model.layers.1"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


def without(*ends):
    def change(tensors):
        for name in [name for name in tensors if name.endswith(ends)]:
            del tensors[name]

    return change


def holding(name, value, dtype=torch.float32):
    def change(tensors):
        tensors[name] = tensors[name].to(dtype)
        tensors[name].view(-1)[-1] = value

    return change


def require_refused(folder, store, field, value=ANY):
    with refused(field, value):
        import_checkpoint(folder, store)
    assert not store.list_imports()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", [DEEP, f'{{"weight_map": {DEEP}', "[1]", "7", '{"weight_map": {"a": 1}}']
)
def test_json_of_another_shape_or_depth_is_refused(text, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign")
    (folder / "model.safetensors.index.json").write_text(text)
    require_refused(folder, store, "model.safetensors.index.json")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "config.json").write_text(text if "weight_map" not in text else DEEP)
    require_refused(folder, store, "checkpoint", str(folder))


OF_LINEAR_LAYERS = (".c_fc.bias", "_proj.bias")


def test_tensors_that_cannot_be_read_are_named(store, tmp_path):
    folder = checkpoint(tmp_path / "foreign")
    (folder / "model.safetensors").unlink()
    # Its open succeeds, its reading does not.
    (folder / "model.safetensors").symlink_to("/proc/self/mem")
    with pytest.raises(ValueError):
        import_checkpoint(folder, store)
    assert not store.list_imports()


@pytest.mark.parametrize(
    "missing", ["mlp.c_proj.bias", "self_attn.k_proj.bias", "input_layernorm.bias"]
)
def test_a_bias_that_is_missing_is_not_zero(missing, store, tmp_path):
    """A model has biases unless its config says otherwise."""
    name = f"{LAYER}.{missing}"
    require_refused(checkpoint(tmp_path / "foreign", without(name)), store, name, "nothing")


def test_a_model_without_biases_has_none_in_any_layer(store, tmp_path):
    bare = checkpoint(tmp_path / "bare", without(*OF_LINEAR_LAYERS), use_bias=False)
    weights = weights_of(store.import_dir(import_checkpoint(bare, store).import_id))
    biases = {
        name: weight
        for name, weight in weights.items()
        if ".mlp." in name and name.endswith("bias")
    }
    assert len(biases) == 4
    assert not any(bias.any() for bias in biases.values())
    assert all(weights[f"blocks.{layer}.ln_1.bias"].all() for layer in (0, 1))  # norms keep theirs


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", INDEX, "model.safetensors"])
def test_a_pointer_of_git_lfs_is_named_as_one(name, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign")
    (folder / name).write_bytes(LFS_POINTER + b"v1\n")
    with pytest.raises(ValueError, match=rf"{name}.*git lfs pull"):
        import_checkpoint(folder, store)


@pytest.mark.parametrize("missing", [(), (".c_fc.bias",), ("0.mlp.c_fc.bias", "_proj.bias")])
def test_a_bias_of_a_model_without_biases_is_refused(missing, store, tmp_path):
    folder = checkpoint(
        tmp_path / "foreign", without(*missing) if missing else lambda _: None, use_bias=False
    )
    require_refused(folder, store, "tensors")


def test_norms_have_biases_in_every_model(store, tmp_path):
    missing = f"{LAYER}.input_layernorm.bias"
    folder = checkpoint(tmp_path / "foreign", without(*OF_LINEAR_LAYERS, missing), use_bias=False)
    require_refused(folder, store, missing, "nothing")


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", f"{LAYER}.self_attn.o_proj.bias"])
def test_what_is_no_finite_number_is_refused(name, value, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign", holding(name, value))
    require_refused(folder, store, name)


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.bfloat16, float("nan")), (torch.float64, 1e300)]
)
def test_numbers_are_finite_in_float32(dtype, value, store, tmp_path):
    """Whatever type they come in: a float64 may be too large."""
    folder = checkpoint(tmp_path / "foreign", holding("model.norm.weight", value, dtype))
    require_refused(folder, store, "model.norm.weight")


ODD = [
    ("num_attention_heads", 0),
    ("hidden_size", "64"),
    ("hidden_size", 16.0),
    ("vocab_size", [64]),
    ("num_key_value_heads", None),
    ("sliding_window", -1),
    ("head_dim", 0),
    ("norm_epsilon", "1e-5"),
    ("initializer_range", 0),
    ("rope_theta", float("nan")),
    ("rope_parameters", []),
    ("rope_scaling", 2.0),
    ("use_bias", None),
    ("tie_word_embeddings", 0),
    ("hidden_act", "relu"),
    ("hidden_act", ["gelu"]),
    ("model_type", "gpt2"),
    ("model_type", {}),
]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        (
            "config.json: rope_type",
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}},
        ),
        ("model.layers.0.self_attn.q_proj.bias", {"head_dim": 8}),
        ("model.head_width", {"head_dim": 5}),
        ("tensors", {"num_hidden_layers": 1}),
        ("lm_head.weight", {"vocab_size": FOREIGN["vocab_size"] + 1}),
        ("model.num_kv_heads", {"num_key_value_heads": 3}),
    ],
)
def test_what_is_not_our_model_is_refused(field, fields, store, tmp_path):
    require_refused(checkpoint(tmp_path / "foreign", **fields), store, field)


@pytest.mark.parametrize(("name", "value"), ODD)
def test_an_odd_field_is_named(name, value):
    with refused(f"config.json: {name}"):
        native_config({**FOREIGN, name: value})


@pytest.mark.parametrize("name", [*DIMENSIONS, *SIZES_OR_NULL])
def test_a_size_beyond_all_models_is_named(name, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign", **{name: 10**30})
    require_refused(folder, store, f"config.json: {name}", 10**30)


@pytest.mark.parametrize("num_layers", [3, 2**28])
def test_more_layers_than_the_files_have_are_refused_at_once(num_layers, store, tmp_path):
    """2**28 layers could not be listed in any memory."""
    folder = checkpoint(tmp_path / "foreign", num_hidden_layers=num_layers)
    started = time.monotonic()
    require_refused(folder, store, "config.json: num_hidden_layers", num_layers)
    assert time.monotonic() - started < 10.0


def test_shapes_are_those_of_the_whole_model():
    model = native_config({**FOREIGN, "num_hidden_layers": 3})
    assert parameter_shapes(model) == {
        name: tuple(p.shape) for name, p in Transformer(model).named_parameters()
    }


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("rope_theta", {"rope_type": "default", "rope_theta": [1]}),
        ("rope_theta", {"rope_theta": None}),
        ("rope_type", {"rope_type": "yarn"}),
        ("rope_type", {"rope_type": ["yarn"]}),
    ],
)
def test_an_odd_field_of_the_positions_is_named(name, rope):
    with refused(f"config.json: {name}", rope[name]):
        native_config({**FOREIGN, "rope_parameters": rope})


def test_null_is_absent_where_it_may_be():
    nulls = dict.fromkeys(("head_dim", "sliding_window", "rope_parameters", "rope_scaling"))
    assert native_config({**FOREIGN, **nulls}) == native_config(FOREIGN)
    # Numbers may be written as integers.
    assert native_config({**FOREIGN, "rope_theta": 20_000}).rope_theta == 20_000.0


def test_sequences_have_a_token():
    for wrong in (0, -1, 33):
        with refused("seq_len", wrong):
            native_config(FOREIGN, wrong)
