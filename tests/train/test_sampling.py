"""Continuations: reading bit by bit gives the logits of reading at once, and draws follow the
distribution."""

import pytest
import torch

from gram_platform.config import ModuleSpec
from gram_platform.model.transformer import build
from gram_platform.train.evaluate import draw, kv_cache, sample_continuations, uniforms
from tests import tiny
from tests.refused import refused

ACTIVE = {"lisp": 1.0, "virology": 0.5}


@pytest.fixture(scope="module", params=["mlp", "lora", "heads"])
def model(request):
    """Random weights, of both kinds of module; LoRAs' second factors are zero unless they are
    filled."""
    kind = {"heads": ("reserved", 4, 1)}.get(request.param, (request.param, 4))
    specs = tuple(ModuleSpec(domain, *kind) for domain in ACTIVE)
    config = tiny.model_config(modular=False)
    config = type(config)(**{**vars(config), "modules": specs})
    model = build(config, tiny.initial_weights(config, seed=1)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(
            0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
        )
    return model


@torch.no_grad()
def test_bit_by_bit_is_at_once(model):
    tokens = torch.randint(
        0, tiny.VOCAB, (3, tiny.SEQ_LEN), generator=torch.Generator().manual_seed(0)
    )
    at_once = model(tokens, ACTIVE)
    with kv_cache(model):
        parts = [model(tokens[:, :5], ACTIVE)] + [
            model(tokens[:, t : t + 1], ACTIVE) for t in range(5, tiny.SEQ_LEN)
        ]
    assert torch.allclose(torch.cat(parts, dim=1), at_once, atol=1e-5)
    assert torch.equal(model(tokens, ACTIVE), at_once)  # the model is as it was


@torch.no_grad()
def test_a_continuation_is_what_the_whole_model_would_draw(model):
    prompts = torch.arange(6).reshape(2, 3)
    numbers = torch.stack([uniforms(10, 0, "lisp", document) for document in range(2)])
    tokens, surprisals = sample_continuations(model, prompts, numbers, ACTIVE, temperature=0.7)
    again, _ = sample_continuations(model, prompts, numbers, ACTIVE, temperature=0.7)
    assert torch.equal(tokens, again)
    read = prompts
    for step in range(10):
        expected, surprisal = draw(model(read, ACTIVE)[:, -1], numbers[:, step], temperature=0.7)
        assert torch.equal(tokens[:, step], expected)
        assert torch.allclose(surprisals[:, step], surprisal, atol=1e-4)
        read = torch.cat([read, expected[:, None]], dim=1)


def test_what_does_not_fit_the_context_is_refused(model):
    numbers = uniforms(tiny.SEQ_LEN, 0)[None]
    with refused("continuations.num_tokens"):
        sample_continuations(model, torch.zeros(1, 2, dtype=torch.int64), numbers, {})
    tokens, _ = sample_continuations(model, torch.zeros(1, 1, dtype=torch.int64), numbers, {})
    assert tokens.shape == (1, tiny.SEQ_LEN)


def test_draws_have_the_frequencies_of_the_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]])
    numbers = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    tokens, surprisals = draw(logits.expand(10_000, 5), numbers)
    frequencies = torch.bincount(tokens, minlength=5) / 10_000
    expected = torch.softmax(logits[0], dim=0)
    assert torch.allclose(frequencies, expected, atol=2e-4)
    assert torch.allclose(surprisals, -expected.double().log()[tokens], atol=1e-6)


def test_random_numbers_depend_on_their_names_alone():
    assert torch.equal(uniforms(8, 0, "lisp", 1), uniforms(8, 0, "lisp", 1))
    assert torch.equal(uniforms(4, 0, "lisp", 1), uniforms(8, 0, "lisp", 1)[:4])
    assert not torch.equal(uniforms(8, 0, "lisp", 1), uniforms(8, 1, "lisp", 1))
    assert ((uniforms(1000, 3) >= 0) & (uniforms(1000, 3) < 1)).all()
