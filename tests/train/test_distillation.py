"""UNDO's objective: the noised start, the loss, and what it refuses."""

import math

import pytest
import torch

from gram_platform.config import ModuleSpec, Objective, View
from gram_platform.config.routing import Schedule
from gram_platform.methods.budgets import plan_compute_units, run_flops
from gram_platform.methods.setting import Undo
from gram_platform.model.transformer import seed_generator
from gram_platform.train.data import ScheduleReader
from gram_platform.train.learner import Learner
from gram_platform.train.loop import training_steps
from gram_platform.train.objectives import distillation_kl
from tests import tiny
from tests.refused import refused
from tests.train.test_objectives import require_exact_resuming


def undo_run(noise=0.6, scale=0.1, **parts):
    objective = Objective("distillation", noise=noise, noise_scale=scale)
    parts = {"draws": (160, 160, 0), "start": View.of("start"), **parts}
    return tiny.run_config(False, objective=objective, **parts)


@pytest.fixture(scope="module")
def start():
    """Weights of a trained model, whose biases are not 0 and whose gains are not 1."""
    config = tiny.run_config(False, draws=(160, 160, 0), seed=7)
    learner = Learner(config)
    list(training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays())))
    return learner.weights()


def test_the_student_begins_as_the_teacher_with_noise(start):
    """Matrices become (1 - alpha) teacher + alpha beta N, where N is uniform within Xavier's bound.
    Vectors move towards their initial value."""
    alpha, beta = 0.6, 0.1
    student = Learner(undo_run(alpha, beta), start=start).weights()
    for name, weight in start.items():
        moved = student[name] - (1.0 - alpha) * weight
        if weight.dim() == 1:
            initial = 0.0 if name.endswith("bias") else 1.0
            assert torch.allclose(moved, torch.full_like(moved, alpha * initial), atol=1e-6), name
            continue
        noise, bound = moved / (alpha * beta), math.sqrt(6.0 / sum(weight.shape))
        assert noise.abs().max() <= bound * 1.001, name
        assert noise.std().item() == pytest.approx(bound / math.sqrt(3.0), rel=0.25), name
        assert abs(noise.mean().item()) < bound / 4, name


def test_noise_depends_on_seed_and_name_alone_and_is_not_the_initial_weights(start):
    first, again, other = (
        Learner(undo_run(1.0, 1.0, seed=seed), start=start).weights() for seed in (0, 0, 1)
    )
    initial = Learner(tiny.run_config(False, seed=0)).weights()
    matrices = [name for name, weight in start.items() if weight.dim() == 2]
    for name in matrices:
        assert torch.equal(first[name], again[name])
        assert not torch.allclose(first[name], other[name], atol=1e-3)
        pair = torch.stack([first[name].flatten(), initial[name].flatten()])
        assert abs(torch.corrcoef(pair)[0, 1]) < 0.2, name
    twins = [n for n in matrices if n.endswith("0.mlp.c_fc.weight")]
    assert not torch.equal(first[twins[0]], first[twins[0].replace(".0.", ".1.")])


def test_the_noise_of_the_first_version():
    """Other numbers are right only with a higher RECIPE_VERSION."""
    config, name = undo_run(1.0, 0.5), "blocks.1.mlp.c_fc.weight"
    noise = Learner(config, start=Learner(tiny.run_config(False)).weights()).weights()[name]
    generator = seed_generator(config.seed, "noise", name)
    uniform = torch.rand(noise.shape, generator=generator) * 2.0 - 1.0
    bound = math.sqrt(6.0 / sum(noise.shape))
    assert torch.allclose(noise, 0.5 * bound * uniform, atol=1e-6)
    assert noise[0, :3].tolist() == pytest.approx([0.028758, 0.173043, 0.171458], abs=1e-6)


def test_without_noise_and_steps_it_is_the_teacher(start):
    learner = Learner(undo_run(0.0, 0.0), start=start)
    assert all(torch.equal(value, start[name]) for name, value in learner.weights().items())
    assert all(torch.equal(value, start[name]) for name, value in learner.teacher.weights().items())


