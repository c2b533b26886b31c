"""A StarCoder2 or Llama checkpoint becomes a starting point, bit by bit; what is not our model is
refused."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from gram_platform.config import ModuleSpec, RoutingConfig, RunConfig, View, run_from_plain
from gram_platform.config.identity import to_plain
from gram_platform.config.routing import Schedule
from gram_platform.config.training import ARCHITECTURES, LLAMA, STARCODER2
from gram_platform.engine.node import execute_run
from gram_platform.methods import plan
from gram_platform.methods.nodes import view_runs
from gram_platform.model.transformer import build
from gram_platform.release.files import INDEX, SINGLE
from gram_platform.release.importing import import_checkpoint
from gram_platform.store import Store
from gram_platform.store.views import load_view
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import cross_entropy
from tests import tiny
from tests.engine import conftest as cells
from tests.refused import refused
from tests.release.planted import complete, exported
from tests.tiny import materialised, weights_of

packed_root, execution, setting = cells.packed_root, cells.execution, cells.setting


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


CLASSES = {
    STARCODER2: (Starcoder2Config, Starcoder2ForCausalLM),
    LLAMA: (LlamaConfig, LlamaForCausalLM),
}


def saved(architecture, folder, **fields):
    """(transformers' own model with drawn weights, the folder that it saved itself in)."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    shape |= {
        "num_key_value_heads": 2,
        "vocab_size": tiny.VOCAB,
        "max_position_embeddings": 32,
        **fields,
    }
    of_config, of_model = CLASSES[architecture]
    model = of_model(
        of_config(**{"tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, **shape})
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bias_of_attention = "self_attn" in name and name.endswith("bias")
            parameter.normal_(0.0, 0.1) if not bias_of_attention else parameter.zero_()
    model.eval().save_pretrained(folder)
    return model, folder


@pytest.fixture(params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture
def foreign(architecture, tmp_path):
    return saved(architecture, tmp_path / "foreign")


TOKENS = torch.arange(2 * tiny.SEQ_LEN).reshape(2, -1) * 5 % tiny.VOCAB


@torch.no_grad()
def test_logits_are_transformers_s(foreign, store):
    model, folder = foreign
    imported = import_checkpoint(folder, store, tiny.SEQ_LEN)
    assert imported.is_new
    assert imported.model.seq_len == tiny.SEQ_LEN
    _, ours = load_view(store, View.of(imported.import_id))
    assert (ours(TOKENS) - model(TOKENS).logits).abs().max() < 1e-5
    again = import_checkpoint(folder, store, tiny.SEQ_LEN)
    assert (again.import_id, again.is_new) == (imported.import_id, False)
    # Another length is another model.
    assert import_checkpoint(folder, store).import_id != imported.import_id
    source = store.import_dir(imported.import_id).result()["source"]
    assert set(source["files"]) == {"config.json", SINGLE}


LLAMA_LIKE = [
    {"tie_word_embeddings": True},
    {"num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    {
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    },
]


@torch.no_grad()
@pytest.mark.parametrize("fields", LLAMA_LIKE)
def test_the_loss_of_a_llama_is_transformers_s(fields, store, tmp_path):
    """Tied or not, with grouped queries or without, whatever its angles and epsilon."""
    model, folder = saved(LLAMA, tmp_path / "foreign", **fields)
    imported = import_checkpoint(folder, store)
    _, ours = load_view(store, View.of(imported.import_id))
    tokens = torch.arange(2 * 33).reshape(2, -1) * 5 % tiny.VOCAB
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    theirs = model(inputs).logits
    assert (ours(inputs) - theirs).abs().max() < 1e-5
    assert abs(cross_entropy(ours(inputs), targets) - cross_entropy(theirs, targets)) < 1e-4
    assert imported.model.architecture == LLAMA


def test_a_llama_of_an_older_release_is_the_same(store, tmp_path):
    """Its config has rope_theta itself, as many key heads as heads and no head_dim; its files have
    the angles."""
    _, folder = saved(LLAMA, tmp_path / "foreign", num_key_value_heads=4)
    new = import_checkpoint(folder, store)
    plain = json.loads((folder / "config.json").read_text())
    for name in ("num_key_value_heads", "head_dim", "rope_parameters"):
        del plain[name]
    (folder / "config.json").write_text(
        json.dumps({**plain, "rope_theta": 10_000.0, "rope_scaling": None})
    )
    angles = {
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(2) for layer in range(2)
    }
    changed_tensors(folder, lambda tensors: tensors.update(angles))
    assert import_checkpoint(folder, store).import_id == new.import_id


@torch.no_grad()
def test_export_and_import_are_inverse(architecture, store, tmp_path):
    """In one file and in several; the second export of the import is the first one."""
    model = dataclasses.replace(tiny.model_config(), architecture=architecture)
    view = View.of(complete(store, tiny.run_config(model=model)), {"lisp": 0.5})
    exported(store, view, tmp_path / "one")
    exported(store, view, tmp_path / "many", max_file_bytes=8000)
    ids = {import_checkpoint(tmp_path / name, store).import_id for name in ("one", "many")}
    assert len(ids) == 1
    (import_id,) = ids
    _, ours = load_view(store, View.of(import_id))
    _, original = load_view(store, view)
    assert (ours(TOKENS) - original(TOKENS, {"lisp": 0.5})).abs().max() < 1e-5
    exported(store, View.of(import_id), tmp_path / "again")
    assert (tmp_path / "again" / SINGLE).read_bytes() == (tmp_path / "one" / SINGLE).read_bytes()


@torch.no_grad()
def test_other_types_become_float32_and_a_tied_embedding_is_expanded(foreign, store):
    model, folder = foreign
    tensors = {
        name: tensor.bfloat16()
        for name, tensor in load_file(folder / SINGLE).items()
        if "lm_head" not in name
    }
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    changed_config(folder, tie_word_embeddings=True)
    imported = import_checkpoint(folder, store)
    _, weights = materialised(store, View.of(imported.import_id))
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert torch.equal(weights["lm_head.weight"], weights["wte.weight"])
    assert torch.equal(weights["wte.weight"], model.model.embed_tokens.weight.bfloat16().float())


def modular_start(import_id, shape, kind="mlp") -> RunConfig:
    """GRAM on an imported core."""
    modules = tuple(ModuleSpec(domain, kind, 8) for domain in tiny.DOMAINS[1:])
    model = dataclasses.replace(shape, modules=modules)
    return tiny.run_config(model=model, start=View.of(import_id))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_modules_are_trained_on_an_imported_core(is_frozen, foreign, store):
    """At step 0 the core is the import; a frozen one stays so, bit by bit."""
    model, folder = foreign
    imported = import_checkpoint(folder, store, tiny.SEQ_LEN)
    run = modular_start(imported.import_id, imported.model)
    if is_frozen:
        run = dataclasses.replace(run, routing=RoutingConfig(1.0, 0.0, freeze_core=True))
    assert run_from_plain(json.loads(json.dumps(to_plain(run)))) == run
    assert view_runs(run.start) == frozenset()  # a study waits for runs, not for what is there
    _, start = materialised(store, run.start)
    learner = Learner(run, start=start)
    with torch.no_grad():
        assert (learner.forward(TOKENS, {}) - model(TOKENS).logits).abs().max() < 1e-5
        assert torch.equal(learner.forward(TOKENS, {}), load_view(store, run.start)[1](TOKENS))
    before = learner.weights() if is_frozen else {}
    before = {name: weight.clone() for name, weight in before.items()}
    routes = Schedule(run)
    records = list(training_steps(learner, routes, ScheduleReader(run, tiny.arrays())))
    assert len(records) == run.num_steps
    after = learner.weights()
    same = {name for name in start if torch.equal(after[name], start[name])}
    assert same == (set(start) if is_frozen else set())
    assert not any(torch.equal(before[name], after[name]) for name in before.keys() - start.keys())


def test_the_engine_starts_a_run_from_an_import(architecture, setting, execution, tmp_path):
    """A branch of FT-MLP whose base came from outside: it is trained, and its core is what was
    imported."""
    size = dataclasses.replace(setting.size, architecture=architecture)
    plans = plan("ft_mlp", dataclasses.replace(setting, size=size))
    base, branch = (
        plans.runs["core"],
        next(run for run in plans.runs.values() if run.start is not None),
    )
    store = execution.store()
    exported(store, View(complete(store, base)), tmp_path / "base")
    imported = import_checkpoint(tmp_path / "base", store)
    assert imported.model == base.model
    run = dataclasses.replace(branch, start=View.of(imported.import_id))
    assert run.run_id != branch.run_id
    execute_run(run, {}, execution)
    trained, start = (
        weights_of(store.run(run.run_id)),
        weights_of(store.import_dir(imported.import_id)),
    )
    assert all(torch.equal(trained[name], start[name]) for name in start)
    assert any(".aux." in name for name in trained)


@pytest.mark.parametrize(("kind", "weight"), [("mlp", 1.0), ("lora", 0.5)])
def test_a_run_with_an_imported_start_is_exported(kind, weight, foreign, store, tmp_path):
    """The way there and back: import, add modules, train them, export a profile."""
    model, folder = foreign
    imported = import_checkpoint(folder, store, tiny.SEQ_LEN)
    run = modular_start(imported.import_id, imported.model, kind)
    learner = Learner(run, start=materialised(store, run.start)[1])
    list(training_steps(learner, Schedule(run), ScheduleReader(run, tiny.arrays())))
    view = View.of(complete(store, run, learner.weights()), {"virology": weight})
    exported(store, view, tmp_path / "out", check="transformers")
    plain = json.loads((tmp_path / "out" / "config.json").read_text())
    assert plain["intermediate_size"] == 24 + 8 * (kind == "mlp")
    with torch.no_grad():
        expected = build(run.model, learner.weights().items())(TOKENS, {"virology": weight})
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
        found = loaded(TOKENS).logits
    assert type(loaded) is type(model)
    assert (expected - found).abs().max() < 1e-4


def changed_config(folder, **fields):
    plain = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(plain))


def changed_tensors(folder, change):
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, {"format": "pt"})


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias"])
def test_biases_of_a_llama_are_refused(name, store, tmp_path):
    _, folder = saved(LLAMA, tmp_path / "foreign", **{name: True})
    with refused(f"config.json: {name}", True):
        import_checkpoint(folder, store)
    changed_config(folder, **{name: False})
    with refused("tensors"):
        import_checkpoint(folder, store)
    changed_config(folder, **{name: 1})
    with refused(f"config.json: {name}", 1):
        import_checkpoint(folder, store)
    assert not store.list_imports()


def test_attention_biases_are_refused_by_layer(store, tmp_path):
    _, folder = saved(STARCODER2, tmp_path / "foreign")
    changed_tensors(
        folder, lambda tensors: tensors["model.layers.1.self_attn.q_proj.bias"].fill_(0.5)
    )
    with refused("model.layers.1.self_attn.q_proj.bias"):
        import_checkpoint(folder, store)


def test_a_window_shorter_than_the_sequences_is_refused(store, tmp_path):
    _, folder = saved(STARCODER2, tmp_path / "foreign")
    changed_config(folder, sliding_window=8)
    with refused("seq_len", 16):
        import_checkpoint(folder, store, seq_len=16)
    assert import_checkpoint(folder, store).model.seq_len == 8


def test_files_that_are_not_whole_are_refused(store, tmp_path):
    _, folder = saved(STARCODER2, tmp_path / "foreign")
    whole = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(whole[:-10])
    with pytest.raises(ValueError):
        import_checkpoint(folder, store)
    (folder / SINGLE).unlink()
    with refused("checkpoint"):
        import_checkpoint(folder, store)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with refused("checkpoint", "pytorch_model.bin"):
        import_checkpoint(folder, store)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with refused(INDEX):
        import_checkpoint(folder, store)
    with refused("checkpoint", str(tmp_path / "nowhere")):
        import_checkpoint(tmp_path / "nowhere", store)


def test_an_import_that_was_damaged_is_not_used(store, tmp_path):
    _, folder = saved(STARCODER2, tmp_path / "foreign")
    imported = import_checkpoint(folder, store)
    (path,) = (tmp_path / "storage").rglob("weights.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError):
        load_view(store, View.of(imported.import_id))
