"""The planner's memory against the bytes that training really allocates."""

import dataclasses
import functools
import gc
import itertools
from collections import Counter

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gram_platform.config import EvalPoints, Objective, RoutingConfig, View, layout
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.config.layout import model_kernel
from gram_platform.config.routing import EMBEDDINGS, Schedule, passes_of_window
from gram_platform.planner import checkpoint_bytes
from gram_platform.planner.memory import (
    BYTES,
    count_saved_bytes,
    logits_bytes,
    model_weights,
    module_set,
    rank_memory,
)
from gram_platform.train.evaluate import evaluation_batch, validation_losses
from gram_platform.train.learner import Learner
from gram_platform.train.loop import _run_pass
from gram_platform.train.objectives import (
    cross_entropy,
    distillation_kl,
    maxent_entropy,
    maxent_kl,
)
from gram_platform.train.sharding import ShardedLearner
from tests import tiny
from tests.allocations import Allocations
from tests.planner.scene import CORE_SETS, DOMAINS, MODELS, model, run_of

SAVED = {
    "baseline": ("dense", (), CORE_SETS),
    "companion": ("gram", ("lisp",), CORE_SETS | {module_set("lisp")}),
    "core not trained": ("gram", ("lisp",), {module_set("lisp")}),
    "all modules": (
        "gram",
        ("lisp", "virology"),
        CORE_SETS | {module_set("lisp"), module_set("virology")},
    ),
    "expert": ("demix", ("core",), CORE_SETS | {module_set("core")}),
    "lora": ("lora", ("lisp",), CORE_SETS | {module_set("lisp")}),
    "lora on a frozen base": ("lora", ("lisp",), {module_set("lisp")}),
    "llama": ("llama", ("lisp",), CORE_SETS | {module_set("lisp")}),
    "llama, core not trained": ("llama", ("lisp", "virology"), {module_set("lisp")}),
    "llama, lora on a frozen base": ("llama lora", ("lisp",), {module_set("lisp")}),
    "embeddings and a module": (
        "gram",
        ("lisp", "virology"),
        {EMBEDDINGS, module_set("lisp")},
    ),
    "heads of modules": ("sgtm heads", ("lisp",), CORE_SETS | {module_set("lisp")}),
    "heads, core not trained": ("sgtm heads", ("lisp", "virology"), {module_set("lisp")}),
    "heads and embeddings": (
        "sgtm heads",
        ("lisp", "virology"),
        {EMBEDDINGS, module_set("lisp")},
    ),
    "keys not shared": ("one key head a head", ("lisp",), CORE_SETS | {module_set("lisp")}),
}


def saved_by_autograd(run, active, trained, device="cpu", is_compiled=False, with_loss=True) -> int:
    """Bytes of the distinct storages that a forward pass saves, weights and buffers left out."""
    learner, kept = Learner(run, device, compiled=is_compiled), {}
    own = {
        t.untyped_storage()._cdata for t in [*learner.model.parameters(), *learner.model.buffers()]
    }

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    shape = (run.micro_batch, run.model.seq_len + 1)
    tokens_BT = torch.randint(0, run.model.vocab_size, shape, device=device)
    learner.train_only(frozenset(trained))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits_BTV = learner.forward(tokens_BT[:, :-1], dict.fromkeys(active, 1.0))
        if with_loss:
            cross_entropy(logits_BTV, tokens_BT[:, 1:])
    assert not (is_compiled and learner.compilation.has_failed)
    return sum(storage.nbytes() for storage in kept.values())


def saved_on(device, run, active, trained) -> tuple[list[int], int]:
    width = BYTES[run.precision]
    return count_saved_bytes(
        run.model, width, active, trained, model_kernel(device, width, run.model)
    )


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("case", SAVED)
def test_activations_are_what_autograd_saves(case, precision):
    name, active, trained = SAVED[case]
    run = run_of(name, precision=precision)
    layers, outside = saved_on("cpu", run, active, trained)
    expected = run.micro_batch * run.model.seq_len * (sum(layers) + outside)
    assert expected == pytest.approx(saved_by_autograd(run, active, trained), rel=0.02)


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("case", ["baseline", "companion", "lora on a frozen base"])
def test_with_a_mask_of_documents_the_mask_is_saved_once(case, precision):
    name, active, trained = SAVED[case]
    run = run_of(name, precision=precision)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, document_end=0))
    layers, outside = saved_on("cpu", run, active, trained)
    expected = run.micro_batch * run.model.seq_len * (sum(layers) + outside)
    assert expected == pytest.approx(saved_by_autograd(run, active, trained), rel=0.02)


