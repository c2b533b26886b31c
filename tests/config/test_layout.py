"""What training and the planner must decide alike."""

import dataclasses

import pytest

from gram_platform.config import ModuleSpec
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.config.layout import evaluation_batch, num_shards, sharing_of
from tests import tiny


def test_the_batch_of_an_evaluation_is_what_it_was():
    """Rounding depends on it, so another batch gives other losses: 64 MiB of float32 logits on a
    CPU, or 2 GiB."""
    model = tiny.model_config()  # 16 tokens, 64 entries: 4 KiB a sequence
    assert [evaluation_batch(model, device) for device in ("cpu", "cuda", "cuda:3", "meta")] == [
        16_384,
        524_288,
        524_288,
        16_384,
    ]
    large = PAPER_SIZES["800M"].dense()  # 1,024 tokens, 50,304 entries: 206 MB a sequence
    assert (evaluation_batch(large), evaluation_batch(large, "cuda")) == (1, 10)


def test_ranks_of_several_machines_share_weights_within_a_machine():
    numbers = [1, 4, 8, 12, 16, 24]
    assert [num_shards(number, "cuda") for number in numbers] == [1, 4, 8, 12, 8, 8]
    assert [num_shards(number, "cpu") for number in numbers] == numbers


def shared(model, precision):
    return sharing_of(model, precision, 4, "cpu")


def test_small_models_stay_gathered_and_large_ones_reduce_in_every_pass():
    """At most 1 GiB of weights; above 4 GiB of float32 gradients."""
    dense = {name: size.dense() for name, size in PAPER_SIZES.items()}
    for precision, smallest_apart in (("bfloat16", "800M"), ("float32", "400M")):
        kept = [name for name, model in dense.items() if shared(model, precision).keeps_gathered]
        assert kept == list(dense)[: list(dense).index(smallest_apart)]
        assert [
            name for name, model in dense.items() if shared(model, precision).reduces_every_pass
        ] == ["2B", "5B"]
    with_lora = PAPER_SIZES["50M"].modular(("core", "lisp"), "lora")
    assert shared(with_lora, "bfloat16").reduces_every_pass
    assert not shared(with_lora, "float32").reduces_every_pass


@pytest.mark.parametrize(
    ("name", "kind", "width", "precision", "is_apart"),
    [
        ("50M", "mlp", 128, "float32", False),
        ("50M", "mlp", 128, "bfloat16", True),  # its gradients wait for a window's end
        ("2B", "mlp", 896, "bfloat16", False),  # reduces in every pass
        ("2B", "mlp", 2048, "bfloat16", True),  # 2 x 2,304 x 2,048 is above 2^23 parameters
        ("50M", "mlp", 11_000, "float32", True),
        ("50M", "lora", 128, "bfloat16", False),
        ("50M", "lora", 11_000, "float32", False),
    ],
)
def test_modules_that_are_gathered_apart(name, kind, width, precision, is_apart):
    module = ModuleSpec("lisp", kind, width)
    model = dataclasses.replace(PAPER_SIZES[name].dense(), modules=(module,))
    assert shared(model, precision).own_groups == ({"lisp"} if is_apart else set())
