"""A loss that counts responses alone: which targets they are, and that passes and ranks share the
same mean."""

import dataclasses

import numpy as np
import pytest
import torch

from gram_platform.config import Objective
from gram_platform.config.routing import Schedule
from gram_platform.train.data import ScheduleReader, Separator
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import cross_entropy
from tests import tiny
from tests.refused import refused

SEPARATOR = Separator((7, 8), 0)
ROWS = np.array(
    [
        [1, 2, 7, 8, 3, 4, 0, 5],  # begins with a prompt
        [3, 4, 0, 5, 6, 7, 8, 9],  # in a response
        [1, 2, 3, 4, 5, 6, 1, 2],  # somewhere
        [8, 3, 0, 1, 7, 8, 1, 0],  # in a separator
        [1, 7, 2, 8, 7, 7, 8, 0],  # half separators are none
    ]
)
COUNTED = [
    [0, 0, 0, 1, 1, 1, 0],
    [1, 1, 0, 0, 0, 0, 1],
    [0] * 7,
    [1, 1, 0, 0, 0, 1, 1],
    [0, 0, 0, 0, 0, 0, 1],
]


def test_responses_and_their_ends_are_counted():
    assert SEPARATOR.of_responses(ROWS).astype(int).tolist() == COUNTED
    assert Separator((7,), 0).of_responses(ROWS[:1]).astype(int).tolist() == [[0, 0, 1, 1, 1, 1, 0]]


def asked() -> dict[str, np.ndarray]:
    """Sequences of which some end a document, and some have a response, at places that differ."""
    found = tiny.arrays()
    for number, row in enumerate(found["core"]):
        place = number % 9
        row[place : place + 2] = SEPARATOR.tokens
        row[place + 5 + number % 3] = SEPARATOR.end
    return found


CONFIG = tiny.run_config(
    False, draws=(64, 0, 0), micro_batch=4, objective=Objective(responses_after=" Response:")
)


def test_a_micro_batch_is_the_mean_over_its_responses_however_it_is_shared():
    reader = ScheduleReader(CONFIG, asked(), separator=SEPARATOR)
    micro_batch, learner = Schedule(CONFIG).window(0)[0], Learner(CONFIG)
    tokens_BT, (weights_BT,) = reader.tokens(micro_batch), reader.weights(micro_batch)
    counted = torch.from_numpy(SEPARATOR.of_responses(tokens_BT.numpy()))
    assert 0 < int(counted.sum()) < counted.numel()
    logits_BTV, targets_BT = learner.forward(tokens_BT[:, :-1], {}), tokens_BT[:, 1:]
    whole = cross_entropy(logits_BTV, targets_BT, weights_BT)
    assert whole.item() == pytest.approx(
        cross_entropy(logits_BTV[counted][None], targets_BT[counted][None]).item()
    )
    shares = [reader.weights(micro_batch, rank, 2)[0] for rank in range(2)]
    assert torch.equal(torch.cat(shares), weights_BT)
    halves = zip(logits_BTV.split(2), targets_BT.split(2), shares, strict=True)
    assert sum(cross_entropy(*half).item() for half in halves) / 2 == pytest.approx(whole.item())
    (grad_BTV,) = torch.autograd.grad(whole, logits_BTV)
    assert torch.equal(grad_BTV.abs().sum(-1) > 0, counted)


def test_passes_train_the_same_weights_and_prompts_are_no_part_of_the_loss():
    whole, parts, merged = (
        Learner(CONFIG),
        Learner(CONFIG, num_passes=2),
        Learner(CONFIG, num_merged=2),
    )
    losses = {}
    for learner in (whole, parts, merged):
        steps = training_steps(
            learner, Schedule(CONFIG), ScheduleReader(CONFIG, asked(), separator=SEPARATOR)
        )
        losses[learner] = [record.losses for record in steps]
    for other in (parts, merged):
        np.testing.assert_allclose(losses[whole], losses[other], atol=1e-5)
        after = other.weights()
        assert all(
            torch.allclose(value, after[name], atol=1e-5) for name, value in whole.weights().items()
        )
    plain = dataclasses.replace(CONFIG, objective=Objective())
    every = [
        r.losses
        for r in training_steps(Learner(plain), Schedule(plain), ScheduleReader(plain, asked()))
    ]
    assert not np.allclose(losses[whole], every, atol=1e-3)


def test_text_without_the_separator_and_other_objectives_are_refused():
    with refused("objective.responses_after", " Response:"):
        ScheduleReader(CONFIG, asked(), separator=Separator((60, 1, 60), 0))
    with refused("objective.responses_after", " Response:"):
        Objective("maxent_kl", ("lisp",), responses_after=" Response:")
    assert CONFIG.run_id != dataclasses.replace(CONFIG, objective=Objective()).run_id
