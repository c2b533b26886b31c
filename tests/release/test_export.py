"""Views as stock checkpoints: every method's views load in transformers, whole or not at all."""

import dataclasses
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gram_platform.config import ModuleSpec, RoutingConfig, View
from gram_platform.config.flops import total_parameters
from gram_platform.config.training import ARCHITECTURES, LLAMA, STARCODER2, merge_config
from gram_platform.methods import METHODS, plan
from gram_platform.methods.elicitation import plan_attacks
from gram_platform.methods.setting import Branching, Elicitation, Options
from gram_platform.release import export as exporting
from gram_platform.release.export import RECORD, ExportRequest, export_view
from gram_platform.release.files import INDEX, SINGLE, open_checkpoint
from gram_platform.release.importing import import_checkpoint
from gram_platform.release.selection import available_modules, dense_parts, parse_modules
from gram_platform.release.stock_tensors import foreign_shapes
from gram_platform.store import Store
from gram_platform.store.tensors import DiskTensors
from gram_platform.store.views import load_view, open_view
from tests import tiny
from tests.engine import conftest as cells
from tests.refused import refused
from tests.release.planted import complete, drawn_weights, exported
from tests.store.training import in_process

packed_root, execution, setting = cells.packed_root, cells.execution, cells.setting


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


def modular_run(kinds=("mlp", "mlp"), architecture=STARCODER2, **parts):
    specs = {"mlp": ("mlp", 8), "lora": ("lora", 3), "head": ("reserved", 8, 1)}
    specs["heads"] = ("reserved", 8, 2)
    modules = tuple(ModuleSpec(d, *specs[k]) for d, k in zip(tiny.DOMAINS[1:], kinds, strict=True))
    model = dataclasses.replace(
        tiny.model_config(False), modules=modules, architecture=architecture
    )
    return tiny.run_config(model=model, **parts)


@torch.no_grad()
def require_loads(store, view, folder):
    """transformers' logits are the view's, it generates, and the file has a dense model's size."""
    config, ours = load_view(store, view)
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    tokens = torch.arange(3 * config.seq_len).reshape(3, -1) * 7 % config.vocab_size
    difference = (ours(tokens, dict(view.weights)) - model(tokens).logits).abs().max()
    assert difference < 1e-4
    drawn = model.generate(
        tokens[:, :4], max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0
    )
    assert drawn.shape == (3, 8)
    dense = merge_config(config, dict(view.weights))
    width = (dense.num_heads + 2 * dense.num_kv_heads) * dense.head_dim + dense.d_model
    biases = config.num_layers * width
    num_parameters = total_parameters(dense) + (0 if config.is_llama else biases)
    size = (folder / SINGLE).stat().st_size
    assert 4 * num_parameters < size < 4 * num_parameters + 200 * len(foreign_shapes(dense))


@pytest.mark.parametrize("method", METHODS)
def test_views_of_every_method_load_in_transformers(method, setting, execution, tmp_path):
    """Core alone, core with a domain, two domains where the method has such a view, and an attacked
    one."""
    first, second = setting.auxiliary[:2]
    attack = Elicitation(num_sequences=8, num_steps=2, batch_size=8)
    options = Options(branch_full=Branching(1.0, 0.5), elicitation=attack)
    profiles = ((), (first,)) if method == "ft_full" else ((), (first,), (first, second))
    setting = dataclasses.replace(setting, profiles=profiles, options=options)
    store, plans = execution.store(), plan(method, setting)
    for run in plans.runs.values():
        complete(store, run)
    for number, (profile, view) in enumerate(
        (p, v) for p, v in plans.views.items() if p in ((*profiles, ()))
    ):
        out = tmp_path / f"out{number}"
        found = exported(store, view, out)
        assert set(found.agreements) == set(dense_parts(view))
        for name, part in dense_parts(view).items():
            (agreement,) = found.agreements[name]
            assert agreement.largest_difference < 1e-5 < agreement.largest_logit
            assert re.search(r"validation .*\bcore\b", agreement.tokens)
            require_loads(store, part, out / name)
        assert {path.name for path in out.iterdir() if path.is_dir()} == {
            n for n in found.agreements if n
        }
        for run in list(plan_attacks(setting, profile, view, plans.runs.values()).values())[:1]:
            attacked = View(complete(store, run))
            exported(store, attacked, tmp_path / f"attacked{number}")
            require_loads(store, attacked, tmp_path / f"attacked{number}")