def gpu_attention(query, key, value, enable_gqa, is_causal=False, attn_mask=None):
    """The GPU kernel's shapes, on the meta device, where torch without CUDA would choose plain
    products."""
    if enable_gqa or (query.dtype == torch.bfloat16 and attn_mask is None):
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, is_causal
        )[0]
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, 0.0, is_causal
    )[0]


@pytest.mark.parametrize("document_end", [-1, 0])
@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("case", SAVED)
def test_activations_are_what_the_kernels_of_gpus_save(case, precision, document_end, monkeypatch):
    """Heads of 8 of bfloat16, and of 4 of float32, are aligned."""
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", gpu_attention)
    name, active, trained = SAVED[case]
    run = run_of(name, precision=precision)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, document_end=document_end))
    layers, outside = saved_on("cuda", run, active, trained)
    expected = run.micro_batch * run.model.seq_len * (sum(layers) + outside)
    assert expected == pytest.approx(saved_by_autograd(run, active, trained, "meta"), rel=0.02)


@pytest.mark.parametrize("precision", BYTES)
def test_the_layers_that_rmu_compares_with_are_counted(precision):
    objective = Objective("misdirection", ("lisp", "virology"), steered_layers=1, steering=2.0)
    parts = {"draws": (48, 24, 24), "precision": precision, "start": View.of("start")}
    run = tiny.run_config(False, objective=objective, **parts)
    plain, steered = rank_memory(tiny.run_config(False, **parts), 1), rank_memory(run, 1)
    frozen = Learner(run).misdirection.run_frozen.__self__
    masters = sum(p.numel() for p in frozen.masters.values())
    assert masters < sum(w.num_values for w in model_weights(run.model))
    assert steered.weights - plain.weights == 4 * masters
    copies = 0 if precision == "float32" else sum(p.nbytes for p in frozen.model.parameters())
    assert steered.copies - plain.copies == copies


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("number", [1, 2])
def test_the_peak_of_a_distillation(number, precision):
    """A pass of several micro-batches needs less than predicted, because their losses' gradients do
    not exist at the same time."""
    objective = Objective("distillation", noise=0.5, noise_scale=0.1)
    parts = {"precision": precision, "objective": objective, "start": View.of("start")}
    run = run_of("dense", passes=2 * number, **parts)
    memory = dataclasses.replace(rank_memory(run, 1, num_merged=number), evaluation=0)
    learner = functools.partial(Learner, num_merged=number)
    surplus = memory.total / measured_peak(learner, run) - 1.0
    assert -0.07 < surplus < {1: 0.07, 2: 0.2}[number]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "objective", ["cross_entropy", "maxent_kl", "maxent_entropy", "distillation"]
)
def test_logits_at_their_peak(objective, dtype):
    config, num_tokens = model(), 64
    hidden_BTD = torch.randn(1, num_tokens, 1, dtype=dtype, requires_grad=True)
    head = torch.nn.Linear(1, config.vocab_size, bias=False, dtype=dtype)
    targets_BT = torch.zeros(1, num_tokens, dtype=torch.long)
    with Allocations() as bytes_of:
        taught_BTV = head(hidden_BTD).detach() if objective == "distillation" else None
        logits_BTV = head(hidden_BTD)
        scored_BTV = logits_BTV if taught_BTV is None else logits_BTV.detach()
        loss = cross_entropy(scored_BTV, targets_BT)
        other = {"maxent_kl": maxent_kl, "maxent_entropy": maxent_entropy}.get(objective)
        if taught_BTV is not None:
            loss = distillation_kl(logits_BTV, taught_BTV)
        (loss if other is None else other(logits_BTV)).backward()
    expected = logits_bytes(config, dtype.itemsize, objective, num_tokens)
    assert expected == pytest.approx(bytes_of.peak, rel=0.02)


