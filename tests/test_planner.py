"""The planner against the model, its sharding, and the bytes that training really allocates."""

import dataclasses
import functools
import gc
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from experiments.scaling import STUDY
from gram_platform import objectives
from gram_platform.config import UNLABELLED, DataConfig, DomainBudget, ModelConfig, ModuleSpec, RoutingConfig, Slice
from gram_platform.evaluate import LOGITS_BYTES, evaluation_batch
from gram_platform.flops import hardware_flops, total_parameters
from gram_platform.ladder import PAPER_SIZES
from gram_platform.methods.budgets import dense_run
from gram_platform.model.transformer import Transformer, parameter_set
from gram_platform.objectives import cross_entropy, maxent_entropy, maxent_kl
from gram_platform.planner import (
    AUTO,
    GIB,
    MACHINES,
    Machine,
    Ranks,
    checkpoint_bytes,
    fewest_ranks,
    fits,
    needs,
    placement,
    ranks_at_once,
    run_evaluation_flops,
    run_flops,
)
from gram_platform.planner.activations import LOGITS_AT_ONCE, logits_bytes, saved_bytes
from gram_platform.planner.memory import BYTES, EVALUATION_LOGITS_BYTES, possible_routes, rank_memory
from gram_platform.planner.weights import CORE_MLP, SHARED, model_weights, module_set
from gram_platform.routing import Plan
from gram_platform.simulate import SimulatedCluster, planned
from gram_platform.study.build import build_graph
from gram_platform.study.dry_run import describe, describe_on, planned_ranks
from gram_platform.study.flags import parse
from gram_platform.study.session import execution_of
from gram_platform.train import gathering
from gram_platform.train.learner import Learner
from gram_platform.train.loop import _micro_step
from gram_platform.train.sharding import ShardedLearner
from tests import tiny
from tests.allocations import Allocations

DOMAINS = ("core", "lisp", "virology", "nuclear", "cybersecurity")


def model(modules=(), d_mlp=128, num_kv_heads=2) -> ModelConfig:
    return ModelConfig(3, 32, 4, num_kv_heads, d_mlp, 1024, 32, modules)


def specs(kind, width, domains=tiny.DOMAINS[1:]) -> tuple[ModuleSpec, ...]:
    return tuple(ModuleSpec(d, kind, width) for d in domains)


MODELS = {
    "dense": model(),
    "gram": model(specs("mlp", 16)),
    "lora": model(specs("lora", 4)),
    "demix": model(specs("mlp", 64, tiny.DOMAINS), d_mlp=0),
    "one key head a head": model(specs("mlp", 16), num_kv_heads=4),
}
FIVE_B = PAPER_SIZES["5B"].modular(DOMAINS)


def run_of(name, micro_batch=4, passes=2, **parts):
    """A run with `passes` micro-batches a step; every domain often enough that every set steps."""
    window = micro_batch * passes
    sizes = {"micro_batch": micro_batch, "batch_size": window, "draws": (12 * window, 4 * window, 4 * window)}
    return tiny.run_config(model=MODELS[name], **{"routing": RoutingConfig(0.5, 0.5), **sizes, **parts})


# ----------------------------------------------------------------------------------- weights and their shards


@pytest.mark.parametrize("config", [*MODELS.values(), FIVE_B], ids=[*MODELS, "5B"])
def test_weights_are_the_models(config):
    with torch.device("meta"):
        real = {name: tuple(p.shape) for name, p in Transformer(config).named_parameters()}
    weights = model_weights(config)
    assert {w.name: w.shape for w in weights} == real
    assert len(weights) == len(real)
    assert all(w.set == parameter_set(w.name) for w in weights)
    assert sum(w.num_values for w in weights) == total_parameters(config)


@pytest.fixture
def as_rank():
    """Makes this process a rank of many whose collectives do nothing; what it holds is what a real rank holds."""

    def start(rank, num_ranks):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)

    yield start
    dist.destroy_process_group()


class OnlyPlaced(ShardedLearner):
    """A model with its sharding plan and no memory behind it."""

    def __init__(self, config):
        self.config, self.device = config, torch.device("cpu")
        self.placed, _ = self._build(())

    def _warm_up(self):
        pass


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 64), (42, 43)])
def test_shards_of_5b_are_its_sharding_plans(rank, num_ranks, as_rank, monkeypatch):
    monkeypatch.setattr(Transformer, "to_empty", lambda self, device: self)  # the parameters stay on the meta device
    as_rank(rank, num_ranks)
    placed = OnlyPlaced(tiny.run_config(model=FIVE_B)).placed
    for name, parameter in placed.named_parameters():
        weight = next(w for w in model_weights(FIVE_B) if w.name == name)
        local = parameter._local_tensor
        assert local.numel() == weight.shard(rank, num_ranks), name
        assert local.untyped_storage().nbytes() == 4 * weight.padded_shard(num_ranks), name


