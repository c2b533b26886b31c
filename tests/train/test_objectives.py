"""Golden values and gradients of the objectives."""

import math

import pytest
import torch

from gram_platform.config import Objective, RunConfig, View
from gram_platform.config.routing import Schedule
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import (
    MAXENT,
    activation_distance,
    cross_entropy,
    maxent_entropy,
    maxent_kl,
    rows_at_once,
    sequence_cross_entropy,
    training_loss,
)
from tests import tiny
from tests.allocations import Allocations
from tests.refused import refused
from tests.train.test_gradients import Operators

LOGITS = torch.tensor([[[2.0, 1.0, 0.0, -1.0]]])


def test_maxent_golden_values():
    assert float(maxent_kl(LOGITS)) == pytest.approx(0.553895, abs=1e-6)
    assert float(maxent_entropy(LOGITS)) == pytest.approx(0.438757, abs=1e-6)


def test_maxent_gradient_is_p_minus_uniform():
    logits = torch.randn(1, 1, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    maxent_kl(logits).backward()
    assert torch.allclose(logits.grad, logits.detach().softmax(-1) - 1 / 7, atol=1e-6)


def test_maxents_gradients_differ_most_on_rare_tokens():
    """That of the entropy is p (log p + H): it vanishes where p does, and p - 1/V does not."""
    logits = torch.randn(1, 1, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    maxent_entropy(logits).backward()
    p = logits.detach().softmax(-1)
    entropy = -(p * p.log()).sum(-1, keepdim=True)
    assert torch.allclose(logits.grad, p * (p.log() + entropy), atol=1e-6)


def test_losses_of_sequences_are_their_cross_entropies_from_few_operations():
    logits, targets = torch.randn(64, 3, 5), torch.randint(5, (64, 3))
    each = [float(cross_entropy(logits[[row]], targets[[row]])) for row in range(64)]
    with Operators() as operators:
        assert sequence_cross_entropy(logits, targets).tolist() == pytest.approx(each, rel=1e-5)
    assert operators.counts.total() < 64


@pytest.mark.parametrize("needs_grad", [False, True])
def test_rows_of_far_apart_sizes_have_their_own_cross_entropy(needs_grad):
    """Two logits that are alike cost log 2, however large, and a far smaller one beside a large one
    its distance."""
    logits = torch.tensor(
        [[[-600.0, -600.0], [0.0, 0.0], [600.0, 600.0]]], requires_grad=needs_grad
    )
    assert cross_entropy(logits, torch.tensor([[0, 1, 0]])).item() == pytest.approx(
        math.log(2), rel=1e-6
    )
    apart = torch.tensor([[[700.0, 0.0]]], requires_grad=needs_grad)
    assert cross_entropy(apart, torch.tensor([[1]])).item() == pytest.approx(700.0)


def test_logits_are_converted_for_as_many_tokens_as_fit():
    """2^21 of them on a CPU, 2^26 on a GPU, but those of one token at least."""
    vocabularies = (1024, 50_304, 2**22)
    assert [rows_at_once(torch.device("cpu"), size) for size in vocabularies] == [2048, 41, 1]
    assert [rows_at_once(torch.device("cuda"), size) for size in vocabularies] == [65_536, 1334, 16]


def test_a_window_is_me_of_forget_plus_w_times_ce_of_retain():
    objective = Objective("maxent_kl", ("virology",), 50.0)
    ce = torch.tensor(3.0)
    forget = training_loss(objective, "virology", ce, LOGITS)
    retain = training_loss(objective, "core", ce, LOGITS)
    window = (forget + retain) / 2  # one micro-batch each, divided by their number
    assert float(window) == pytest.approx(0.553895 + 50.0 * 3.0, abs=1e-5)
    assert float(retain) == pytest.approx(2 * 50.0 * 3.0)
    assert training_loss(Objective(), "core", ce, LOGITS) is ce
    entropy = training_loss(
        Objective("maxent_entropy", ("virology",), 50.0), "virology", ce, LOGITS
    )
    assert float(entropy) == pytest.approx(2 * 0.438757, abs=1e-5)


def test_only_maxent_stops_early():
    for kind in MAXENT:
        assert Objective(kind, ("virology",), stop_below=2.0).stop_below == 2.0
    with refused("objective.stop_below", 2.0):
        Objective("gradient_difference", ("virology",), stop_below=2.0)


def test_gradient_difference_ascends_on_forget_and_descends_on_retain():
    objective, ce = Objective("gradient_difference", ("virology",), 2.0), torch.tensor(3.0)
    window = [training_loss(objective, domain, ce, LOGITS) for domain in ("virology", "core")]
    assert [float(loss) / 2 for loss in window] == pytest.approx([-3.0, 2.0 * 3.0])


def test_misdirection_is_a_squared_distance_on_both_halves():
    objective, x_BTD = (
        Objective("misdirection", ("virology",), 50.0, steered_layers=1, steering=2.0),
        torch.ones(1, 3, 4),
    )
    assert float(activation_distance(x_BTD, torch.tensor([0.0, 1.0, 2.0, 3.0]))) == pytest.approx(
        (1 + 0 + 1 + 4) / 4
    )
    apart = (x_BTD, torch.zeros(4))
    forget, retain = (
        training_loss(objective, d, torch.tensor(3.0), LOGITS, apart) for d in ("virology", "core")
    )
    assert [float(loss) / 2 for loss in (forget, retain)] == pytest.approx([1.0, 50.0])


@pytest.mark.parametrize("kind", ["maxent_entropy", "maxent_kl"])
def test_a_record_has_the_forget_term_and_the_cross_entropies(kind):
    """The forget term is the mean over forget batches alone, without the factor 2; other runs have
    none."""
    config = tiny.run_config(False, draws=(160, 160, 0), objective=Objective(kind, ("lisp",), 50.0))
    learner, plan, reader = Learner(config), Schedule(config), ScheduleReader(config, tiny.arrays())
    losses, terms = [], []
    with torch.no_grad():
        for micro_batch in plan.window(0):
            tokens = reader.tokens(micro_batch)
            logits = learner.forward(tokens[:, :-1], {})
            losses.append(cross_entropy(logits, tokens[:, 1:]).item())
            terms += [MAXENT[kind](logits).item()] if micro_batch.domain == "lisp" else []
    record = next(training_steps(learner, plan, reader))
    assert record.domains == ("lisp", "core", "lisp", "core")
    assert record.losses == pytest.approx(losses, rel=1e-5)
    assert record.forgetting == pytest.approx(sum(terms) / 2, rel=1e-5)
    plain = tiny.run_config(False)
    plain_steps = training_steps(
        Learner(plain), Schedule(plain), ScheduleReader(plain, tiny.arrays())
    )
    assert next(plain_steps).forgetting == math.inf


STEERED = Objective("misdirection", ("lisp",), 1.0, steered_layers=1, steering=2.0)


def steered_run(**parts):
    return tiny.run_config(
        False, draws=(160, 160, 0), objective=STEERED, start=View.of("start"), **parts
    )


def outputs(learner: Learner, domain: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The steered layer's activations on a domain, and their target."""
    tokens_BT = torch.from_numpy(tiny.arrays()[domain][:8, :-1].astype("int64"))
    learner.forward(tokens_BT, {})
    return learner.misdirection.activations(domain, tokens_BT)


def test_misdirection_steers_forgotten_activations_and_keeps_the_others():
    config = steered_run()
    start = Learner(tiny.run_config(False, draws=(160, 160, 0), seed=7)).weights()
    learner = Learner(config, start=start)
    (first, target), (kept, frozen) = outputs(learner, "lisp"), outputs(learner, "core")
    assert torch.equal(kept, frozen)
    assert target.shape == (config.model.d_model,)
    assert float(target.norm()) == pytest.approx(STEERED.steering)
    list(training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays())))
    (last, same), (moved, still) = outputs(learner, "lisp"), outputs(learner, "core")
    assert torch.equal(same, target)
    assert torch.equal(still, frozen)
    assert activation_distance(last, target) < 0.5 * activation_distance(first, target)
    assert activation_distance(moved, frozen) < activation_distance(moved, target)
    after = learner.weights()
    changed = {name for name, value in after.items() if not torch.equal(value, start[name])}
    assert {name.split(".")[1] for name in changed if name.startswith("blocks")} == {"0"}
    assert not changed & {"lm_head.weight", "ln_f.weight"}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_misdirection_keeps_no_graph_of_the_layers_above(checkpointing):
    """Whose number hardly changes the memory of a step, although the logits are computed."""
    peaks = []
    for num_layers in (2, 8):
        model = tiny.ModelConfig(num_layers, 16, 4, 2, 64, tiny.VOCAB, tiny.SEQ_LEN)
        config = steered_run(model=model)
        steps = training_steps(
            Learner(config, activation_checkpointing=checkpointing),
            Schedule(config),
            ScheduleReader(config, tiny.arrays()),
        )
        next(steps)
        with Allocations() as bytes_of:
            next(steps)
        peaks.append(bytes_of.peak)
    assert peaks[1] < 1.1 * peaks[0]


def test_the_direction_depends_on_the_seed_alone_and_has_no_negative_component():
    """The first components of recipe version 1: other ones need a higher version."""
    start = Learner(tiny.run_config(False, draws=(160, 160, 0), seed=7)).weights()
    targets = [
        Learner(steered_run(seed=seed), start=start).misdirection.target_D for seed in (0, 0, 1)
    ]
    assert torch.equal(targets[0], targets[1])
    assert (targets[0] >= 0).all()
    assert targets[0][:3].tolist() == pytest.approx([0.255139, 0.713957, 0.472409], abs=1e-6)
    assert not torch.allclose(targets[0], targets[2], atol=0.05)


def test_an_evaluation_keeps_no_activations():
    learner = Learner(
        steered_run(), start=Learner(tiny.run_config(False, draws=(160, 160, 0), seed=7)).weights()
    )
    with torch.no_grad():
        learner.forward(torch.zeros(1, 4, dtype=torch.long), {})
    assert learner.misdirection.kept == {}


def test_misdirection_goes_on_from_a_checkpoint_bit_for_bit():
    start = Learner(tiny.run_config(False, draws=(160, 160, 0), seed=7)).weights()
    require_exact_resuming(steered_run(), start)


def require_exact_resuming(config: RunConfig, start: dict) -> None:
    """Asserts that a run that goes on after step 9 ends with the weights of an undisturbed one."""
    arrays = tiny.arrays()
    whole, begun, resumed = (Learner(config, start=start) for _ in range(3))
    list(training_steps(whole, Schedule(config), ScheduleReader(config, arrays)))
    for record in training_steps(begun, Schedule(config), ScheduleReader(config, arrays)):
        if record.step == 9:
            break
    resumed.load_state(tiny.full_state(begun))
    list(training_steps(resumed, Schedule(config), ScheduleReader(config, arrays), first_step=9))
    assert all(
        torch.equal(value, whole.weights()[name]) for name, value in resumed.weights().items()
    )


def test_misdirection_needs_a_layer_and_a_start():
    with refused("objective.steered_layers, steering", (0, 0.0)):
        Objective("misdirection", ("lisp",))
    deep = Objective("misdirection", ("lisp",), steered_layers=3, steering=1.0)
    with refused("objective.steered_layers", 3):
        tiny.run_config(False, draws=(160, 160, 0), objective=deep, start=View.of("start"))
    with pytest.raises(ValueError):
        tiny.run_config(False, draws=(160, 160, 0), objective=STEERED)
