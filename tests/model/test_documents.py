"""Attention that ends where a document ends."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from gram_platform.config import ModuleSpec
from gram_platform.model.kernels import QUERIES_AT_ONCE, attention
from gram_platform.model.layers import Rows
from gram_platform.model.transformer import build, document_mask
from gram_platform.train.objectives import token_cross_entropy
from tests import tiny
from tests.model.test_kernels import gradients, heads

END = 0


def model(document_end: int, seq_len: int = 48):
    config = dataclasses.replace(tiny.model_config(), seq_len=seq_len, document_end=document_end)
    return build(
        config, tiny.initial_weights(dataclasses.replace(config, init_std=0.3), 0)
    ).requires_grad_(True)


def packed(lengths=(7, 20, 1, 21)) -> tuple[torch.Tensor, list[slice]]:
    """tokens [1, T + 1] of documents that each end with END, and where they lie."""
    generator = torch.Generator().manual_seed(0)
    parts, places, first = [], [], 0
    for length in lengths:
        parts.append(
            torch.cat(
                [
                    torch.randint(1, tiny.VOCAB, (length - 1,), generator=generator),
                    torch.tensor([END]),
                ]
            )
        )
        places.append(slice(first, first + length))
        first += length
    return torch.cat(parts)[None], places


def test_packed_documents_have_the_losses_of_separate_ones():
    tokens, places = packed()
    masked = model(END)
    together = token_cross_entropy(masked(tokens[:, :-1], {"lisp": 1.0}), tokens[:, 1:])
    for place in (p for p in places if p.stop - p.start > 1):
        own = tokens[:, place]
        alone = token_cross_entropy(masked(own[:, :-1], {"lisp": 1.0}), own[:, 1:])
        inside = together[:, place.start : place.stop - 1]
        torch.testing.assert_close(inside, alone, rtol=1e-6, atol=1e-6)
    crossing = token_cross_entropy(model(-1)(tokens[:, :-1], {"lisp": 1.0}), tokens[:, 1:])
    assert (crossing - together)[:, places[1]].abs().max() > 1e-3  # without the mask they differ


@torch.no_grad()
def test_heads_of_some_sequences_see_their_own_documents():
    config = dataclasses.replace(model(END).config, modules=(ModuleSpec("lisp", "reserved", 4, 2),))
    routed = build(config, tiny.initial_weights(dataclasses.replace(config, init_std=0.3), 0))
    tokens = torch.cat([packed(p)[0] for p in ((7, 20, 1, 21), (20, 7, 22), (1, 48))])[:, :-1]
    expected = [routed(tokens[n : n + 1], {"lisp": 1.0} if n != 1 else {}) for n in range(3)]
    found = routed(tokens, {"lisp": Rows(torch.tensor([2, 0]), None)})
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_separate_documents():
    tokens, places = packed()
    masked, apart = model(END), model(END)
    losses = token_cross_entropy(masked(tokens[:, :-1]), tokens[:, 1:])
    inside = torch.cat([losses[:, p.start : p.stop - 1] for p in places], dim=1)
    inside.sum().backward()
    for place in places:
        own = tokens[:, place]
        if own.shape[1] > 1:
            token_cross_entropy(apart(own[:, :-1]), own[:, 1:]).sum().backward()
    for (name, one), (_, other) in zip(
        masked.named_parameters(), apart.named_parameters(), strict=True
    ):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=2e-5, msg=name)


def test_a_query_sees_its_own_document_up_to_itself():
    seen = document_mask(torch.tensor([[5, 0, 6, 7, 0, 8]]), END, torch.float32)[0] == 0
    assert seen.tolist() == [
        [True, False, False, False, False, False],
        [True, True, False, False, False, False],
        [False, False, True, False, False, False],
        [False, False, True, True, False, False],
        [False, False, True, True, True, False],
        [False, False, False, False, False, True],
    ]
    assert document_mask(torch.tensor([[5, 0]]), -1, torch.float32) is None


@pytest.mark.parametrize("shape", [(2, QUERIES_AT_ONCE + 41, 8, 2, 16), (5, 24, 4, 1, 16)])
def test_the_fast_form_on_a_cpu_and_its_gradients(shape):
    *inputs, grad = heads(shape)
    tokens = torch.randint(0, 12, (shape[0], shape[1]), generator=torch.Generator().manual_seed(1))

    def ours(q, k, v):
        return attention(q, k, v, True, document_mask(tokens, END, q.dtype))

    def torchs(q, k, v):
        mask = document_mask(tokens, END, q.dtype)[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    exact = gradients(torchs, inputs, grad, torch.float64)
    for dtype, tolerance in ((torch.bfloat16, 0.008), (torch.float32, 1e-6)):
        for mine, value in zip(gradients(ours, inputs, grad, dtype), exact, strict=True):
            assert mine.dtype == dtype
            assert (mine - value).norm() <= tolerance * value.norm() + 1e-3 * tolerance