def micro_steps(learner, run, plan, step, num_ranks=1):
    window = plan.window(step)
    passes = passes_of_window(window, learner.num_merged)
    for group in passes:
        shape = (len(group) * run.micro_batch // num_ranks, run.model.seq_len + 1)
        for is_last, part_BT in learner.passes(torch.randint(0, run.model.vocab_size, shape)):
            is_last, num_losses = is_last and group is passes[-1], len(window) * learner.num_passes
            _run_pass(learner, group, num_losses, is_last, part_BT)
        yield tuple(group)


def measured_peak(learner_class, run, num_ranks=1, num_steps=6) -> int:
    """Peak bytes of training steps, tables of the rotary embedding left out."""
    plan, peak = Schedule(run), 0
    gc.collect()
    gc.freeze()  # so that collecting after every step looks at this test's objects alone
    with Allocations() as bytes_of:
        learner = learner_class(run)
        gc.collect()
        for step in range(num_steps):
            bytes_of.peak = bytes_of.live
            Counter(micro_steps(learner, run, plan, step, num_ranks))
            learner.clip()
            learner.step(1e-3)
            gc.collect()
            peak = max(peak, bytes_of.peak)
    gc.unfreeze()
    return peak - sum(b.nbytes for b in learner.model.buffers())


# Each model once, three of them with more passes and in bfloat16 too; the other cases are slow.
QUICK = {
    *((name, 1, "float32") for name in MODELS),
    *((name, 3, "bfloat16") for name in ("dense", "gram", "lora")),
}
CASES_OF_ONE = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in itertools.product(MODELS, (1, 3), BYTES)
]


@pytest.mark.parametrize(("name", "passes", "precision"), CASES_OF_ONE)
def test_the_peak_of_one_process(name, passes, precision):
    run = run_of(name, passes=passes, precision=precision)
    memory = dataclasses.replace(rank_memory(run, 1), evaluation=0)
    assert memory.total == pytest.approx(measured_peak(Learner, run), rel=0.06)


@pytest.mark.parametrize("precision", BYTES)
def test_the_peak_of_several_passes_a_micro_batch(precision):
    run = run_of("gram", passes=1, precision=precision)
    memory = dataclasses.replace(rank_memory(run, 1, num_passes=2), evaluation=0)
    assert memory.total == pytest.approx(
        measured_peak(functools.partial(Learner, num_passes=2), run), rel=0.06
    )
    assert memory.activations == rank_memory(run, 1).activations // 2


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize(
    ("name", "number"), [("dense", 3), ("gram", 2), ("gram", 6), ("llama lora", 6), ("demix", 3)]
)
def test_the_peak_of_mixed_passes(name, number, precision):
    run = run_of(name, passes=6, precision=precision)
    memory = dataclasses.replace(rank_memory(run, 1, num_merged=number), evaluation=0)
    assert memory.total == pytest.approx(
        measured_peak(functools.partial(Learner, num_merged=number), run), rel=0.07
    )
    # A window of one pass accumulates no gradients.
    assert (memory.gradients == 0) == (number == 6)


SLOW = (("dense", 2), ("gram", 5), ("demix", 2))
SHARDED = [
    ("gram", 2),
    ("lora", 2),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
]


KEPT = [(1, "float32", layout.KEPT_BYTES), (3, "bfloat16", 0)]
KEPT += [
    pytest.param(passes, precision, kept_bytes, marks=pytest.mark.slow)
    for passes, precision, kept_bytes in itertools.product((1, 3), BYTES, (0, layout.KEPT_BYTES))
    if (passes, precision, kept_bytes) not in KEPT
]


@pytest.mark.parametrize(("passes", "precision", "kept_bytes"), KEPT)
@pytest.mark.parametrize(("name", "num_ranks"), SHARDED)
def test_the_peak_of_a_rank(name, num_ranks, passes, precision, kept_bytes, as_rank, monkeypatch):
    monkeypatch.setattr(layout, "KEPT_BYTES", kept_bytes)
    as_rank(0, num_ranks)
    run = run_of(name, micro_batch=4 * num_ranks, passes=passes, precision=precision)
    for merged in dict.fromkeys((1, passes)):
        memory = rank_memory(run, num_ranks, num_merged=merged)
        total = dataclasses.replace(memory, evaluation=0).total
        learner = functools.partial(ShardedLearner, num_merged=merged)
        assert total == pytest.approx(measured_peak(learner, run, num_ranks), rel=0.10), merged


