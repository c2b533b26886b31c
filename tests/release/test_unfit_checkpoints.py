"""Checkpoints that lack something, hold what is no number, or describe themselves oddly are refused by name."""

import os
import time

import pytest
import torch

from gram_platform.model.transformer import Transformer, parameter_shapes
from gram_platform.release.importing import import_checkpoint
from gram_platform.release.stock_config import DIMENSIONS, SIZES_OR_NULL, native_config
from gram_platform.store import Store
from tests.release.planted import FOREIGN, checkpoint

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


def require_refused(folder, store, message):
    with pytest.raises(ValueError, match=message):
        import_checkpoint(folder, store)
    assert not store.list_imports()


DEEP = "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, f'{{"weight_map": {DEEP}', "[1]", "7", '{"weight_map": {"a": 1}}'])
def test_json_of_another_shape_or_depth_is_refused(text, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign")
    (folder / "model.safetensors.index.json").write_text(text)
    require_refused(folder, store, r"^model\.safetensors\.index\.json=")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "config.json").write_text(text if "weight_map" not in text else DEEP)
    require_refused(folder, store, r"config\.json that can be read")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_a_config_that_is_no_file_is_refused_at_once(make, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign")
    (folder / "config.json").unlink()
    make(folder / "config.json")
    require_refused(folder, store, r"config\.json that can be read")


# ---------------------------------------------------------------------------------------------------------- biases

OF_LINEAR_LAYERS = (".c_fc.bias", "_proj.bias")


def test_tensors_that_cannot_be_read_are_named(store, tmp_path):
    folder = checkpoint(tmp_path / "foreign")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/proc/self/mem")  # its open succeeds, its reading does not
    require_refused(folder, store, r"model\.safetensors: cannot be read")


@pytest.mark.parametrize("fields", [{}, {"use_bias": True}])  # its default is true
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("mlp.c_fc.bias", r"model.layers.0.mlp.c_fc.bias='nothing'.*\(24,\)"),
        (f"{LAYER}.mlp.c_proj.bias", rf"{LAYER}.mlp.c_proj.bias='nothing'.*\(16,\)"),
        (f"{LAYER}.self_attn.k_proj.bias", rf"{LAYER}.self_attn.k_proj.bias='nothing'.*\(8,\)"),
        (f"{LAYER}.input_layernorm.bias", rf"{LAYER}.input_layernorm.bias='nothing'"),
    ],
)
def test_a_bias_that_is_missing_is_not_zero(missing, message, fields, store, tmp_path):
    require_refused(checkpoint(tmp_path / "foreign", without(missing), **fields), store, message)


def test_a_model_without_biases_has_none_in_any_layer(store, tmp_path):
    bare = checkpoint(tmp_path / "bare", without(*OF_LINEAR_LAYERS), use_bias=False)
    weights = store.imported(import_checkpoint(bare, store).import_id).weights()
    biases = {name: weight for name, weight in weights.items() if ".mlp." in name and name.endswith("bias")}
    assert len(biases) == 4
    assert not any(bias.any() for bias in biases.values())
    assert all(weights[f"blocks.{layer}.ln_1.bias"].all() for layer in (0, 1))  # norms keep theirs


