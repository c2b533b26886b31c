"""Nothing reads a number from the device while there is work to give it: reading waits for all that
was given.

Tensors of the meta device have no values, so the first reading is an error.
"""

import dataclasses

import pytest

from gram_platform.config import ModuleSpec, Objective, RoutingConfig
from gram_platform.config.routing import Schedule
from gram_platform.train.data import ScheduleReader
from gram_platform.train.evaluate import domain_losses, profile_losses
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from tests import tiny

ALL = dict.fromkeys(tiny.DOMAINS[1:], 1.0)
LORAS = dataclasses.replace(
    tiny.model_config(), modules=tuple(ModuleSpec(d, "lora", 2) for d in tiny.DOMAINS[1:])
)
RUNS = {
    "dense": {"modular": False, "routing": RoutingConfig()},
    "GRAM": {},
    "GRAM in bfloat16": {"precision": "bfloat16"},
    "LoRAs": {"model": LORAS},
    "MaxEnt": {
        "modular": False,
        "draws": (32, 48, 16),
        "routing": RoutingConfig(),
        "objective": Objective("maxent_kl", ("lisp",)),
    },
}


class WindowIsUnderWay(Exception):
    """All micro-batches of a window have been given to the device."""


@pytest.mark.parametrize("num_merged", [1, 4])
@pytest.mark.parametrize("parts", RUNS.values(), ids=RUNS)
def test_a_window_is_given_to_the_device_as_a_whole(monkeypatch, parts, num_merged):
    config = tiny.run_config(**parts)
    plan, learner = Schedule(config), Learner(config, "meta", num_merged=num_merged)

    def losses_are_wanted(losses):
        assert losses.device.type == "meta"
        assert losses.shape[1] == config.batch_size // config.micro_batch > 1
        raise WindowIsUnderWay

    monkeypatch.setattr(learner, "mean_over_ranks", losses_are_wanted)
    with pytest.raises(WindowIsUnderWay):
        next(training_steps(learner, plan, ScheduleReader(config, tiny.arrays())))


def of_one(learner, *asked):
    return domain_losses(learner, *asked, lambda _: ALL)


def of_three(learner, *asked):
    return profile_losses(learner.model, *asked, [lambda _: ALL] * 3)


@pytest.mark.parametrize(("evaluate", "num_profiles"), [(of_one, 1), (of_three, 3)])
def test_an_evaluation_is_given_to_the_device_as_a_whole(monkeypatch, evaluate, num_profiles):
    monkeypatch.setattr("gram_platform.train.evaluate.evaluation_batch", lambda *_: 4)
    learner, num_passes = Learner(tiny.run_config(), "meta"), []
    learner.model.register_forward_hook(lambda *_: num_passes.append(1))
    with pytest.raises(NotImplementedError):
        evaluate(learner, tiny.arrays(), tiny.DOMAINS, 10)
    assert len(num_passes) == 3 * len(tiny.DOMAINS) * num_profiles
