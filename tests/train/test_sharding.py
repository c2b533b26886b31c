"""Several ranks against one process, on real gloo ranks."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gram_platform.config import EvalPoints, ModuleSpec, Objective, RoutingConfig, View, layout
from gram_platform.config.routing import Route, Schedule
from gram_platform.config.training import LLAMA
from gram_platform.train.data import ScheduleReader
from gram_platform.train.evaluate import (
    domain_losses,
    evaluation_batch,
    progress_losses,
    validation_losses,
)
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.sharding import ShardedLearner
from tests import tiny
from tests.ranks import run_ranks

# float32: sums in another order. bfloat16: the same policy, but halves of a micro-batch round
# apart.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}
HALF = 5


def train(learner, config, first=0, stop=None):
    plan = Schedule(config)
    reader, losses = ScheduleReader(config, tiny.arrays()), []
    learner.norms = {}
    for record in training_steps(learner, plan, reader, first, norms_every=4):
        losses.extend(record.losses)
        learner.norms |= {f"{record.step} {name}": norm for name, norm in record.norms.items()}
        learner.evaluated = learner.forward(torch.zeros(1, 4, dtype=torch.long), {}).detach()
        if record.step == stop:
            break
    return losses


def method_configs() -> dict:
    """A run of every shape that methods give to routing, modules and objective."""
    sizes = {"micro_batch": 4, "batch_size": 16}
    dense = tiny.model_config(False)
    adapter = dataclasses.replace(dense, modules=(ModuleSpec("lisp", "lora", 2),))
    loras = dataclasses.replace(
        dense, modules=tuple(ModuleSpec(d, "lora", 2) for d in tiny.DOMAINS[1:])
    )
    experts = dataclasses.replace(
        dense, d_mlp=0, modules=tuple(ModuleSpec(d, "mlp", 8) for d in tiny.DOMAINS)
    )
    frozen = RoutingConfig(1.0, 0.0, freeze_core=True)
    objective = Objective("maxent_kl", ("lisp", "virology"), 10.0)
    misdirection = Objective(
        "misdirection", ("lisp", "virology"), 10.0, steered_layers=1, steering=2.0
    )
    distillation = Objective("distillation", noise=0.5, noise_scale=0.1)
    # Gloo adds an odd number of values a rank in an order that depends on the group's other values.
    reserved = dataclasses.replace(
        dense, modules=tuple(ModuleSpec(d, "reserved", 8, 1) for d in tiny.DOMAINS[1:])
    )
    masked = RoutingConfig(
        0.5, 0.0, "uniform", companions="all", p_aux_companion=1.0, spreads_embeddings=True
    )
    sgtm = {"model": reserved, "routing": masked, "draws": (96, 32, 32), **sizes}
    return {
        "baseline": tiny.run_config(False, draws=(64, 16, 16), **sizes),
        "gram": tiny.run_config(draws=(64, 16, 16), **sizes),
        "gram, bfloat16": tiny.run_config(draws=(64, 16, 16), precision="bfloat16", **sizes),
        "gram, Llama": tiny.run_config(
            model=dataclasses.replace(tiny.model_config(), architecture=LLAMA), **sizes
        ),
        "gram_lora": tiny.run_config(draws=(64, 16, 16), model=loras, **sizes),
        "gram_lora, bfloat16": tiny.run_config(
            draws=(64, 16, 16), model=loras, precision="bfloat16", **sizes
        ),
        "ft_lora": tiny.run_config(draws=(32, 64, 0), model=adapter, routing=frozen, **sizes),
        "maxent": tiny.run_config(False, draws=(48, 24, 24), objective=objective, **sizes),
        "rmu": tiny.run_config(
            False, draws=(48, 24, 24), objective=misdirection, start=View.of("start"), **sizes
        ),
        "undo": tiny.run_config(
            False, draws=(64, 16, 16), objective=distillation, start=View.of("start"), **sizes
        ),
        "demix": tiny.run_config(
            draws=(64, 16, 16), model=experts, routing=RoutingConfig(), **sizes
        ),
        "sgtm": tiny.run_config(**sgtm),
        "sgtm, bfloat16": tiny.run_config(precision="bfloat16", **sgtm),
    }


# Bytes kept gathered, activation checkpointing, parameters from which on a module has a group:
# modules apart, or not.
WAYS = ((layout.KEPT_BYTES, True, 0), (0, False, 2**23))


def train_every_method(rank, num_ranks, folder):
    """Two ranks train each shape again in one of the ways, in turn; four in both."""
    out = {}
    for number, (name, config) in enumerate(method_configs().items()):
        learner = ShardedLearner(config)
        losses = train(learner, config)
        out[name] = {"losses": losses, "state": tiny.full_state(learner), "norms": learner.norms}
        out[name]["same"] = True
        for kept_bytes, checkpointing, own_parameters in (
            WAYS if num_ranks == 4 else [WAYS[number % 2]]
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(layout, "KEPT_BYTES", kept_bytes)
                patch.setattr(layout, "OWN_GROUP_PARAMETERS", own_parameters)
                again = ShardedLearner(config, activation_checkpointing=checkpointing)
            out[name]["same"] &= train(again, config) == losses
            out[name]["same"] &= equal(tiny.full_state(again), out[name]["state"])
        if name in IN_PASSES:
            out[name]["in passes"] = in_passes(config, num_ranks)
        if name != "rmu":
            merging = ShardedLearner(config, num_merged=config.micro_batches_per_step)
            out[name]["merged"] = {
                "losses": train(merging, config),
                "state": tiny.full_state(merging),
            }
    if rank == 0:
        torch.save(out, folder / "out.pt")


IN_PASSES = ("gram", "gram, bfloat16", "demix")


def in_passes(config, num_ranks) -> dict:
    """Trains as a large model: a sequence a pass, each pass reduced, and small modules in their
    blocks' groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "KEPT_BYTES", 0)
        patch.setattr(layout, "LARGE_GRADIENTS_BYTES", 0)
        learner = ShardedLearner(config, num_passes=config.micro_batch // num_ranks)
    return {"losses": train(learner, config), "state": tiny.full_state(learner)}


def equal(one, two) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_every_method_like_one_process(tmp_path, num_ranks):
    """And bit for bit the same with activation checkpointing, with weights gathered anew in every
    pass, and with modules in other groups."""
    run_ranks(num_ranks, train_every_method, tmp_path)
    out = torch.load(tmp_path / "out.pt")
    for name, config in method_configs().items():
        alone = Learner(config)
        losses = train(alone, config)
        tolerance = TOLERANCES[config.precision]
        assert out[name]["norms"] == pytest.approx(alone.norms, rel=5 * tolerance), name
        reference = tiny.full_state(alone)
        other = [out[name][way] for way in ("in passes", "merged") if way in out[name]]
        for found in [out[name], *other]:
            assert found["losses"] == pytest.approx(losses, abs=tolerance), name
            assert found["state"].keys() == reference.keys(), name
            errors = [(found["state"][n] - reference[n]).abs().max().item() for n in reference]
            assert max(errors) < 10 * tolerance, name
        assert out[name]["same"], name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activation_checkpointing_changes_no_bit(precision):
    config = tiny.run_config(precision=precision)
    plain, forgetful = Learner(config), Learner(config, activation_checkpointing=True)
    assert train(plain, config) == train(forgetful, config)
    assert equal(tiny.full_state(plain), tiny.full_state(forgetful))


def stop_and_resume(rank, num_ranks, config, folder):
    learner = ShardedLearner(config)
    losses = train(learner, config, stop=HALF)
    half, held = tiny.full_state(learner), learner.pieces()
    resumed = ShardedLearner(config)
    resumed.load_state(half)
    losses += train(resumed, config, HALF)
    from_pieces = ShardedLearner(config)
    from_pieces.load_state(held)
    resumed_losses = train(from_pieces, config, HALF)
    straight_losses = train(learner, config, HALF)
    state, straight, third = (
        tiny.full_state(resumed),
        tiny.full_state(learner),
        tiny.full_state(from_pieces),
    )
    if rank == 0:
        same = equal(state, straight) and equal(third, straight)
        same &= straight_losses == resumed_losses == losses[HALF * 4 :]
        torch.save({"state": state, "half": half, "resumed_exactly": same}, folder / "out.pt")


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_resume_bit_for_bit(tmp_path, num_ranks):
    """From full tensors and from their own rows; one process continues what they began."""
    config = tiny.run_config(micro_batch=4, batch_size=16, draws=(128, 32, 32))
    run_ranks(num_ranks, stop_and_resume, config, tmp_path)
    out = torch.load(tmp_path / "out.pt")
    assert out["resumed_exactly"]
    continued = Learner(config)
    continued.load_state(out["half"])
    train(continued, config, HALF)
    state = tiny.full_state(continued)
    assert (
        max((out["state"][n] - state[n]).abs().max().item() for n in state) < TOLERANCES["float32"]
    )


class Collectives(TorchDispatchMode):
    """Counts FSDP2's all-gathers and reduce-scatters while the block runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))

    def count(self, kind: str) -> int:
        return sum(kind in name for name in self.names)


def count_collectives(rank, num_ranks, config, kept_bytes, own_parameters, num_merged, folder):
    """[(all-gathers, reduce-scatters)] of every step."""
    layout.KEPT_BYTES, layout.OWN_GROUP_PARAMETERS = kept_bytes, own_parameters
    learner, plan = ShardedLearner(config, num_merged=num_merged), Schedule(config)
    steps = training_steps(learner, plan, ScheduleReader(config, tiny.arrays()))
    counts = []
    for _ in range(config.num_steps):
        with Collectives() as collectives:
            next(steps)
        counts.append((collectives.count("allgather"), collectives.count("reduce_scatter")))
    if rank == 0:
        torch.save(counts, folder / "counts.pt")


def groups_of(route, num_layers: int, is_apart: bool) -> set:
    """Groups of a forward pass. `is_apart`: every module has a group, else it is in its block's."""
    parts = ("block", *(route.active if is_apart else ()))
    return {"embedding", "head", *((layer, part) for layer in range(num_layers) for part in parts)}


def num_gathered(routes, num_layers: int, is_apart: bool, is_kept: bool) -> int:
    """Groups that a window gathers if it lets go of them only where what is trained changes
    (`is_kept`), or if it gathers them for a forward and for a backward pass, and the head once for
    both."""
    total, kept, trained = 0, set(), None
    for route in routes:
        if route.trained != trained:
            kept, trained = set(), route.trained
        groups = groups_of(route, num_layers, is_apart)
        total += len(groups - kept)
        if is_kept:
            kept |= groups
        else:
            total += len(groups - {"head"})
    return total


OWN = layout.OWN_GROUP_PARAMETERS


@pytest.mark.parametrize(
    ("kept_bytes", "own_parameters", "num_merged"),
    [(0, 0, 1), (0, OWN, 1), (layout.KEPT_BYTES, 0, 1), (layout.KEPT_BYTES, 0, 4), (0, OWN, 4)],
)
def test_a_window_communicates_no_more_than_it_must(
    tmp_path, kept_bytes, own_parameters, num_merged
):
    """Active groups are gathered for a forward and for a backward pass, or once a route; and
    reduced once a window. A window in one pass gathers them once."""
    config, is_apart = method_configs()["gram"], own_parameters == 0
    run_ranks(2, count_collectives, config, kept_bytes, own_parameters, num_merged, tmp_path)
    plan, num_layers = Schedule(config), config.model.num_layers
    for step, (gathers, scatters) in enumerate(torch.load(tmp_path / "counts.pt")):
        window = plan.window(step)
        routes = [micro_batch.route for micro_batch in window]
        trained = frozenset().union(*(route.trained for route in routes))
        if num_merged > 1:
            active = dict(pair for route in routes for pair in route.active)
            routes = [Route(tuple(active.items()), trained)]
        modules = trained - {"shared", "core_mlp"}
        core = bool(trained & {"shared", "core_mlp"})
        of_a_layer = core + len(modules) if is_apart else 1
        # The head, which ran before the embedding in the warm-up.
        is_prefetched = step == 0 and (not kept_bytes or num_merged > 1)
        assert (
            gathers == num_gathered(routes, num_layers, is_apart, kept_bytes > 0) + is_prefetched
        ), (step, gathers)
        assert scatters == core * 2 + num_layers * of_a_layer, (step, scatters)


NUM_EVALUATED = 10  # of each of three domains; `few_at_a_time` makes batches of 4, 4 and 2


def few_at_a_time(patch, config):
    patch.setitem(
        layout.EVALUATION_LOGITS_BYTES,
        "cpu",
        4 * 4 * config.model.seq_len * config.model.vocab_size,
    )
    assert evaluation_batch(config.model) == 4


def whole_losses(learner):
    """Each rank measures everything."""
    active = dict.fromkeys(learner.config.model.module_domains, 1.0)
    points = learner.config.eval_points
    alone = SimpleNamespace(
        config=learner.config,
        forward=learner.forward,
        device=learner.device,
        rank=0,
        num_ranks=1,
        sum_over_ranks=lambda losses: losses,
    )
    return domain_losses(
        alone, tiny.arrays(), points.domains, points.num_sequences, lambda _: active
    )


def evaluate_between_steps(rank, num_ranks, folder):
    """Trains, evaluates, trains on; and once without an evaluation. Twice: with weights that stay
    gathered, and not."""
    out = {}
    for name, config in evaluated_configs().items():
        for kept_bytes in (0, layout.KEPT_BYTES):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(layout, "KEPT_BYTES", kept_bytes)
                few_at_a_time(patch, config)
                out[name, kept_bytes] = evaluated_after_two_steps(config)
    torch.save(out, folder / f"{rank}.pt")


def evaluated_after_two_steps(config) -> dict:
    learner, undisturbed = ShardedLearner(config), ShardedLearner(config)
    for each in (learner, undisturbed):
        train(each, config, stop=2)
    found = {"state": tiny.full_state(learner), "whole": whole_losses(learner)}
    passes, forward = [], learner.forward
    learner.forward = lambda *inputs: passes.append(1) or forward(*inputs)
    with Collectives() as collectives:
        found["split"] = validation_losses(learner, tiny.arrays())
    del learner.forward
    found["progress"] = progress_losses(learner, tiny.arrays(), NUM_EVALUATED)
    found["counts"] = [
        len(passes),
        *(collectives.count(kind) for kind in ("allgather", "allreduce")),
    ]
    for each in (learner, undisturbed):
        train(each, config, 2, 3)
    found["same"] = equal(tiny.full_state(learner), tiny.full_state(undisturbed))
    return found


def evaluated_configs() -> dict:
    points = EvalPoints(1, NUM_EVALUATED, tiny.DOMAINS)
    chosen = {name: method_configs()[name] for name in ("gram", "gram_lora, bfloat16")}
    return {
        name: dataclasses.replace(config, eval_points=points) for name, config in chosen.items()
    }


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_split_an_evaluation(tmp_path, monkeypatch, num_ranks):
    """Bit for bit the losses of ranks that measure all; in float32 also of one process. Training
    goes on as without."""
    run_ranks(num_ranks, evaluate_between_steps, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(num_ranks)]
    for name, config in evaluated_configs().items():
        num_groups = 2 + config.model.num_layers  # all modules are small
        few_at_a_time(monkeypatch, config)
        for kept_bytes in (0, layout.KEPT_BYTES):
            rounds = [rank[name, kept_bytes] for rank in ranks]
            alone = Learner(config)
            alone.load_state(rounds[0]["state"])
            losses = validation_losses(alone, tiny.arrays())
            progress = progress_losses(alone, tiny.arrays(), NUM_EVALUATED)
            for found in rounds:
                assert found["split"] == found["whole"], name
                assert found["counts"] == [-(-9 // num_ranks), num_groups, 1], name
                assert found["same"], name
                assert found["progress"] == pytest.approx(
                    progress, rel=1e-5 if config.precision == "float32" else 1e-2
                )
                assert found["progress"] == pytest.approx(found["whole"], rel=1e-2), name
                assert config.precision != "float32" or found["split"] == losses, name


def train_on_machines(rank, num_ranks, folder):
    """Two machines of two ranks, each with a copy; the rows that one machine would write are all of
    them."""
    out, config = {}, method_configs()["gram"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "num_shards", lambda num_ranks, device: 2)
        # The second is no whole machine.
        for local, shape in (("2", (2, 2)), ("1" if rank == 3 else "2", (4,))):
            patch.setenv("LOCAL_WORLD_SIZE", local)
            learner = ShardedLearner(config)
            assert tuple(learner.mesh.shape) == shape
            with Collectives() as collectives:
                losses = train(learner, config)
            out[shape] = {
                "losses": losses,
                "state": tiny.full_state(learner),
                "norms": learner.norms,
            }
            out[shape] |= {"pieces": learner.pieces() if learner.has_first_copy else {}}
            out[shape]["allreduces"] = collectives.count("allreduce")
    torch.save(out, folder / f"{rank}.pt")


def test_machines_with_a_copy_each_train_like_one_process(tmp_path):
    run_ranks(4, train_on_machines, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(4)]
    alone = Learner(method_configs()["gram"])
    losses, reference = train(alone, alone.config), tiny.full_state(alone)
    for shape in ((2, 2), (4,)):
        found = ranks[0][shape]
        assert found["losses"] == pytest.approx(losses, abs=1e-5)
        assert found["norms"] == pytest.approx(alone.norms, rel=1e-4)
        assert found["state"].keys() == reference.keys()
        assert max((found["state"][n] - reference[n]).abs().max().item() for n in reference) < 1e-4
        held = [rank[shape]["pieces"] for rank in ranks if rank[shape]["pieces"]]
        assert len(held) == (2 if shape == (2, 2) else 4)
        for name, whole in found["state"].items():
            rows = [pieces[name].rows for pieces in held]
            assert torch.equal(torch.cat(rows) if whole.dim() else rows[0], whole)
