"""The planner's weights, shards and routes against the model's, its sharding's and its plans'."""

import pytest
import torch

from gram_platform.config import UNLABELLED, DataConfig, DomainBudget, RoutingConfig, Slice
from gram_platform.config.flops import total_parameters
from gram_platform.config.routing import Schedule
from gram_platform.model.transformer import Transformer, parameter_set
from gram_platform.planner.memory import list_routes, model_weights
from gram_platform.train.sharding import ShardedLearner
from tests import tiny
from tests.planner.scene import FIVE_B, MODELS, run_of


@pytest.mark.parametrize("config", [*MODELS.values(), FIVE_B], ids=[*MODELS, "5B"])
def test_weights_are_the_models(config):
    with torch.device("meta"):
        real = {name: tuple(p.shape) for name, p in Transformer(config).named_parameters()}
    weights = model_weights(config)
    assert {w.name: w.shape for w in weights} == real
    assert len(weights) == len(real)
    assert all(w.set == parameter_set(w.name) for w in weights)
    assert sum(w.num_values for w in weights) == total_parameters(config)


class OnlyPlaced(ShardedLearner):
    """A model with its sharding plan and no memory behind it."""

    def __init__(self, config):
        self.config, self.device = config, torch.device("cpu")
        self.placed, _ = self._build(())

    def _warm_up(self):
        pass


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 64), (42, 43)])
def test_shards_of_5b_are_its_sharding_plans(rank, num_ranks, as_rank, monkeypatch):
    # The parameters stay on the meta device.
    monkeypatch.setattr(Transformer, "to_empty", lambda self, device: self)
    as_rank(rank, num_ranks)
    placed = OnlyPlaced(tiny.run_config(model=FIVE_B)).placed
    for name, parameter in placed.named_parameters():
        weight = next(w for w in model_weights(FIVE_B) if w.name == name)
        local = parameter._local_tensor
        assert local.numel() == weight.shard(rank, num_ranks), name
        assert local.untyped_storage().nbytes() == 4 * weight.shard(0, num_ranks), name


def test_more_ranks_than_rows():
    bias = next(w for w in model_weights(MODELS["gram"]) if w.name == "blocks.0.aux.lisp.c_fc.bias")
    held = [bias.shard(rank, 24) for rank in range(24)]
    assert held == [1] * 16 + [0] * 8


def routing_cases() -> dict:
    unlabelled = DomainBudget(UNLABELLED, 32, 32, (Slice("core", 40, 32),))
    partial = DataConfig(
        "tiny", (DomainBudget("core", 24, 96), DomainBudget("lisp", 24, 64), unlabelled)
    )
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
def test_drawn_routes_are_those_of_the_plan(case):
    run = routing_cases()[case]
    plan = Schedule(run)
    drawn = [plan[t].route for t in range(len(plan))]
    assert set(list_routes(run)) == set(drawn)
    assert len(list_routes(run)) == len(set(drawn))
