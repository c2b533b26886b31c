"""Continuations of a mixed batch: everybody gets their own profile's, whoever else is at work,
comes or goes."""

import dataclasses
import math
import queue
import threading
import time

import pytest
import torch

from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import build
from gram_platform.release.serving import engine as engine_module
from gram_platform.release.serving.batch import (
    COLDEST,
    LENGTH,
    STOP,
    ActiveSequence,
    Batch,
    GenerationRequest,
    next_tokens,
)
from gram_platform.release.serving.engine import FAILED, LATE, Delivery, Engine, EngineLimits
from gram_platform.release.serving.policy import Grant
from gram_platform.train.evaluate import draw
from tests import tiny
from tests.release.serving.http import load_of
from tests.release.serving.planted import ANSWERS, SEQ_LEN, WEIGHTS, planted, planted_model

VOCAB = 300


def grant(profile: str) -> Grant:
    return Grant(profile, profile, tuple(WEIGHTS[profile].items()))


def planted_batch(num_rows: int) -> Batch:
    return Batch(RowReader(planted_model(planted().config), num_rows), VOCAB, end_of_text=0)


def random_batch(num_rows: int, end_of_text: int = -1) -> Batch:
    config = planted().config
    model = build(config, tiny.initial_weights(config, seed=3)).eval().requires_grad_(False)
    for name, parameter in sorted(model.named_parameters()):
        parameter.add_(
            0.4
            * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(sum(name.encode()))
            )
        )
    return Batch(RowReader(model, num_rows), VOCAB, end_of_text)


def completed(batch: Batch, request: GenerationRequest, profile: str) -> ActiveSequence:
    (sequence,) = batch.admit([ActiveSequence(request, grant(profile))])
    while batch.sequences:
        batch.step()
    return sequence


def test_an_end_of_text_ends_and_frees_the_row():
    """Also as the last token that may be drawn."""
    request = GenerationRequest((7, 200, 31), 15, temperature=0.7, seed=2)
    drawn = completed(random_batch(1), request, "open").drawn
    expected = drawn[: drawn.index(drawn[3]) + 1]
    for max_tokens in (request.max_tokens, len(expected)):
        shorter = dataclasses.replace(request, max_tokens=max_tokens)
        sequence = completed(random_batch(1, end_of_text=drawn[3]), shorter, "open")
        assert sequence.end == STOP
        assert sequence.drawn == expected


def test_drawn_tokens_follow_temperature_and_nucleus():
    logits = torch.tensor([0.0, 2.0, -1.0, 1.0]).expand(4000, 4)
    numbers = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for temperature, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.8), (2.0, 0.8), (2.0, 1e-9)):
        full = (
            torch.full((4000,), temperature, dtype=torch.float64),
            torch.full((4000,), top_p, dtype=torch.float64),
        )
        tokens = next_tokens(logits, *full, numbers)
        p = torch.softmax(logits[0].double() / temperature, dim=0)
        kept = p * ((p > p[:, None]).double() @ p < top_p)  # by the probability of what is likelier
        assert torch.allclose(
            torch.bincount(tokens, minlength=4) / 4000, (kept / kept.sum()).float(), atol=1e-3
        )
    both = torch.tensor([0.0, 1.0], dtype=torch.float64)
    tokens = next_tokens(
        logits[:2], both, torch.ones(2, dtype=torch.float64), torch.tensor([0.99, 0.99]).double()
    )
    assert tokens.tolist() == [1, draw(logits[:1], torch.tensor([0.99]).double())[0].item()]


def test_a_nucleus_ends_with_the_token_that_reaches_top_p():
    """Of 32 equal tokens, the first 16 reach a half and the first 17 a little more; rows of all
    nuclei in one call."""
    nuclei = {
        1e-9: 1,
        0.25: 8,
        math.nextafter(0.25, 1): 9,
        0.5: 16,
        math.nextafter(0.5, 1): 17,
        0.75: 24,
        1.0: 32,
    }
    top_ps = torch.tensor(list(nuclei), dtype=torch.float64).repeat_interleave(64)
    numbers = ((torch.arange(64, dtype=torch.float64) + 0.5) / 64).repeat(len(nuclei))
    tokens = next_tokens(
        torch.zeros(len(numbers), 32), torch.ones_like(numbers), top_ps, numbers
    ).view(-1, 64)
    assert [set(row) for row in tokens.tolist()] == [
        set(range(number)) for number in nuclei.values()
    ]


def test_of_equal_tokens_only_a_temperature_below_the_coldest_takes_the_first():
    temperatures = torch.tensor([0.0, 5e-324, 9e-7, COLDEST], dtype=torch.float64)
    ones, numbers = torch.ones_like(temperatures), torch.full_like(temperatures, 0.99)
    assert next_tokens(torch.zeros(4, 4), temperatures, ones, numbers).tolist() == [0, 0, 0, 3]
    likeliest = torch.tensor([1.0, 30.0, 29.0, 0.0]).expand(4, 4)
    assert next_tokens(likeliest, temperatures, ones / 2, numbers).tolist() == [1] * 4


