"""Counts against the paper's integers, the model itself and torch's counter."""

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gram_platform.config import ModuleSpec, RoutingConfig
from gram_platform.config.flops import (
    active_parameters,
    companion_shares,
    compute_units,
    hardware_flops,
    module_parameters,
    total_parameters,
)
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.config.routing import CORE_MLP, EMBEDDINGS, SHARED, module_set
from gram_platform.config.training import ARCHITECTURES
from gram_platform.model.cpu import has_fast_code
from gram_platform.model.transformer import Transformer, build, is_trained
from gram_platform.train.objectives import cross_entropy
from tests import tiny

PARAMETERS = {  # method.md, "Model sizes"
    "50M": 47_944_704,
    "100M": 103_149_440,
    "200M": 199_835_776,
    "400M": 402_004_736,
    "800M": 806_441_600,
    "2B": 2_016_096_768,
    "5B": 4_967_623_680,
}
MODULE_MILLIONS = {"800M": 49.21, "2B": 132.22, "5B": 351.34}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_of_the_ladder(name):
    size = PAPER_SIZES[name]
    with torch.device("meta"):
        dense = Transformer(size.dense())
        modular = Transformer(size.modular(("core", "virology")))
    assert (
        sum(p.numel() for p in dense.parameters())
        == total_parameters(size.dense())
        == PARAMETERS[name]
    )
    extra = sum(p.numel() for p in modular.parameters()) - PARAMETERS[name]
    assert extra == module_parameters(size.modular(("core", "virology")), "virology")
    if name in MODULE_MILLIONS:
        assert round(extra / 1e6, 2) == MODULE_MILLIONS[name]


CORE_SETS = {SHARED, CORE_MLP}
CASES = {
    "baseline": ((), CORE_SETS),
    "core batch with a companion": (("lisp",), CORE_SETS | {module_set("lisp")}),
    "core not trained": (("lisp",), {module_set("lisp")}),
    "two modules, one trained": (("lisp", "virology"), {module_set("lisp")}),
    "core MLP alone": ((), {CORE_MLP}),
    "shared alone": (("lisp",), {SHARED}),
    "embeddings and a module": (("lisp", "virology"), {EMBEDDINGS, module_set("lisp")}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "spec", [{"kind": "mlp"}, {"kind": "lora"}, {"kind": "reserved", "num_heads": 1}]
)
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hardware_flops_equal_torchs_counter(architecture, case, spec, backward):
    active, trained = CASES[case]
    config = tiny.model_config(num_layers=3)
    modules = tuple(dataclasses.replace(m, width=6, **spec) for m in config.modules)
    config = dataclasses.replace(config, modules=modules, architecture=architecture)
    model = build(config, tiny.initial_weights(config, 0))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(config, name, trained))
    tokens = torch.zeros(2, tiny.SEQ_LEN, dtype=torch.long)
    has_fast_code()  # whose try, once a process, would be counted too
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = cross_entropy(model(tokens, dict.fromkeys(active, 1.0)), tokens)
        if backward:
            loss.backward()
    modules = [d for d in tiny.DOMAINS if module_set(d) in trained]
    sets = SHARED in trained, CORE_MLP in trained, modules, backward, EMBEDDINGS in trained
    counted = hardware_flops(config, 2, active, *sets)
    assert counted == counter.get_total_flops()


def test_compute_units_are_tokens_times_active_parameters():
    config = tiny.model_config()
    model = build(config, tiny.initial_weights(config, 0))
    in_module = sum(p.numel() for n, p in model.named_parameters() if ".aux.lisp." in n)
    whole = sum(p.numel() for p in model.parameters())
    assert active_parameters(config) == whole - 2 * in_module
    assert compute_units(config, 10, ["lisp"]) == 10 * (whole - in_module)


def test_modules_of_unequal_width_are_counted_by_their_own():
    """2 layers of width 16: an MLP of w units has 2 x (2 x 16 w + w + 16), without the 16 if it is
    reserved; LoRAs of rank w on 32 units 2 x 2 w x 48; two heads of 4 and a key-value head 2 x 16 x
    4 x (2 x 2 + 2)."""
    modules = (
        ModuleSpec("art", "mlp", 8),
        ModuleSpec("lisp", "mlp", 24),
        ModuleSpec("maths", "lora", 3),
        ModuleSpec("music", "reserved", 8),
        ModuleSpec("poems", "reserved", 8, 2),
    )
    config = dataclasses.replace(tiny.model_config(), modules=modules)
    counts = {"art": 2 * (256 + 24), "lisp": 2 * (768 + 40), "maths": 4 * 3 * 48, "music": 2 * 264}
    counts["poems"] = 2 * (264 + 16 * 4 * 6)
    assert {domain: module_parameters(config, domain) for domain in counts} == counts
    extra = active_parameters(config, ["lisp", "maths"]) - active_parameters(config)
    assert extra == counts["lisp"] + counts["maths"]


def test_shares_of_companions():
    """Of two modules a random subset holds each in half of the cases, and in half of the quarter
    that is empty."""
    modules = ("lisp", "virology")
    one = lambda **parts: companion_shares(RoutingConfig(0.5, 0.3, **parts), modules)
    assert one() == {"lisp": 0.5, "virology": 0.5}
    assert one(companion_weights=(("lisp", 1.0), ("virology", 3.0))) == {
        "lisp": 0.25,
        "virology": 0.75,
    }
    assert one(companions="all") == {"lisp": 1.0, "virology": 1.0}
    assert one(companions="subset") == {"lisp": 0.625, "virology": 0.625}