def test_more_ranks_than_rows():
    bias = next(w for w in model_weights(MODELS["gram"]) if w.name == "blocks.0.aux.lisp.c_fc.bias")
    held = [bias.shard(rank, 24) for rank in range(24)]
    assert held == [1] * 16 + [0] * 8
    assert bias.padded_shard(24) == 1


# -------------------------------------------------------------------------------------------------- routes


def routing_cases() -> dict:
    unlabelled = DomainBudget(UNLABELLED, 32, 32, (Slice("core", 40, 32),))
    partial = DataConfig("tiny", (DomainBudget("core", 24, 96), DomainBudget("lisp", 24, 64), unlabelled))
    return {
        "gram": run_of("gram"),
        "always a companion": run_of("gram", routing=RoutingConfig(1.0, 0.0)),
        "core always trained": run_of("gram", routing=RoutingConfig(0.0, 1.0)),
        "uniform": run_of("gram", routing=RoutingConfig(0.5, 0.5, "uniform")),
        "frozen core": run_of("lora", routing=RoutingConfig(1.0, 0.0, freeze_core=True)),
        "demix": run_of("demix", routing=RoutingConfig()),
        "dense": run_of("dense"),
        "partial labels": run_of("gram", data=partial),
    }


@pytest.mark.parametrize("case", routing_cases())
def test_possible_routes_are_those_that_plans_draw(case):
    run = routing_cases()[case]
    drawn = set()
    for seed in range(4):
        plan = Plan(dataclasses.replace(run, seed=seed))
        drawn |= {(tuple(d for d, _ in plan[t].route.active), plan[t].route.trained) for t in range(len(plan))}
    assert {(route.active, route.trained) for route in possible_routes(run)} == drawn


# --------------------------------------------------------------------------------------------- activations

CORE_SETS = {SHARED, CORE_MLP}
SAVED = {
    "baseline": ("dense", (), CORE_SETS),
    "companion": ("gram", ("lisp",), CORE_SETS | {module_set("lisp")}),
    "core not trained": ("gram", ("lisp",), {module_set("lisp")}),
    "all modules": ("gram", ("lisp", "virology"), CORE_SETS | {module_set("lisp"), module_set("virology")}),
    "expert": ("demix", ("core",), CORE_SETS | {module_set("core")}),
    "lora": ("lora", ("lisp",), CORE_SETS | {module_set("lisp")}),
    "lora on a frozen base": ("lora", ("lisp",), {module_set("lisp")}),
    "keys not shared": ("one key head a head", ("lisp",), CORE_SETS | {module_set("lisp")}),
}


