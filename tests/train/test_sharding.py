"""Several ranks against one process, on real gloo ranks."""

import dataclasses
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gram_platform.config import ModuleSpec, Objective, RoutingConfig
from gram_platform.routing import Plan
from gram_platform.train.data import PlanReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.sharding import ShardedLearner
from tests import tiny

# float32: sums in another order. bfloat16: the same policy, but halves of a micro-batch round apart.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}
HALF = 5


def train(learner, config, first=0, stop=None, rank=0, num_ranks=1):
    plan = Plan(config)
    reader, losses = PlanReader(config, plan, tiny.arrays()), []
    for record in training_steps(learner, plan, reader, first, rank, num_ranks):
        losses.extend(record.losses)
        learner.evaluated = learner.forward(torch.zeros(1, 4, dtype=torch.long), {}).detach()
        if record.step == stop:
            break
    return losses


def method_configs() -> dict:
    """A run of every shape that methods give to routing, modules and objective."""
    sizes = {"micro_batch": 4, "batch_size": 16}
    dense = tiny.model_config(False)
    adapter = dataclasses.replace(dense, modules=(ModuleSpec("lisp", "lora", 2),))
    experts = dataclasses.replace(dense, d_mlp=0, modules=tuple(ModuleSpec(d, "mlp", 8) for d in tiny.DOMAINS))
    frozen = RoutingConfig(1.0, 0.0, freeze_core=True)
    objective = Objective("maxent_kl", ("lisp", "virology"), 10.0)
    return {
        "baseline": tiny.run_config(False, draws=(64, 16, 16), **sizes),
        "gram, uniform": tiny.run_config(draws=(64, 16, 16), routing=RoutingConfig(0.5, 0.3, "uniform"), **sizes),
        "ft_lora": tiny.run_config(draws=(32, 64, 0), model=adapter, routing=frozen, **sizes),
        "maxent": tiny.run_config(False, draws=(48, 24, 24), objective=objective, **sizes),
        "demix": tiny.run_config(draws=(64, 16, 16), model=experts, routing=RoutingConfig(), **sizes),
    }


def methods_worker(rank, num_ranks, port, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    out = {}
    for name, config in method_configs().items():
        learner = ShardedLearner(config)
        losses = train(learner, config, rank=rank, num_ranks=num_ranks)
        out[name] = {"losses": losses, "state": learner.state()}
    if rank == 0:
        torch.save(out, folder / "out.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_train_every_method_like_one_process(tmp_path):
    mp.spawn(methods_worker, (2, free_port(), tmp_path), nprocs=2)
    out = torch.load(tmp_path / "out.pt")
    for name, config in method_configs().items():
        alone = Learner(config)
        losses = train(alone, config)
        assert out[name]["losses"] == pytest.approx(losses, abs=TOLERANCES["float32"]), name
        reference = alone.state()
        assert out[name]["state"].keys() == reference.keys(), name
        errors = [(out[name]["state"][n] - reference[n]).abs().max().item() for n in reference]
        assert max(errors) < 10 * TOLERANCES["float32"], name


def worker(rank, num_ranks, port, config, folder):
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=num_ranks)
    learner = ShardedLearner(config)
    losses = train(learner, config, stop=HALF, rank=rank, num_ranks=num_ranks)
    half = learner.state()
    resumed = ShardedLearner(config)
    resumed.load_state(half)
    losses += train(resumed, config, HALF, rank=rank, num_ranks=num_ranks)
    straight_losses = train(learner, config, HALF, rank=rank, num_ranks=num_ranks)
    state, straight = resumed.state(), learner.state()
    if rank == 0:
        same = all(torch.equal(state[n], straight[n]) for n in straight) and straight_losses == losses[HALF * 4 :]
        torch.save({"losses": losses, "state": state, "half": half, "resumed_exactly": same}, folder / "out.pt")
    dist.barrier()
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(
    ("precision", "num_ranks"), [("float32", 2), ("bfloat16", 2), pytest.param("float32", 4, marks=pytest.mark.slow)]
)
def test_ranks_train_like_one_process(tmp_path, precision, num_ranks):
    config = tiny.run_config(precision=precision, micro_batch=4, batch_size=16, draws=(128, 32, 32))
    mp.spawn(worker, (num_ranks, free_port(), config, tmp_path), nprocs=num_ranks)
    out = torch.load(tmp_path / "out.pt")
    alone = Learner(config)
    losses = train(alone, config)
    assert out["losses"][: len(losses)] == pytest.approx(losses, abs=TOLERANCES[precision])
    reference = alone.state()
    assert out["state"].keys() == reference.keys()  # the same sets stepped
    errors = [(out["state"][n] - reference[n]).abs().max().item() for n in reference if n.startswith("model.")]
    assert max(errors) < TOLERANCES[precision]
    assert out["resumed_exactly"]


def test_a_checkpoint_of_two_ranks_continues_on_one(tmp_path):
    config = tiny.run_config(micro_batch=4, batch_size=16, draws=(128, 32, 32))
    mp.spawn(worker, (2, free_port(), config, tmp_path), nprocs=2)
    out = torch.load(tmp_path / "out.pt")
    alone = Learner(config)
    alone.load_state(out["half"])
    train(alone, config, HALF)
    state = alone.state()
    assert max((out["state"][n] - state[n]).abs().max().item() for n in state) < TOLERANCES["float32"]