def gradient_bytes(learner) -> int:
    """Of the sharded gradients, and of the whole ones that wait for the window's last
    micro-batch."""
    masters = [p for named in learner.master_sets.values() for p in named.values()]
    sharded = sum(p.grad._local_tensor.nbytes for p in masters if p.grad is not None)
    states = (
        m._get_fsdp_state()._fsdp_param_group
        for m in learner.model.modules()
        if hasattr(m, "_get_fsdp_state")
    )
    waiting = 0
    for parameter in (
        p for group in dict.fromkeys(states) if group is not None for p in group.fsdp_params
    ):
        whole = parameter.unsharded_accumulated_grad
        if whole is None and hasattr(parameter, "_unsharded_param"):
            whole = parameter._unsharded_param.grad
        waiting += whole.nbytes if whole is not None else 0
    return sharded + waiting


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("precision", BYTES)
def test_what_a_rank_keeps_is_exact(rank, precision, as_rank):
    """Weights, optimizer states and gradients of uneven shards: d_model 32 and widths of 16 on 5
    ranks."""
    num_ranks = 5
    as_rank(rank, num_ranks)
    run = run_of(
        "gram",
        micro_batch=num_ranks,
        precision=precision,
        routing=RoutingConfig(1.0, 1.0, "uniform"),
    )
    memory = rank_memory(run, num_ranks)
    weights = model_weights(run.model)
    plan = Schedule(run)
    learner = None
    learner, kept = ShardedLearner(run), []
    for step in range(10):
        kept += [gradient_bytes(learner) for _ in micro_steps(learner, run, plan, step, num_ranks)]
        learner.step(1e-3)
    assert (
        sum(p._local_tensor.untyped_storage().nbytes() for p in learner.model.parameters())
        == memory.weights
    )
    states = [
        state for optimizer in learner.optimizers.values() for state in optimizer.state.values()
    ]
    slots = [getattr(slot, "_local_tensor", slot) for state in states for slot in state.values()]
    assert sum(slot.nbytes for slot in slots) == sum(
        8 * w.shard(rank, num_ranks) + 4 for w in weights
    )
    assert memory.optimizer == sum(8 * w.shard(0, num_ranks) + 4 for w in weights)
    trained = [w for w in weights if w.set in CORE_SETS | {module_set("lisp")}]
    # Gradients are whole on every rank.
    assert max(kept) == memory.gradients == sum(4 * w.num_values for w in trained)
    assert min(kept) == sum(4 * w.shard(rank, num_ranks) for w in trained)  # once they are reduced


CASES = [("lora", "float32", False), ("lora", "bfloat16", False), ("gram", "bfloat16", False)]
CASES += [("gram", precision, True) for precision in BYTES]


@pytest.mark.parametrize(("name", "precision", "is_large"), CASES)
def test_what_a_rank_keeps_of_gradients(name, precision, is_large, as_rank, monkeypatch):
    """LoRAs in bfloat16, and large models, are reduced in every pass; else whole gradients wait for
    a window's end."""
    monkeypatch.setattr(layout, "LARGE_GRADIENTS_BYTES", 0 if is_large else 2**40)
    as_rank(0, 2)
    run = run_of(
        name, micro_batch=2, precision=precision, routing=RoutingConfig(1.0, 1.0, "uniform")
    )
    learner, plan, kept = ShardedLearner(run), Schedule(run), []
    for step in range(6):
        kept += [gradient_bytes(learner) for _ in micro_steps(learner, run, plan, step, 2)]
        learner.step(1e-3)
    trained = [w for w in model_weights(run.model) if w.set in CORE_SETS | {module_set("lisp")}]
    are_rows = is_large or (name == "lora" and precision == "bfloat16")
    expected = sum(4 * (w.shard(0, 2) if are_rows else w.num_values) for w in trained)
    assert max(kept) == rank_memory(run, 2).gradients == expected


def test_a_frozen_base_has_no_optimizer_states_and_no_gradients():
    run = run_of("lora", routing=RoutingConfig(1.0, 0.0, freeze_core=True))
    memory = rank_memory(run, 1)
    loras = [w for w in model_weights(run.model) if w.set not in CORE_SETS]
    assert memory.optimizer == sum(8 * w.num_values + 4 for w in loras)
    assert memory.gradients == sum(4 * w.num_values for w in loras)
    assert checkpoint_bytes(run) == memory.weights + memory.optimizer