def test_the_loss_is_the_kl_divergence_from_the_teacher_to_the_student():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 2, 3, 5, generator=generator)
    student.requires_grad_(True)
    loss = distillation_kl(student, teacher)
    p, q = (logits.detach().double().softmax(-1) for logits in (teacher, student))
    assert loss.item() == pytest.approx((p * (p / q).log()).sum().item() / 6, rel=1e-5)
    loss.backward()
    assert torch.allclose(student.grad, ((q - p) / 6).float(), atol=1e-6)
    assert distillation_kl(teacher, teacher).item() == pytest.approx(0.0, abs=1e-6)


def divergence(learner) -> float:
    """The mean of KL(teacher || student) over the text of a domain."""
    tokens_BT = torch.from_numpy(tiny.arrays()["core"][:8, :-1].astype("int64"))
    with torch.no_grad():
        logits = learner.forward(tokens_BT, {})
        return distillation_kl(logits, learner.teach(tokens_BT, 1)[0]).item()


def test_a_window_minimises_the_divergence_and_reports_the_cross_entropy(start):
    config = undo_run()
    learner, plain = Learner(config, start=start), Learner(config, start=start)
    reader, tokens = ScheduleReader(config, tiny.arrays()), []
    for micro_batch in Schedule(config).window(0):
        tokens.append(reader.tokens(micro_batch))
    losses = []
    for rows in tokens:
        logits = plain.forward(rows[:, :-1], {})
        taught = plain.teacher.forward(rows[:, :-1], {}).detach()
        log_p = logits.log_softmax(-1)
        losses.append(-log_p.gather(-1, rows[:, 1:, None]).mean().item())
        p = taught.softmax(-1)
        ((p * (p.log() - log_p)).sum(-1).mean() / len(tokens)).backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in plain.masters.values()))
    record = next(training_steps(learner, Schedule(config), reader))
    assert record.losses == pytest.approx(losses, rel=1e-5)
    assert record.grad_norm == pytest.approx(norm, rel=1e-4)
    assert record.forgetting == math.inf


def test_the_student_comes_near_the_teacher_which_never_changes(start):
    config = undo_run(draws=(320, 320, 0))
    learner = Learner(config, start=start)
    before = divergence(learner)
    list(training_steps(learner, Schedule(config), ScheduleReader(config, tiny.arrays())))
    assert divergence(learner) < 0.5 * before
    assert all(torch.equal(value, start[name]) for name, value in learner.teacher.weights().items())


def test_it_goes_on_from_a_checkpoint_bit_for_bit(start):
    require_exact_resuming(undo_run(), start)


def test_the_teachers_passes_count():
    """A forward pass is a third of a training step: 4/3, less the embedding's untrained input."""
    run, plain = undo_run(), tiny.run_config(False, draws=(160, 160, 0))
    units = plan_compute_units(plain)
    assert plan_compute_units(run) == units + units // 3
    assert run_flops(run) / run_flops(plain) == pytest.approx(4 / 3, rel=0.05)


def test_what_is_refused():
    with refused("objective.noise", 1.5):
        Objective("distillation", noise=1.5)
    with refused("objective.noise", 0.5):
        Objective(noise=0.5)
    with refused("objective.forget", ("lisp",)):
        Objective("distillation", ("lisp",))
    with refused("objective.kind", "distillation"):
        undo_run(start=None)
    modules = (ModuleSpec("lisp", "mlp", 8),)
    with refused("model.modules", ("lisp",)):
        undo_run(model=tiny.ModelConfig(2, 16, 4, 2, 32, tiny.VOCAB, tiny.SEQ_LEN, modules))
    for field, value in {
        "teacher": "gram",
        "noise": -0.1,
        "noise_scale": -1.0,
        "compute": 1.1,
        "lr_factor": 0.0,
    }.items():
        with refused(f"undo.{field}", value):
            Undo(**{field: value})
