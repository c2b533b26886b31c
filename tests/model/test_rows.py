"""Mixed batches: every row gets the logits that its own profile gives it alone, and nothing of
another's module."""

import dataclasses

import pytest
import torch

from gram_platform.config import ModuleSpec
from gram_platform.config.routing import module_set
from gram_platform.config.training import ARCHITECTURES, STARCODER2
from gram_platform.model.row_modules import activation
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import build, is_module, parameter_set
from tests import tiny
from tests.refused import refused

DOMAINS = ("cyber", "lisp", "nuclear", "virology")
PROFILES = (
    {},
    {"cyber": 1.0},
    {"lisp": 0.5},
    {"nuclear": 2.0, "virology": 0.25},
    dict.fromkeys(DOMAINS, 1.0),
)
TOLERANCE = 1e-5  # float32


def random_model(
    kind: str = "mlp", widths=(4, 4, 4, 4), d_mlp: int = 32, architecture: str = STARCODER2
):
    of_kind = {"heads": ("reserved", (2, 1, 0, 1))}.get(kind, (kind, (0, 0, 0, 0)))
    sizes = zip(DOMAINS, widths, of_kind[1], strict=True)
    specs = tuple(ModuleSpec(domain, of_kind[0], *size) for domain, *size in sizes)
    config = tiny.model_config(modular=False, d_mlp=d_mlp)
    config = dataclasses.replace(config, modules=specs, architecture=architecture)
    model = build(config, tiny.initial_weights(config, seed=1)).eval().requires_grad_(False)
    for name, parameter in sorted(model.named_parameters()):
        seed = torch.Generator().manual_seed(sum(name.encode()))
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=seed))
    return model


def separate_logits(model, tokens: list[int], weights) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]), weights)[0, -1]


def read_all(reader, rows: list[tuple[list[int], dict]], lengths: list[int]) -> torch.Tensor:
    """Logits after each row's tokens: `lengths` of them at once with padding, the rest one by
    one."""
    active = activation(reader.domains, [weights for _, weights in rows])
    prompts = torch.full((len(rows), max(lengths)), 7)
    for row, (tokens, _) in enumerate(rows):
        prompts[row, : lengths[row]] = torch.tensor(tokens[: lengths[row]])
    seen = torch.tensor(lengths)
    logits = reader.read(prompts, torch.zeros(len(rows), dtype=torch.int64), seen, active)
    for step in range(len(rows[0][0]) - max(lengths)):
        tokens = torch.tensor(
            [[tokens[length + step]] for (tokens, _), length in zip(rows, lengths, strict=True)]
        )
        logits = reader.read(tokens, seen + step, torch.ones_like(seen), active)
    return logits


@pytest.mark.parametrize("kind", ["mlp", "lora", "reserved", "heads"])
@pytest.mark.parametrize("num_rows", [5, 10])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_mixed_logits_are_separate_logits(architecture, kind, num_rows):
    model, generator = (
        random_model(kind, architecture=architecture),
        torch.Generator().manual_seed(0),
    )
    profiles = [PROFILES[row % len(PROFILES)] for row in range(num_rows)]
    lengths = [1 + row % 4 for row in range(num_rows)]
    rows = [
        (torch.randint(0, tiny.VOCAB, (12,), generator=generator).tolist(), p) for p in profiles
    ]
    read = [
        tokens[: length + 12 - max(lengths)]
        for (tokens, _), length in zip(rows, lengths, strict=True)
    ]
    expected = [separate_logits(model, tokens, p) for tokens, p in zip(read, profiles, strict=True)]
    logits = read_all(RowReader(model, num_rows + 1), rows, lengths)
    assert torch.allclose(logits, torch.stack(expected), atol=TOLERANCE)
    other = random_model(kind, architecture=architecture)
    assert not torch.allclose(logits[0], separate_logits(other, rows[0][0], PROFILES[4]), atol=0.1)