def saved_by_autograd(run, active, trained) -> int:
    """Bytes of the distinct storages that a forward pass saves, weights and buffers left out."""
    learner, kept = Learner(run), {}
    own = {t.untyped_storage().data_ptr() for t in [*learner.model.parameters(), *learner.model.buffers()]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens_BT = torch.randint(0, run.model.vocab_size, (run.micro_batch, run.model.seq_len + 1))
    learner.train_only(frozenset(trained))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cross_entropy(learner.forward(tokens_BT[:, :-1], dict.fromkeys(active, 1.0)), tokens_BT[:, 1:])
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("case", SAVED)
def test_activations_are_what_autograd_saves(case, precision):
    name, active, trained = SAVED[case]
    run = run_of(name, precision=precision)
    saved = saved_bytes(run.model, BYTES[precision], active, trained)
    expected = run.micro_batch * run.model.seq_len * (sum(saved.layers) + saved.outside)
    assert expected == pytest.approx(saved_by_autograd(run, active, trained), rel=0.02)


def test_the_logits_in_float32_together_are_those_of_the_objective():
    assert objectives.LOGITS_AT_ONCE["cuda"] == LOGITS_AT_ONCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("objective", ["cross_entropy", "maxent_kl", "maxent_entropy"])
def test_logits_at_their_peak(objective, dtype):
    config, num_tokens = model(), 64
    hidden_BTD = torch.randn(1, num_tokens, 1, dtype=dtype, requires_grad=True)
    head = torch.nn.Linear(1, config.vocab_size, bias=False, dtype=dtype)
    targets_BT = torch.zeros(1, num_tokens, dtype=torch.long)
    with Allocations() as bytes_of:
        logits_BTV = head(hidden_BTD)
        loss = cross_entropy(logits_BTV, targets_BT)
        other = {"maxent_kl": maxent_kl, "maxent_entropy": maxent_entropy}.get(objective)
        (loss if other is None else other(logits_BTV)).backward()
    expected = logits_bytes(config, dtype.itemsize, objective, num_tokens)
    assert expected == pytest.approx(bytes_of.peak, rel=0.02)


# ------------------------------------------------------------------------------------------ a rank's memory


def micro_steps(learner, run, plan, step, num_ranks=1):
    for index, micro_batch in enumerate(plan.window(step)):
        shape = (run.micro_batch // num_ranks, run.model.seq_len + 1)
        tokens_BT = torch.randint(0, run.model.vocab_size, shape)
        is_last = index == run.micro_batches_per_step - 1
        _micro_step(learner, micro_batch, tokens_BT, run.micro_batches_per_step, is_last)
        yield index


def measured_peak(learner_class, run, num_ranks=1, num_steps=6) -> int:
    """Peak bytes of training steps, tables of the rotary embedding left out."""
    plan, peak = Plan(run), 0
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


@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_one_process(name, passes, precision):
    run = run_of(name, passes=passes, precision=precision)
    memory = dataclasses.replace(rank_memory(run, 1), evaluation=0)
    assert memory.total == pytest.approx(measured_peak(Learner, run), rel=0.06)


SLOW = (("dense", 2), ("gram", 5), ("demix", 2))
SHARDED = [("gram", 2), ("lora", 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize("kept_bytes", [0, gathering.KEPT_BYTES])
@pytest.mark.parametrize("precision", BYTES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize(("name", "num_ranks"), SHARDED)
def test_the_peak_of_a_rank(name, num_ranks, passes, precision, kept_bytes, as_rank, monkeypatch):
    monkeypatch.setattr(gathering, "KEPT_BYTES", kept_bytes)
    as_rank(0, num_ranks)
    run = run_of(name, micro_batch=4 * num_ranks, passes=passes, precision=precision)
    memory = dataclasses.replace(rank_memory(run, num_ranks), evaluation=0)
    assert memory.total == pytest.approx(measured_peak(ShardedLearner, run, num_ranks), rel=0.10)


def gradient_bytes(learner) -> int:
    """Of the sharded gradients, and of the whole ones that wait for the window's last micro-batch."""
    masters = [p for named in learner.master_sets.values() for p in named.values()]
    sharded = sum(p.grad._local_tensor.nbytes for p in masters if p.grad is not None)
    states = [m._get_fsdp_state()._fsdp_param_group for m in learner.model.modules() if hasattr(m, "_get_fsdp_state")]
    waiting = 0
    for parameter in (p for group in states if group is not None for p in group.fsdp_params):
        whole = parameter.unsharded_accumulated_grad
        if whole is None and hasattr(parameter, "_unsharded_param"):
            whole = parameter._unsharded_param.grad
        waiting += whole.nbytes if whole is not None else 0
    return sharded + waiting


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("precision", BYTES)
def test_what_a_rank_keeps_is_exact(rank, precision, as_rank):
    """Weights, optimizer states and gradients of uneven shards: d_model 32 and widths of 16 on 5 ranks."""
    num_ranks = 5
    as_rank(rank, num_ranks)
    run = run_of("gram", micro_batch=num_ranks, precision=precision, routing=RoutingConfig(1.0, 1.0, "uniform"))
    memory, weights, plan, learner = rank_memory(run, num_ranks), model_weights(run.model), Plan(run), None
    learner, kept = ShardedLearner(run), []
    for step in range(10):
        kept += [gradient_bytes(learner) for _ in micro_steps(learner, run, plan, step, num_ranks)]
        learner.step(1e-3)
    assert sum(p._local_tensor.untyped_storage().nbytes() for p in learner.model.parameters()) == memory.weights
    states = [state for optimizer in learner.optimizers.values() for state in optimizer.state.values()]
    slots = [getattr(slot, "_local_tensor", slot) for state in states for slot in state.values()]
    assert sum(slot.nbytes for slot in slots) == sum(8 * w.shard(rank, num_ranks) + 4 for w in weights)
    assert memory.optimizer == sum(8 * w.shard(0, num_ranks) + 4 for w in weights)
    trained = [w for w in weights if w.set in CORE_SETS | {module_set("lisp")}]
    assert max(kept) == memory.gradients == sum(4 * w.num_values for w in trained)  # whole, on every rank
    assert min(kept) == sum(4 * w.shard(rank, num_ranks) for w in trained)  # once they are reduced


def test_a_rank_keeps_its_rows_of_gradients_with_loras_in_bfloat16(as_rank):
    """They are reduced in every micro-batch; in float32 whole gradients wait for the last one of a window."""
    for precision in BYTES:
        as_rank(0, 2)
        run = run_of("lora", micro_batch=2, precision=precision, routing=RoutingConfig(1.0, 1.0, "uniform"))
        learner, plan, kept = ShardedLearner(run), Plan(run), []
        for step in range(6):
            kept += [gradient_bytes(learner) for _ in micro_steps(learner, run, plan, step, 2)]
            learner.step(1e-3)
        trained = [w for w in model_weights(run.model) if w.set in CORE_SETS | {module_set("lisp")}]
        of_rank = {
            "float32": sum(4 * w.num_values for w in trained),
            "bfloat16": sum(4 * w.shard(0, 2) for w in trained),
        }
        assert max(kept) == rank_memory(run, 2).gradients == of_rank[precision]


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
    assert plain.activations - checkpointed.activations > 3 * checkpointed.recomputed - checkpointed.activations
    # the loss's tensors and the inputs, or the weights' gradients beside one layer: both are in `total`'s terms
    fixed = checkpointed.weights + checkpointed.copies + checkpointed.optimizer
    assert bytes_of.peak <= 1.05 * (checkpointed.total - fixed)
    assert checkpointed.total < plain.total


def test_an_evaluation_may_need_more_than_a_small_models_training():
    run = run_of("dense", passes=1)
    points = dataclasses.replace(run.eval_points, num_points=1, num_sequences=100_000)
    run = dataclasses.replace(run, eval_points=points)
    memory = rank_memory(run, 1)
    assert EVALUATION_LOGITS_BYTES == LOGITS_BYTES
    assert memory.evaluation == evaluation_batch(run.model) * run.model.seq_len * run.model.vocab_size * 8
    assert memory.total == memory.weights + memory.optimizer + memory.evaluation


# --------------------------------------------------------------------------------- ranks, compute and hours


def paper_run(name: str):
    preset = STUDY.presets["paper"]
    setting = preset.setting(preset.sizes[name], 0, "data", DOMAINS, (("virology",),))
    return dense_run(setting, DOMAINS, preset.num_eval_points, "heterogeneous")


def test_compute_of_the_papers_800m_baseline():
    """6 N D but for what the textbook leaves out: the embedding's look-up costs nothing, attention costs 12 L d T."""
    run = paper_run("800M")
    shape, num_tokens = run.model, run.num_tokens
    assert num_tokens == pytest.approx(16.1e9 * 1.01, rel=1e-3)
    in_products = total_parameters(shape) - shape.vocab_size * shape.d_model
    per_token = 6 * in_products + 12 * shape.num_layers * shape.d_model * shape.seq_len
    assert run_flops(run) == pytest.approx(num_tokens * per_token, rel=2e-3)  # the rest: biases and norms
    assert run_flops(run) == pytest.approx(6 * total_parameters(shape) * num_tokens, rel=0.02)


@pytest.mark.parametrize("machine", ["h100", "h200"])
def test_hours_of_the_papers_baselines(machine):
    """Seven baselines are 3.7e21 FLOPs: sum of 6 N D with the printed sizes and tokens."""
    printed = {"50M": 0.96, "100M": 2.1, "200M": 4.0, "400M": 8.0, "800M": 16.1, "2B": 40.3, "5B": 99.4}
    textbook = sum(6 * total_parameters(paper_run(n).model) * 1.01e9 * tokens for n, tokens in printed.items())
    assert textbook == pytest.approx(3.6e21, rel=0.02)
    wanted = [needs(paper_run(name), 1, MACHINES[machine], 0.4) for name in printed]
    assert sum(need.flops for need in wanted) == pytest.approx(textbook, rel=0.03)
    evaluations = sum(need.evaluation_flops for need in wanted)
    hours = (sum(need.flops for need in wanted) + evaluations) / (989e12 * 0.4) / 3600
    assert sum(need.gpu_hours for need in wanted) == pytest.approx(hours)


def test_recomputing_costs_the_blocks_forward():
    run = paper_run("800M")
    need = needs(run, 8, MACHINES["h100"], checkpointing=True)
    per_sequence = hardware_flops(run.model, 1, backward=False)
    per_sequence -= 2 * run.model.seq_len * run.model.vocab_size * run.model.d_model  # the unembedding is not repeated
    assert need.recomputed_flops == pytest.approx(per_sequence * run.data.num_draws)
    assert 0.25 < need.recomputed_flops / need.flops < 1 / 3
    assert need.gpu_hours > needs(run, 8, MACHINES["h100"]).gpu_hours


@pytest.mark.parametrize("name", PAPER_SIZES)
def test_every_size_of_the_paper_fits(name):
    run = paper_run(name)
    for machine in (MACHINES["h100"], MACHINES["h200"]):
        plain, chosen = fewest_ranks(run, machine), placement(run, machine)
        assert run.micro_batch % plain == 0
        assert fits(run, plain, machine)
        assert not any(fits(run, r, machine) for r in range(1, plain) if run.micro_batch % r == 0)
        assert chosen.num_ranks <= plain
        assert fits(run, chosen.num_ranks, machine, chosen.checkpointing)
    assert fewest_ranks(run, Machine("toy", 1e12, 1e6, 0.0)) is None
    assert placement(run, Machine("toy", 1e12, 1e6, 0.0)) is None


def test_the_papers_own_800m_runs_fit_their_gpus():
    """12 sequences on each of 8 GPUs, as the paper's."""
    assert fits(paper_run("800M"), 8, MACHINES["h100"])


def test_ranks_of_a_studys_runs():
    run, machine = paper_run("5B"), MACHINES["h100"]
    auto = Ranks(AUTO, (("2B", 4),), machine)
    assert auto.of(run, "5B") == fewest_ranks(run, machine)
    assert Ranks(AUTO, (), machine, checkpointing=True).of(run, "5B") == fewest_ranks(run, machine, True)
    assert auto.of(paper_run("2B"), "2B") == 4
    size, attack = run_of("dense", micro_batch=12), run_of("dense", micro_batch=8)
    assert [Ranks(6).of(run, "a size") for run in (size, attack)] == [6, 2]  # no sequence is left out
    with pytest.raises(ValueError, match="machine='toy'"):
        Ranks(AUTO, (), Machine("toy", 1e12, 1e6, 0.0)).of(run, "5B")


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_run_of_several_ranks_waits_for_no_more_than_there_may_be(ranks):
    for present, most in ((0, 0), (5, 5), (16, 16), (16, 64)):
        handed = ranks_at_once(present, most, ranks)
        assert handed >= ranks
        assert handed <= (2 * max(present, 1) if ranks == 1 else max(present, most, ranks))


def test_memory_falls_with_ranks():
    run = paper_run("5B")
    totals = [rank_memory(run, ranks).total for ranks in (2, 4, 8, 16, 32, 64)]
    assert totals == sorted(totals, reverse=True)


# ------------------------------------------------------------------------------------------- the dry run's text


def graph_of(storage, *arguments):
    return build_graph(STUDY, parse(STUDY, ["--storage", str(storage), *arguments]))


def test_the_dry_run_says_what_sharing_saves(storage):
    """ft_lora and ft_mlp train their branches on one base, and every method has the baseline."""
    graph = graph_of(storage, "--preset", "smoke", "--methods", "ft_lora", "ft_mlp", "--seeds", "1", "--sizes", "tiny")
    asked = [node for node in graph.entries if node.kind == "run"]
    unique_runs = {node.id: node for node in asked}
    saved_s = 3600 * sum(needs(node.config, 1, MACHINES["cpu"]).gpu_hours for node in asked)
    saved_s -= 3600 * sum(needs(node.config, 1, MACHINES["cpu"]).gpu_hours for node in unique_runs.values())
    num_shared = len(asked) - len(unique_runs)
    assert num_shared == 1
    assert saved_s > 0
    text = describe(graph)
    assert f"runs shared between methods: {num_shared}, which saves {saved_s / 3600:,.2f} cpu hours" in text
    assert f"{len(unique_runs)} runs, 0 done" in text


def test_the_dry_runs_memory_is_the_planners(storage):
    graph = graph_of(storage, "--preset", "paper", "--sizes", "800M", "--num-workers", "8", "--seeds", "1")
    text = describe(graph)
    baseline = next(n.config for n in graph.nodes if n.kind == "run" and dict(n.tags)["method"] == "baseline")
    memory = rank_memory(baseline, 8)
    line = next(line for line in text[text.index("memory of one") :].splitlines() if line.startswith("baseline"))
    ranks, sequences, passes, *parts = line.split()[2:]
    assert (ranks, sequences, passes) == ("8", "12", "7")
    shown = [memory.weights, memory.copies, memory.gathered, memory.gradients + memory.reduction, memory.optimizer]
    shown += [memory.activations, memory.logits, memory.total]
    assert parts[:8] == [f"{value / GIB:.2f}" for value in shown]


def rows_of(text, method) -> dict[str, list[str]]:
    """size -> the cells of a method's lines in the dry run's first table, without name and size."""
    table = text[: text.index("memory of one")].splitlines()
    rows = [line.split() for line in table if line.startswith(f"{method} ")]
    return {size: cells for _, size, *cells in rows}


@pytest.mark.parametrize("machine", ["h100", "h200"])
def test_the_papers_dry_run_adds_up(storage, machine):
    """6 N D of the printed tokens and our parameter counts; hours and dollars at 40% of the dense rate."""
    text = describe(graph_of(storage, "--preset", "paper", "--machine", machine, "--seeds", "1"))
    printed = {"50M": 0.96, "100M": 2.1, "200M": 4.0, "400M": 8.0, "800M": 16.1, "2B": 40.3, "5B": 99.4}
    rows, rate = rows_of(text, "baseline"), MACHINES[machine].flops_per_second * 0.4
    assert rows.keys() == printed.keys()
    for size, (num_runs, _, parameters, tokens, _, flops, hours, dollars) in rows.items():
        numbers = [float(cell.replace(",", "")) for cell in (parameters, tokens, flops, hours, dollars)]
        parameters, tokens, flops, hours, dollars = numbers
        run = paper_run(size)
        assert num_runs == "1"
        assert tokens == pytest.approx(printed[size] * 1.01e9, rel=5e-3)  # core, and 1% auxiliary
        in_products = parameters - run.model.vocab_size * run.model.d_model  # an embedding's look-up costs nothing
        attention = 12 * run.model.num_layers * run.model.d_model * run.model.seq_len
        assert flops == pytest.approx((6 * in_products + attention) * tokens, rel=0.01)
        assert hours == pytest.approx((flops + run_evaluation_flops(run)) / rate / 3600, rel=0.01, abs=0.01)
        assert dollars == pytest.approx(hours * MACHINES[machine].dollars_per_hour, rel=0.01, abs=0.03)


def test_the_dry_run_and_the_simulation_have_the_studys_ranks(storage):
    words = ("--preset", "paper", "--sizes", "800M", "5B", "--seeds", "1", "--methods", "gram")
    graph = graph_of(storage, *words, "--num-workers", "800M=4", "5B=auto", "--machine", "h200")
    lines = describe(graph).partition("memory of one")[2].splitlines()
    shown = {tuple(line.split()[:2]): line.split()[2] for line in lines if line.startswith(("baseline  ", "gram  "))}
    trained = [n for n in graph.nodes if n.kind == "run" and "elicited" not in dict(n.tags)]
    runs = {(dict(n.tags)["method"], dict(n.tags)["size"]): n for n in trained}
    fewest = {key: str(fewest_ranks(runs[key].config, MACHINES["h200"])) for key in shown}
    assert shown == {key: "4" if key[1] == "800M" else fewest[key] for key in runs}
    tasks = {t.id: t for t in planned(graph.nodes, MACHINES["h200"], 0.4, planned_ranks(graph.flags))}
    assert {key: str(tasks[node.id].ranks) for key, node in runs.items()} == shown
    execution, _ = execution_of(graph.flags, has_gpu=True)
    ranks = {key: str(execution.of_node(n.config, dict(n.tags)).num_ranks) for key, n in runs.items()}
    assert ranks == shown


def test_a_study_is_simulated_on_a_cluster(storage):
    graph = graph_of(storage, "--preset", "paper", "--sizes", "50M", "--seeds", "1")
    text = describe_on(graph, SimulatedCluster(num_machines=1, slots_per_machine=8, interruptions_per_hour=0.0))
    assert "1 machines at most of 8 x h100" in text
    assert not (storage / "runs").exists()