@pytest.mark.parametrize("precision", BYTES)
def test_activation_checkpointing_keeps_inputs_and_one_layer(precision):
    run = run_of("gram", passes=1, precision=precision, routing=RoutingConfig(1.0, 1.0))
    learner = Learner(run)
    for block in learner.model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    tokens_BT = torch.randint(0, run.model.vocab_size, (run.micro_batch, run.model.seq_len + 1))
    with Allocations() as bytes_of:
        loss = cross_entropy(learner.forward(tokens_BT[:, :-1], {"lisp": 1.0}), tokens_BT[:, 1:])
        gc.collect()
        num_logits = run.micro_batch * run.model.seq_len * run.model.vocab_size
        kept = bytes_of.live - BYTES[precision] * num_logits  # their gradient
        loss.backward()
    plain, checkpointed = rank_memory(run, 1), rank_memory(run, 1, checkpointing=True)
    assert checkpointed.activations == pytest.approx(kept, rel=0.05)
    assert (
        plain.activations - checkpointed.activations
        > 3 * checkpointed.recomputed - checkpointed.activations
    )
    # The loss's tensors and the inputs, or the weights' gradients beside one layer: both are in
    # `total`'s terms.
    fixed = checkpointed.weights + checkpointed.copies + checkpointed.optimizer
    assert bytes_of.peak <= 1.05 * (checkpointed.total - fixed)
    assert checkpointed.total < plain.total


def test_an_evaluation_may_need_more_than_a_small_models_training():
    run = run_of("dense", passes=1)
    points = dataclasses.replace(run.eval_points, num_points=1, num_sequences=100_000)
    run = dataclasses.replace(run, eval_points=points)
    memory = rank_memory(run, 1)
    assert (
        memory.evaluation
        == evaluation_batch(run.model) * run.model.seq_len * run.model.vocab_size * 8
    )
    assert memory.total == memory.weights + memory.optimizer + memory.evaluation


@pytest.mark.parametrize("kept_bytes", [0, pytest.param(2**30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", BYTES)
def test_an_evaluation_of_ranks_gathers_all_weights(precision, kept_bytes, as_rank, monkeypatch):
    """And frees them: afterwards a rank has what it had before."""
    monkeypatch.setattr(layout, "KEPT_BYTES", kept_bytes)
    as_rank(0, 4)
    run = run_of("gram", precision=precision, eval_points=EvalPoints(1, 4, tiny.DOMAINS))
    rows = torch.zeros(4, run.model.seq_len + 1, dtype=torch.uint16).numpy()
    with Allocations() as bytes_of:
        learner = ShardedLearner(run)
        gc.collect()
        bytes_of.peak = before = bytes_of.live
        validation_losses(learner, dict.fromkeys(tiny.DOMAINS, rows))
        gc.collect()
    assert bytes_of.live == before
    assert rank_memory(run, 4).evaluation == pytest.approx(bytes_of.peak - before, rel=0.05)


@pytest.mark.parametrize("name", ["400M", "800M", "2B", "5B"])
def test_gathering_for_an_evaluation_raises_no_peak_that_matters(name):
    """Only that of large models whose ranks keep little, and stays below half of an H100."""
    size = PAPER_SIZES[name]
    run = tiny.run_config(
        model=size.modular(DOMAINS),
        micro_batch=size.micro_batch,
        batch_size=size.batch_size,
        draws=(4 * size.batch_size, size.batch_size, size.batch_size),
        precision="bfloat16",
        eval_points=EvalPoints(1, 1000, tiny.DOMAINS),
    )
    for num_ranks in (n for n in (2, 4, 8, 16) if size.micro_batch % n == 0):
        memory = rank_memory(run, num_ranks, checkpointing=True, device="cuda")
        assert memory.total <= max(dataclasses.replace(memory, evaluation=0).total, 40e9)


@pytest.mark.parametrize(("case", "share"), [("companion", 1.0), ("llama", 0.75)])
def test_compiled_blocks_save_no_more(case, share):
    """The planner counts the eager form, in which a run goes on where compiling fails."""
    name, active, trained = SAVED[case]
    run = run_of(name, precision="bfloat16")
    eager, compiled = (
        saved_by_autograd(run, active, trained, is_compiled=is_compiled, with_loss=False)
        for is_compiled in (False, True)
    )
    assert compiled == eager if share == 1.0 else compiled < share * eager
