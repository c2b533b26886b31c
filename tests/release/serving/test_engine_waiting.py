"""Requests that wait: a group of them is read between two steps, and whoever is at work goes on
meanwhile."""

import queue
import threading
import time
from itertools import chain, pairwise

from gram_platform.release.serving import engine as engine_module
from gram_platform.release.serving.batch import LENGTH, ActiveSequence, GenerationRequest
from gram_platform.release.serving.engine import LATE, Delivery, Engine, EngineLimits
from tests.release.serving.planted import ANSWERS
from tests.release.serving.test_engine import all_tokens, grant, planted_batch, submitted


class Watched:
    """A planted batch whose groups of new requests are counted; the first is held until it is let
    go."""

    def __init__(self, num_rows: int):
        self.batch, self.groups, self.times = planted_batch(num_rows), [], []
        self.holding, self.let_go, self.meanwhile = (
            threading.Event(),
            threading.Event(),
            lambda: None,
        )
        self._admit, self.batch.admit = self.batch.admit, self.admit

    def admit(self, new: list[ActiveSequence]) -> list[ActiveSequence]:
        self.groups.append([len(sequence.request.prompt) for sequence in new])
        self.times.append((time.monotonic(), self.engine._last_step))
        self.holding.set()
        assert self.let_go.wait(60)
        self.meanwhile()
        return self._admit(new)

    def started(self, **limits: float) -> Engine:
        self.engine = Engine(self.batch, EngineLimits(num_rows=self.batch.num_free, **limits))
        return self.engine


def test_a_stream_continues_while_short_requests_wait():
    """No more than one group of prompts is read between two of its tokens, and the clock goes on
    with each."""
    watched, seen, tokens = Watched(4), [], queue.SimpleQueue()
    engine = watched.started(num_waiting=600, deadline_s=300.0)

    def receive(delivery: Delivery) -> None:
        seen.append(len(watched.groups))
        tokens.put(delivery)

    engine.submit(GenerationRequest((1,), 60), grant("open"), receive)
    short = [submitted(engine, GenerationRequest((1,) * 40, 1), "both")[1] for _ in range(500)]
    watched.let_go.set()
    assert all_tokens(tokens) == ([ANSWERS["open"]] * 60, LENGTH)
    assert [all_tokens(received) for received in short] == [([ANSWERS["both"]], LENGTH)] * 500
    assert max(after - before for before, after in pairwise(seen)) == 1
    assert seen[-1] >= 59  # short requests came in all along
    assert all(read <= clock for (read, _), (_, clock) in pairwise(watched.times))
    engine.check()
    engine.close()


def test_late_requests_are_dropped_while_short_ones_arrive():
    watched = Watched(2)
    engine = watched.started(num_waiting=600)

    def time_passes() -> None:
        if len(watched.groups) == 5:  # whoever still waits is late
            engine._next_late_check = 0.0
            for job in chain.from_iterable(engine._waiting.values()):
                job.deadline = 0.0

    watched.meanwhile = time_passes
    received = [submitted(engine, GenerationRequest((1,) * 40, 1), "both")[1] for _ in range(500)]
    watched.let_go.set()
    ends = [all_tokens(r)[1] for r in received]
    num_read = sum(map(len, watched.groups))
    assert len(watched.groups) == 5
    assert ends == [LENGTH] * num_read + [LATE] * (500 - num_read)
    engine.close()


def test_waiting_prompts_are_read_together_up_to_the_limit(monkeypatch):
    watched = Watched(16)
    engine = watched.started()
    first = submitted(engine, GenerationRequest((1,), 60), "open")[1]
    assert watched.holding.wait(60)
    monkeypatch.setattr(engine_module, "MAX_PROMPT_TOKENS", 100)
    lengths = [10] * 5 + [20, 40, 40, 1]  # with padding 50, 80 and 80 tokens
    received = [
        submitted(engine, GenerationRequest((1,) * length, 2), "lisp")[1] for length in lengths
    ]
    watched.let_go.set()
    assert [all_tokens(r)[1] for r in (first, *received)] == [LENGTH] * 10
    assert watched.groups == [[1], [10] * 5, [20, 40], [40, 1]]
    engine.close()


def test_free_rows_go_to_who_has_the_fewest_at_work():
    """A greedy holder's queue delays others by no more than the requests that they have
    themselves."""
    watched, ends = Watched(4), []
    engine = watched.started(num_waiting=600)

    def ask(profile: str) -> None:
        engine.submit(
            GenerationRequest((1,), 2),
            grant(profile),
            lambda d: ends.append(profile) if d.end else None,
        )

    ask("open")  # held while the others arrive
    assert watched.holding.wait(60)
    for profile, number in (("open", 399), ("lisp", 3), ("both", 9)):
        for _ in range(number):
            ask(profile)
    watched.let_go.set()
    while len(ends) < 412:
        time.sleep(0.01)
    engine.close()
    assert max(n for n, who in enumerate(ends) if who == "lisp") < 3 * 3 + 4
    assert max(n for n, who in enumerate(ends) if who == "both") < 3 * 9 + 4