@pytest.mark.parametrize(
    "wanted",
    [
        GenerationRequest((0, VOCAB - 1) * 30 + (1,), 4, temperature=0.0, seed=-(2**63)),
        GenerationRequest((1,), SEQ_LEN, temperature=100.0, top_p=1e-9, seed=2**63 - 1),
    ],
)
def test_requests_that_just_fit_are_answered(wanted):
    assert len(completed(random_batch(1), wanted, "both").drawn) == wanted.max_tokens


def all_tokens(received: queue.SimpleQueue) -> tuple[list[int], str]:
    tokens = []
    while True:
        delivery: Delivery = received.get(timeout=30)
        tokens += delivery.tokens
        if delivery.end:
            return tokens, delivery.end


def submitted(
    engine: Engine, request: GenerationRequest, profile: str
) -> tuple[int | None, queue.SimpleQueue]:
    received = queue.SimpleQueue()
    return engine.submit(request, grant(profile), received.put), received


@pytest.fixture
def engine():
    made = Engine(planted_batch(8), EngineLimits(num_rows=8, num_waiting=100))
    yield made
    made.close()


def test_many_threads_get_their_own_answers(engine):
    wrong, lock = [], threading.Lock()

    def caller(number: int) -> None:
        for i in range(5):
            profile, length = list(ANSWERS)[(number + i) % 4], 1 + (number * 5 + i) % 20
            got = all_tokens(
                submitted(engine, GenerationRequest((9,) * (1 + i), length), profile)[1]
            )
            if got != ([ANSWERS[profile]] * length, LENGTH):
                with lock:
                    wrong.append((profile, got))

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert load_of(engine) == (0, 0)
    engine.check()


def test_more_than_fit_are_refused_and_abandoned_ones_make_room(engine):
    slow = threading.Event()
    step = engine._batch.step
    engine._batch.step = lambda: (slow.wait(), step())[1]
    taken = [submitted(engine, GenerationRequest((1,), 4), "open") for _ in range(108)]
    assert all(number is not None for number, _ in taken)
    assert submitted(engine, GenerationRequest((1,), 4), "open")[0] is None
    engine.abandon(taken[-1][0])
    engine.abandon(taken[0][0])
    slow.set()
    ends = [all_tokens(received)[1] for _, received in taken]
    assert ends[-1] == LATE  # it had no row yet
    assert ends[1:-1] == [LENGTH] * 106
    assert load_of(engine) == (0, 0)


def test_late_requests_end_and_free_their_rows():
    batch = planted_batch(2)
    step = batch.step
    batch.step = lambda: (time.sleep(0.05), step())[1]
    engine = Engine(batch, EngineLimits(num_rows=2, num_waiting=10, deadline_s=0.6))
    received = [submitted(engine, GenerationRequest((1,), 60), "open")[1] for _ in range(3)]
    got = [all_tokens(r) for r in received]
    assert [end for _, end in got] == [LATE] * 3
    assert 1 <= len(got[0][0]) < 60
    assert got[2][0] == []
    assert all_tokens(submitted(engine, GenerationRequest((1,), 3), "both")[1]) == (
        [4, 4, 4],
        LENGTH,
    )
    engine.close()


def test_a_dead_thread_ends_every_request_and_is_unhealthy():
    batch, all_there = planted_batch(2), threading.Event()
    engine = Engine(batch, EngineLimits(num_rows=2, num_waiting=10))
    engine.check()
    batch.step = lambda: all_there.wait() and 1 / 0
    received = [submitted(engine, GenerationRequest((1,), 60), "open")[1] for _ in range(3)]
    all_there.set()
    assert [all_tokens(r)[1] for r in received] == [FAILED] * 3
    engine._thread.join(60)
    with pytest.raises(RuntimeError):
        engine.check()
    assert submitted(engine, GenerationRequest((1,), 1), "open")[0] is None


def test_a_stalled_thread_is_unhealthy(monkeypatch):
    batch, release = planted_batch(2), threading.Event()
    step = batch.step
    monkeypatch.setattr(engine_module, "STALL_S", 0.5)
    monkeypatch.setattr(engine_module, "LONGEST_WAIT_S", 0.1)
    engine = Engine(batch, EngineLimits(num_rows=2, num_waiting=10))
    time.sleep(0.7)
    engine.check()  # idle is not stalled
    batch.step = lambda: (release.wait(), step())[1]
    received = submitted(engine, GenerationRequest((1,), 2), "open")[1]
    time.sleep(0.7)
    with pytest.raises(RuntimeError):
        engine.check()
    release.set()
    assert all_tokens(received)[1] == LENGTH
    engine.close()
