"""No weight of a removed module is in an export: not a row, not a column, in no floating type, in
no file."""

import dataclasses

import pytest
import torch

from gram_platform.config import ModuleSpec, RoutingConfig, View
from gram_platform.config.routing import module_set
from gram_platform.config.training import ARCHITECTURES, LLAMA, STARCODER2
from gram_platform.model.transformer import parameter_set, parameter_shapes
from gram_platform.release.files import SINGLE, open_checkpoint
from gram_platform.store import Store
from tests import tiny
from tests.release.planted import complete, drawn_weights, exported

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FEWEST = 3  # numbers of a vector that is looked for: a shorter one may occur by chance


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


def vectors(tensor):
    """Its rows and columns."""
    if tensor.dim() == 1:
        return [tensor]
    return [
        vector.contiguous()
        for matrix in (tensor, tensor.T)
        for vector in matrix
        if len(vector) >= FEWEST
    ]


def traces(folder, removed, weights):
    """Names of removed tensors of which a row or column lies anywhere in the files of a folder."""
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    found = set()
    for name in removed:
        for vector in vectors(weights[name]):
            spellings = (vector.to(dtype).view(torch.uint8).numpy().tobytes() for dtype in DTYPES)
            if any(spelling in data for spelling in spellings for data in files):
                found.add(name)
    return found


def names_of(weights, domain):
    return [name for name in weights if parameter_set(name) == module_set(domain)]


def modular_run(kind, architecture=STARCODER2):
    spec = {"mlp": ("mlp", 8), "lora": ("lora", 3), "heads": ("reserved", 8, 1)}[kind]
    modules = tuple(ModuleSpec(d, *spec) for d in tiny.DOMAINS[1:])
    model = dataclasses.replace(
        tiny.model_config(False), modules=modules, architecture=architecture
    )
    return tiny.run_config(model=model, routing=RoutingConfig(accumulation="uniform"))


@pytest.mark.parametrize("kind", ["mlp", "lora", "heads"])
@pytest.mark.parametrize(
    ("granted", "dtype"), [((), "float32"), (("lisp",), "float32"), (("lisp",), "bfloat16")]
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_of_a_removed_module_is_in_the_files(
    architecture, kind, dtype, granted, store, tmp_path
):
    run = modular_run(kind, architecture)
    weights = drawn_weights(run)
    view = View.of(complete(store, run, weights), dict.fromkeys(granted, 1.0))
    exported(store, view, tmp_path / "out", dtype=dtype)
    removed = [
        name
        for domain in run.model.module_domains
        if domain not in granted
        for name in names_of(weights, domain)
    ]
    # The tensors of a module in a layer.
    num_tensors = {"mlp": 3, "lora": 6, "heads": 5}[kind]
    if architecture != LLAMA:
        num_tensors = 5 if kind == "heads" else 4
    assert len(removed) == 2 * num_tensors * (2 - len(granted))
    assert not traces(tmp_path / "out", removed, weights)
    kept = (
        [
            name
            for name in names_of(weights, "lisp")
            if (kind == "mlp" and "c_fc" in name) or "qkv" in name
        ]
        if granted
        else []
    )
    assert traces(tmp_path / "out", kept, weights) == set(kept)  # the search finds what is there


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_search_finds_one_planted_row(dtype, store, tmp_path):
    """In the file's unused places too: behind the tensors, or among the texts."""
    run = modular_run("mlp")
    weights = drawn_weights(run)
    exported(store, View(complete(store, run, weights)), tmp_path / "out")
    name = "blocks.1.aux.virology.c_proj.weight"
    # The output of a hidden unit.
    row = weights[name][:, 3].contiguous().to(dtype).view(torch.uint8).numpy().tobytes()
    for target in (SINGLE, "config.json"):
        data = (tmp_path / "out" / target).read_bytes()
        (tmp_path / "out" / target).write_bytes(data + b"x" + row)
        assert traces(tmp_path / "out", [name], weights) == {name}
        (tmp_path / "out" / target).write_bytes(data)
    assert not traces(tmp_path / "out", [name], weights)


def test_experts_that_are_not_granted_are_absent(store, tmp_path):
    modules = tuple(ModuleSpec(d, "mlp", 8) for d in tiny.DOMAINS)
    model = dataclasses.replace(tiny.model_config(), d_mlp=0, modules=modules)
    run = tiny.run_config(model=model)
    weights = drawn_weights(run)
    view = View.of(complete(store, run, weights), {"core": 1.0, "lisp": 1.0}, rule="by_domain")
    exported(store, view, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"core", "lisp"}
    assert not traces(tmp_path / "out", names_of(weights, "virology"), weights)
    assert not traces(tmp_path / "out" / "core", names_of(weights, "lisp"), weights)
    assert traces(tmp_path / "out" / "lisp", names_of(weights, "lisp"), weights)


def test_the_mlp_is_exactly_core_and_the_enabled_modules(store, tmp_path):
    """Hidden unit by hidden unit: so no sum or other mixture with a removed one can be in it."""
    run = modular_run("mlp")
    weights = drawn_weights(run)
    view = View.of(complete(store, run, weights), {"lisp": 0.5})
    exported(store, view, tmp_path / "out")
    shared = {name for name in parameter_shapes(tiny.model_config(False)) if ".mlp." not in name}
    with open_checkpoint(tmp_path / "out") as tensors:
        for layer in range(run.model.num_layers):
            core, module = (f"blocks.{layer}.{part}" for part in ("mlp", "aux.lisp"))
            theirs = f"model.layers.{layer}.mlp"
            up = torch.cat([weights[f"{core}.c_fc.weight"], weights[f"{module}.c_fc.weight"]])
            down = torch.cat(
                [weights[f"{core}.c_proj.weight"], 0.5 * weights[f"{module}.c_proj.weight"]], dim=1
            )
            assert torch.equal(tensors[f"{theirs}.c_fc.weight"], up)
            assert torch.equal(tensors[f"{theirs}.c_proj.weight"], down)
            bias = weights[f"{core}.c_proj.bias"] + 0.5 * weights[f"{module}.c_proj.bias"]
            assert torch.equal(tensors[f"{theirs}.c_proj.bias"], bias)
        written = {tensors[name].numpy().tobytes() for name in tensors}
        whole = {name for name in shared if "qkv_proj" not in name}
        assert all(weights[name].numpy().tobytes() in written for name in whole)


def test_folded_loras_are_exactly_the_enabled_ones(store, tmp_path):
    run = modular_run("lora")
    weights = drawn_weights(run)
    view = View.of(complete(store, run, weights), {"lisp": 0.5})
    exported(store, view, tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as tensors:
        for layer in range(run.model.num_layers):
            lora = f"blocks.{layer}.aux.lisp"
            for part, short in (("c_fc", "fc"), ("c_proj", "proj")):
                change = weights[f"{lora}.{short}_b.weight"] @ weights[f"{lora}.{short}_a.weight"]
                folded = weights[f"blocks.{layer}.mlp.{part}.weight"] + 0.5 * change
                assert torch.equal(tensors[f"model.layers.{layer}.mlp.{part}.weight"], folded)