@pytest.mark.parametrize("kind", ["mlp", "lora"])
@pytest.mark.parametrize("widths", [(4, 4, 4, 4), (2, 8, 4, 1)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_at_once_is_one_after_the_other(architecture, widths, kind):
    model = random_model(kind, widths, architecture=architecture)
    profiles = [{DOMAINS[row % 4]: 1.0 if row < 4 else 2.0} for row in range(7)]
    active = activation(DOMAINS, profiles)
    assert active.padded is not None
    tokens = torch.arange(7)[:, None] + torch.arange(3)
    expected = torch.stack(
        [separate_logits(model, t.tolist(), p) for t, p in zip(tokens, profiles, strict=True)]
    )
    reader = RowReader(model, 7)
    none, three = torch.zeros(7, dtype=torch.int64), torch.full((7,), 3)
    at_once = reader.read(tokens, none, three, active)
    one_by_one = reader.read(tokens, none, three, dataclasses.replace(active, padded=None))
    assert torch.allclose(at_once, expected, atol=TOLERANCE)
    assert torch.allclose(one_by_one, expected, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["mlp", "lora", "heads"])
@pytest.mark.parametrize("holders", [[0, 1, 2], [0]])
def test_a_poisoned_module_reaches_only_the_rows_that_have_it(kind, holders):
    """NaN times zero is NaN: a module that is weighted away would show here."""
    profiles = [
        {"lisp": 1.0} if row in holders else dict.fromkeys(("cyber", "nuclear")[row % 2 :], 1.0)
        for row in range(6)
    ]
    tokens, none, two = (
        torch.arange(12).reshape(6, 2),
        torch.zeros(6, dtype=torch.int64),
        torch.full((6,), 2),
    )
    clean = RowReader(random_model(kind), 6).read(tokens, none, two, activation(DOMAINS, profiles))
    model = random_model(kind)
    for name, parameter in model.named_parameters():
        if parameter_set(name) == module_set("lisp"):
            parameter.fill_(float("nan"))
    poisoned = RowReader(model, 6).read(tokens, none, two, activation(DOMAINS, profiles))
    for row in range(6):
        assert (
            poisoned[row].isnan().all()
            if row in holders
            else torch.equal(poisoned[row], clean[row])
        )


def test_a_row_does_not_see_what_was_there_before_it():
    model, none = random_model(), torch.zeros(1, dtype=torch.int64)
    expected = separate_logits(model, [1, 2, 3], {})
    reader = RowReader(model, 2)
    core, virology = activation(DOMAINS, [{}]), activation(DOMAINS, [{"virology": 1.0}])
    reader.read(torch.full((1, tiny.SEQ_LEN), 9), none, torch.tensor([tiny.SEQ_LEN]), virology)
    for memory in (reader.keys_LRKSh, reader.values_LRKSh):
        memory[:, :, :, 2:] = float("nan")
    reader.clear(0, 1)
    reader.read(torch.tensor([[1, 2, 0, 0, 0]]), none, torch.tensor([2]), core)
    logits = reader.read(torch.tensor([[3]]), torch.tensor([2]), torch.tensor([1]), core)
    assert torch.allclose(logits[0], expected, atol=TOLERANCE)


def test_a_moved_row_goes_on_where_it_was():
    model, tokens = random_model(), [5, 6, 7, 8]
    expected = separate_logits(model, tokens, {"lisp": 1.0})
    reader, lisp = RowReader(model, 3), activation(DOMAINS, [{"lisp": 1.0}])
    reader.read(torch.tensor([tokens[:3]]), torch.tensor([0]), torch.tensor([3]), lisp, first_row=2)
    reader.move(2, 0, num_seen=3)
    logits = reader.read(torch.tensor([tokens[3:]]), torch.tensor([3]), torch.tensor([1]), lisp)
    assert torch.allclose(logits[0], expected, atol=TOLERANCE)


def test_a_moved_row_does_not_see_what_was_there_before_it():
    model, none = random_model(), torch.zeros(3, dtype=torch.int64)
    active = activation(DOMAINS, [{}, {}])
    reader, expected = RowReader(model, 3), separate_logits(model, [5, 6, 7], {})
    prompts = torch.tensor([[9] * 6, [1, 2, 3, 4, 8, 8], [5, 6, 0, 0, 0, 0]])
    reader.read(prompts, none, torch.tensor([6, 6, 2]), activation(DOMAINS, [{}] * 3))
    for memory in (reader.keys_LRKSh, reader.values_LRKSh):
        memory[:, 0] = float("nan")  # what a broken module may leave
    reader.move(2, 0, num_seen=2)
    logits = reader.read(
        torch.tensor([[7], [4]]), torch.tensor([2, 6]), torch.ones(2, dtype=torch.int64), active
    )
    assert torch.allclose(logits[0], expected, atol=TOLERANCE)


def test_unknown_modules_are_refused():
    with refused("rows.weights", "magic"):
        activation(DOMAINS, [{}, {"magic": 1.0}])


@pytest.mark.parametrize("kind", ["mlp", "lora"])
def test_modules_are_moved_into_stacks_not_copied(kind):
    model = random_model(kind)
    RowReader(model, 1)
    assert not [name for name, _ in model.named_parameters() if is_module(name)]


def test_modules_of_two_kinds_are_refused():
    modules = tuple(
        ModuleSpec(domain, kind, 4) for domain, kind in zip(DOMAINS, ("mlp", "lora"), strict=False)
    )
    config = dataclasses.replace(tiny.model_config(modular=False), modules=modules)
    with refused("model.modules", ["lora", "mlp"]):
        RowReader(build(config, tiny.initial_weights(config, seed=1)), 1)
