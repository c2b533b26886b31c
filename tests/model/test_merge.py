"""A view as one dense model has the view's logits."""

import dataclasses

import pytest
import torch

from gram_platform.config import ModelConfig, ModuleSpec
from gram_platform.config.training import ARCHITECTURES, merge_config
from gram_platform.model.pieces import rank_rows
from gram_platform.model.transformer import build
from gram_platform.store.views import merge_rows
from tests import tiny
from tests.tiny import merged_weights


def randomised(config: ModelConfig):
    """A model without a zero in it, so that a forgotten term would show; weights and model."""
    generator = torch.Generator().manual_seed(1)
    weights = {
        n: torch.randn(w.shape, generator=generator) * 0.2
        for n, w in tiny.initial_weights(config, 0)
    }
    return weights, build(config, weights.items()).eval()


def config_of(*kinds: str, architecture: str = ModelConfig.architecture) -> ModelConfig:
    specs = {"mlp": ("mlp", 8), "lora": ("lora", 3), "reserved": ("reserved", 5)}
    specs |= {"head": ("reserved", 5, 1), "heads": ("reserved", 5, 2)}
    named = zip(("a", "b", "c"), kinds, strict=False)
    modules = tuple(ModuleSpec(domain, *specs[kind]) for domain, kind in named)
    return dataclasses.replace(tiny.model_config(False), modules=modules, architecture=architecture)


KINDS = [("mlp",) * 3, ("lora",) * 3, ("lora", "mlp", "lora"), ("reserved", "mlp", "reserved")]
KINDS += [("head", "lora", "heads")]
ACTIVE = [{}, {"a": 1.0}, {"a": 0.5}, {"a": 1.0, "b": 1.0}, {"a": 0.25, "b": 2.0, "c": 1.0}]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_merged_logits_equal_the_routed_models(architecture, kinds, active):
    config = config_of(*kinds, architecture=architecture)
    weights, model = randomised(config)
    dense = merge_config(config, active)
    merged = build(dense, merged_weights(config, weights, active).items())
    tokens = torch.arange(tiny.SEQ_LEN)[None]
    assert torch.allclose(model(tokens, active), merged(tokens), atol=2e-5)
    assert dense.modules == ()
    assert dense.head_dim == config.head_dim
    widths = sum(m.width for m in config.modules if m.kind != "lora" and m.domain in active)
    assert dense.d_mlp == config.d_mlp + widths


@torch.no_grad()
def test_experts_without_a_core_mlp():
    modules = tuple(ModuleSpec(d, "mlp", 8) for d in ("core", "lisp"))
    config = dataclasses.replace(tiny.model_config(False), d_mlp=0, modules=modules)
    weights, model = randomised(config)
    tokens = torch.arange(tiny.SEQ_LEN)[None]
    for domain in ("core", "lisp"):
        dense = merge_config(config, {domain: 1.0})
        merged = build(dense, merged_weights(config, weights, {domain: 1.0}).items())
        assert torch.allclose(model(tokens, {domain: 1.0}), merged(tokens), atol=2e-5)


def test_merging_leaves_the_weights_alone():
    config = config_of("lora", "mlp")
    weights, _ = randomised(config)
    before = {n: w.clone() for n, w in weights.items()}
    merged_weights(config, weights, {"a": 0.5, "b": 0.5})
    assert all(torch.equal(before[n], weights[n]) for n in before)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_a_fresh_lora_changes_nothing(architecture):
    config = config_of("lora", architecture=architecture)
    model = build(config, tiny.initial_weights(config, 0))
    tokens = torch.arange(tiny.SEQ_LEN)[None]
    assert torch.equal(model(tokens, {"a": 1.0}), model(tokens))


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_rows_are_the_merged_tensors_rows(architecture, kinds, active):
    """Bit for bit, for each of 1, 3 and 50 ranks: rows of one owner, of two, and none."""
    config = config_of(*kinds, architecture=architecture)
    weights, _ = randomised(config)

    def read(name, first, stop):
        assert 0 <= first <= stop <= len(weights[name])
        return weights[name][first:stop]

    for name, merged in merged_weights(config, weights, active).items():
        for num_ranks in (1, 3, 50) if ".mlp." in name or ".attn." in name else ():
            for rank in range(num_ranks):
                first, stop = rank_rows(len(merged), rank, num_ranks)
                assert torch.equal(
                    merge_rows(config, read, active, name, first, stop), merged[first:stop]
                ), name