@pytest.mark.parametrize("kinds", [("mlp", "mlp"), ("lora", "lora"), ("lora", "mlp")])
def test_weights_of_modules_are_scaled_in(kinds, store, tmp_path):
    run_id = complete(store, modular_run(kinds))
    view = available_modules(store, run_id).view(parse_modules("virology=0.25, lisp=0"), {})
    assert view == View.of(run_id, {"virology": 0.25})
    (agreement,) = exported(store, view, tmp_path / "out").agreements[""]
    assert "random ids" in agreement.tokens
    require_loads(store, view, tmp_path / "out")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_of_modules_are_a_further_group(architecture, store, tmp_path):
    """Filled up with zeros, and read back with the same width of a head."""
    uniform = RoutingConfig(accumulation="uniform")
    run = modular_run(("head", "heads"), architecture, routing=uniform)
    weights = drawn_weights(run)
    view = View.of(complete(store, run, weights), {"lisp": 0.5})
    exported(store, view, tmp_path / "out")
    require_loads(store, view, tmp_path / "out")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    # Six heads do not divide 16, as Llama's must.
    is_llama = architecture == LLAMA
    assert fields["num_attention_heads"] == (8 if is_llama else 6)
    assert (fields["num_key_value_heads"], fields["head_dim"]) == (4 if is_llama else 3, 4)
    with open_checkpoint(tmp_path / "out") as tensors:
        layer = "model.layers.0.self_attn"
        queries, keys, out = (tensors[f"{layer}.{p}_proj.weight"] for p in ("q", "k", "o"))
    head = weights["blocks.0.heads.lisp.qkv_proj.weight"]
    assert torch.equal(queries[16:20], head[:4])
    assert torch.equal(keys[8:12], head[4:8])
    assert torch.equal(out[:, 16:20], 0.5 * weights["blocks.0.heads.lisp.o_proj.weight"])
    assert not queries[20:].any()
    assert not out[:, 20:].any()
    imported = import_checkpoint(tmp_path / "out", store)
    exported(store, View(imported.import_id), tmp_path / "again")
    assert (tmp_path / "again" / SINGLE).read_bytes() == (tmp_path / "out" / SINGLE).read_bytes()


def test_a_text_ends_as_in_the_corpus(setting, execution, tmp_path):
    store = execution.store()
    exported(store, View(complete(store, plan("baseline", setting).runs["all"])), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    end = json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"]
    assert tokenizer.eos_token_id == end
    assert tokenizer.convert_ids_to_tokens(end) == "<|endoftext|>"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == end


def test_large_checkpoints_have_several_files(store, tmp_path):
    run = modular_run()
    view = View.of(complete(store, run), {"lisp": 1.0})
    exported(store, view, tmp_path / "one")
    exported(store, view, tmp_path / "many", max_file_bytes=8000)
    names = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    assert len(names) > 3
    assert all((tmp_path / "many" / name).stat().st_size <= 8000 for name in names)
    with open_checkpoint(tmp_path / "one") as one, open_checkpoint(tmp_path / "many") as many:
        assert set(one) == set(many)
        assert all(torch.equal(one[name], many[name]) for name in one)
        num_numbers = sum(one[name].numel() for name in one)
    index = json.loads((tmp_path / "many" / INDEX).read_text())
    assert index["metadata"]["total_size"] == 4 * num_numbers
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "many")
    assert model.config.intermediate_size == run.model.d_mlp + 8


def test_bfloat16_has_half_the_size(store, tmp_path):
    view = View.of(complete(store, modular_run()), {"lisp": 1.0})
    full = exported(store, view, tmp_path / "full")
    half = exported(store, view, tmp_path / "half", dtype="bfloat16")
    assert half.num_bytes < 0.6 * full.num_bytes
    (agreement,) = half.agreements[""]
    assert 1e-4 < agreement.largest_difference < agreement.tolerance
    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "half", torch_dtype="auto").dtype
        == torch.bfloat16
    )


def test_the_same_export_again_writes_the_card_alone(store, tmp_path):
    view, out = View.of(complete(store, modular_run()), {"lisp": 1.0}), tmp_path / "out"
    assert exported(store, view, out).is_new
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = exported(store, view, out)
    assert not again.is_new
    assert again.agreements[""][0].largest_difference < 1e-4
    after = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"README.md"}
    with refused("out", str(out)):
        exported(store, View(view.run_id), out)
    (out / SINGLE).write_bytes(b"damaged")
    with refused("out", str(out)):
        exported(store, view, out)