@pytest.mark.parametrize("missing", [(), (".c_fc.bias",), ("0.mlp.c_fc.bias", "_proj.bias")])
def test_a_bias_of_a_model_without_biases_is_refused(missing, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign", without(*missing) if missing else lambda _: None, use_bias=False)
    require_refused(folder, store, r"tensors=\['model.layers.*bias'.*: expected.* whose use_bias is false")


def test_norms_have_biases_in_every_model(store, tmp_path):
    missing = f"{LAYER}.input_layernorm.bias"
    folder = checkpoint(tmp_path / "foreign", without(*OF_LINEAR_LAYERS, missing), use_bias=False)
    require_refused(folder, store, rf"{missing}='nothing'")


# --------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        f"{LAYER}.self_attn.v_proj.weight",
        f"{LAYER}.self_attn.o_proj.bias",
        "lm_head.weight",
    ],
)
def test_what_is_no_finite_number_is_refused(name, value, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign", holding(name, value))
    require_refused(folder, store, f"{name}='NaN or infinity': expected finite numbers")


@pytest.mark.parametrize(("dtype", "value"), [(torch.bfloat16, float("nan")), (torch.float64, 1e300)])
def test_numbers_are_finite_in_float32(dtype, value, store, tmp_path):
    """Whatever type they come in: a float64 may be too large."""
    folder = checkpoint(tmp_path / "foreign", holding("model.norm.weight", value, dtype))
    require_refused(folder, store, r"model.norm.weight='NaN or infinity'")


# ------------------------------------------------------------------------------------------------------ config.json

ODD = [
    ("num_attention_heads", 0, "an integer >= 1"),
    ("hidden_size", "64", "an integer"),
    ("hidden_size", None, "an integer"),
    ("hidden_size", 16.0, "an integer"),
    ("hidden_size", True, "an integer"),
    ("vocab_size", [64], "an integer"),
    ("num_hidden_layers", 2.0, "an integer"),
    ("intermediate_size", 0, "an integer >= 1"),
    ("num_key_value_heads", None, "an integer"),
    ("max_position_embeddings", None, "an integer"),
    ("sliding_window", "8", "an integer"),
    ("sliding_window", -1, "an integer >= 1"),
    ("sliding_window", 0, "an integer >= 1"),
    ("head_dim", "a", "an integer"),
    ("head_dim", 0, "an integer >= 1"),
    ("norm_epsilon", None, "a finite number > 0"),
    ("norm_epsilon", "1e-5", "a finite number > 0"),
    ("initializer_range", 0, "a finite number > 0"),
    ("rope_theta", None, "a finite number > 0"),
    ("rope_theta", "a", "a finite number > 0"),
    ("rope_theta", float("nan"), "a finite number > 0"),
    ("rope_theta", True, "a finite number > 0"),
    ("rope_parameters", "x", "a JSON object or null"),
    ("rope_parameters", [], "a JSON object or null"),
    ("rope_scaling", 2.0, "a JSON object or null"),
    ("use_bias", None, "true or false"),
    ("tie_word_embeddings", 0, "true or false"),
    ("hidden_act", ["gelu"], "gelu_pytorch_tanh"),
    ("model_type", {}, "one of starcoder2, llama"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), ODD)
def test_an_odd_field_is_named(name, value, allowed):
    with pytest.raises(ValueError, match=rf"^config.json: {name}=.*: expected {allowed}"):
        native_config({**FOREIGN, name: value})


@pytest.mark.parametrize("name", [*DIMENSIONS, *SIZES_OR_NULL])
def test_a_size_beyond_all_models_is_named(name, store, tmp_path):
    folder = checkpoint(tmp_path / "foreign", **{name: 10**30})
    require_refused(folder, store, rf"^config.json: {name}=10+: expected an integer >= 1 and <= 268435456$")


@pytest.mark.parametrize("num_layers", [3, 4_000, 2**28])
def test_more_layers_than_the_files_have_are_refused_at_once(num_layers, store, tmp_path):
    """2**28 layers could not be listed in any memory."""
    folder = checkpoint(tmp_path / "foreign", num_hidden_layers=num_layers)
    started = time.monotonic()
    require_refused(folder, store, rf"^config.json: num_hidden_layers={num_layers}: expected at most 2, the layers")
    assert time.monotonic() - started < 10.0


def test_shapes_are_those_of_the_whole_model():
    model = native_config({**FOREIGN, "num_hidden_layers": 3})
    assert parameter_shapes(model) == {name: tuple(p.shape) for name, p in Transformer(model).named_parameters()}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "default", "rope_theta": [1]}, r"config.json: rope_theta=\[1\].*a finite number > 0"),
        ({"rope_theta": None}, r"config.json: rope_theta=None"),
        ({"rope_type": ["yarn"]}, r"config.json: rope_type=\['yarn'\].*default"),
    ],
)
def test_an_odd_field_of_the_positions_is_named(rope, message):
    with pytest.raises(ValueError, match=message):
        native_config({**FOREIGN, "rope_parameters": rope})


def test_null_is_absent_where_it_may_be():
    nulls = dict.fromkeys(("head_dim", "sliding_window", "rope_parameters", "rope_scaling"))
    assert native_config({**FOREIGN, **nulls}) == native_config(FOREIGN)
    assert native_config({**FOREIGN, "rope_theta": 20_000}).rope_theta == 20_000.0  # numbers may be written as integers


def test_sequences_have_a_token():
    for wrong in (0, -1, 33):
        with pytest.raises(ValueError, match=rf"seq_len={wrong}: expected 1 to 32"):
            native_config(FOREIGN, wrong)
