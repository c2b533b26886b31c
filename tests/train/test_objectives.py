"""Golden values and gradients of the objectives."""

import math

import pytest
import torch

from gram_platform.config import Objective
from gram_platform.train.objectives import cross_entropy, maxent_entropy, maxent_kl, training_loss

LOGITS = torch.tensor([[[2.0, 1.0, 0.0, -1.0]]])


def test_maxent_golden_values():
    assert float(maxent_kl(LOGITS)) == pytest.approx(0.553895, abs=1e-6)
    assert float(maxent_entropy(LOGITS)) == pytest.approx(-0.947537, abs=1e-6)


def test_maxent_gradient_is_p_minus_uniform():
    logits = torch.randn(1, 1, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    maxent_kl(logits).backward()
    assert torch.allclose(logits.grad, logits.detach().softmax(-1) - 1 / 7, atol=1e-6)


def test_maxent_is_least_for_the_uniform_distribution():
    assert float(maxent_kl(torch.zeros(2, 3, 5))) == pytest.approx(0.0, abs=1e-6)
    assert float(maxent_entropy(torch.zeros(2, 3, 5))) == pytest.approx(-math.log(5))


def test_cross_entropy_is_the_mean_over_tokens():
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[0, 1, 2], [3, 4, 0]])
    picked = logits.log_softmax(-1).gather(-1, targets[..., None])
    assert float(cross_entropy(logits, targets)) == pytest.approx(-float(picked.mean()), abs=1e-6)


def test_a_window_is_me_of_forget_plus_w_times_ce_of_retain():
    objective = Objective("maxent_kl", ("virology",), 50.0)
    ce = torch.tensor(3.0)
    forget = training_loss(objective, "virology", ce, LOGITS)
    retain = training_loss(objective, "core", ce, LOGITS)
    window = (forget + retain) / 2  # one micro-batch each, divided by their number
    assert float(window) == pytest.approx(0.553895 + 50.0 * 3.0, abs=1e-5)
    assert training_loss(Objective(), "core", ce, LOGITS) is ce