def test_other_files_are_never_overwritten(store, tmp_path):
    view, out = View(complete(store, modular_run())), tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with refused("out", str(out)):
        exported(store, view, out)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    (out / "thesis.txt").unlink()
    exported(store, view, out)  # an empty folder is fine
    assert (out / RECORD).is_file()
    with refused("out", str(out / RECORD)):
        exported(store, view, out / RECORD)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_that_is_not_the_view_is_not_left(dtype, store, tmp_path, monkeypatch):
    """A writer that gets a bias of a module wrong is caught, by the logits or by the bits, and
    nothing stays."""
    view, out = View.of(complete(store, modular_run()), {"lisp": 1.0}), tmp_path / "out"
    right = exporting.foreign_weights

    def wrong(*view):
        for name, tensor in right(*view):
            yield name, tensor * 0.99 if name == "model.layers.1.mlp.c_proj.bias" else tensor

    monkeypatch.setattr(exporting, "foreign_weights", wrong)
    with refused("export"):
        exported(store, view, out, dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["storage"]


def test_a_tensor_of_another_shape_and_equal_size_is_refused(store, tmp_path, monkeypatch):
    """The file's size is right; only the tensors' names and shapes tell it from a dense model."""
    view, out, turned = (
        View.of(complete(store, modular_run())),
        tmp_path / "out",
        "model.layers.1.mlp.c_fc.weight",
    )
    shapes, weights = exporting.foreign_shapes, exporting.foreign_weights
    monkeypatch.setattr(
        exporting,
        "foreign_shapes",
        lambda *a: {n: s[::-1] if n == turned else s for n, s in shapes(*a).items()},
    )
    monkeypatch.setattr(
        exporting,
        "foreign_weights",
        lambda *a: ((n, t.mT.contiguous() if n == turned else t) for n, t in weights(*a)),
    )
    with refused("export"):
        exported(store, view, out)
    assert not out.exists()


def test_a_killed_exports_folder_is_removed_and_a_living_ones_is_kept(store, tmp_path):
    view, out = View(complete(store, modular_run())), tmp_path / "out"
    dead, living = tmp_path / ".out.1.part", tmp_path / ".out.2.part"
    dead.mkdir()
    living.mkdir()
    with exporting.folder_lock(living):
        exported(store, view, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.2.part", "out", "storage"]


def killed_in_the_middle(store, view, out):
    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    export_view(store, ExportRequest(view), out, kill)


def test_a_killed_export_leaves_nothing_under_the_name(store, tmp_path):
    view, out = View(complete(store, modular_run())), tmp_path / "out"
    process = in_process(killed_in_the_middle, store, view, out)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    assert list(tmp_path.glob(".out.*.part"))
    exported(store, view, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "storage"]


def test_a_storage_behind_a_url_and_an_import_there(tmp_path):
    """An object store's stand-in: nothing of it is a local path."""
    store = Store(f"memory://ship-{tmp_path.name}").open_for_writing()
    view = View.of(complete(store, modular_run()), {"lisp": 1.0})
    exported(store, view, tmp_path / "out")
    imported = import_checkpoint(tmp_path / "out", store)
    exported(store, View(imported.import_id), tmp_path / "again")
    assert (tmp_path / "again" / SINGLE).read_bytes() == (tmp_path / "out" / SINGLE).read_bytes()


def test_a_full_disk_is_reported_before_the_work(store, tmp_path, monkeypatch):
    view = View(complete(store, modular_run()))
    monkeypatch.setattr(exporting.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with refused("out", str(tmp_path / "out")):
        exported(store, view, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_on_disk_are_those_in_memory(store):
    """One file, and the shards of several ranks."""
    run = modular_run(("lora", "mlp"))
    weights = drawn_weights(run)
    sharded = dataclasses.replace(run, seed=1)
    for run_id in (complete(store, run, weights), complete(store, sharded, weights, num_ranks=3)):
        view = View.of(run_id, {"lisp": 1.0})
        with open_view(store, view) as (config, found):
            assert config.module_domains == ("lisp",)
            assert set(found) == {n for n in weights if ".aux." not in n or ".aux.lisp." in n}
            assert all(torch.equal(found[name], weights[name]) for name in found)
        with store.run(run_id).open_weights() as tensors:
            assert isinstance(tensors, DiskTensors)
            assert all(torch.equal(tensors[name], weights[name]) for name in weights)
