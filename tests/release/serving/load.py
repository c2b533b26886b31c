"""Many clients at once, each asking for one profile after another, and what became of every single
request."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

REPLIES_TO_REPEAT = (429, 503)  # they say when to come again


@dataclass
class Record:
    """Of all clients together."""

    # Of answered requests, repetitions included.
    latencies_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    answered: Counter = field(default_factory=Counter)  # by profile
    wrong: list[tuple[str, str]] = field(default_factory=list)  # (profile, what was said instead)
    lost: list[str] = field(default_factory=list)  # why
    num_repeated: int = 0
    elapsed_s: float = 0.0

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def summary(self) -> str:
        rate, speed = len(self.latencies_s) / self.elapsed_s, self.num_tokens / self.elapsed_s
        times = ", ".join(f"p{round(100 * q)} {self.quantile(q):.2f} s" for q in (0.5, 0.9, 0.99))
        counts = (
            f"{len(self.wrong)} wrong, {len(self.lost)} lost, {self.num_repeated} told to come"
            " again"
        )
        return (
            f"{len(self.latencies_s)} answers ({rate:.0f}/s, {speed:.0f} tokens/s), {times};"
            f" {counts}"
        )


@dataclass(frozen=True)
class Question:
    """A prompt, and what every profile says to it with temperature 0."""

    prompt: str
    answers: Mapping[str, str]  # profile -> text
    num_tokens: int


async def hammer(
    address: str,
    tokens: Sequence[Mapping[str, str]],
    questions: list[Question],
    num_clients: int,
    duration_s: float,
    beside: Sequence[Callable[[], Coroutine]] = (),
) -> Record:
    """Every client begins its last request before `duration_s` is over and waits for its answer.

    `tokens`: each client's by profile, in turn; `beside`: what others do meanwhile, each until it
    is cancelled.
    """
    record, started = Record(), time.monotonic()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(address, connector=connector, timeout=timeout) as session:
        until, others = started + duration_s, [asyncio.create_task(act()) for act in beside]
        own = (tokens[number % len(tokens)] for number in range(num_clients))
        await asyncio.gather(
            *(_client(session, t, questions, n, until, record) for n, t in enumerate(own))
        )
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    record.elapsed_s = time.monotonic() - started
    return record


async def _client(session, tokens, questions, number: int, until: float, record: Record) -> None:
    chooser = random.Random(number)
    profiles = sorted(questions[0].answers)
    while time.monotonic() < until:
        question, profile = chooser.choice(questions), chooser.choice(profiles)
        began = time.monotonic()
        try:
            text = await _ask(
                session, tokens[profile], profile, question, chooser.random() < 0.5, record
            )
        except (aiohttp.ClientError, TimeoutError, AssertionError) as error:
            record.lost.append(repr(error))
            continue
        record.latencies_s.append(time.monotonic() - began)
        record.num_tokens += question.num_tokens
        record.answered[profile] += 1
        if text != question.answers[profile]:
            record.wrong.append((profile, text))


async def _ask(
    session, token: str, profile: str, question: Question, stream: bool, record: Record
) -> str:
    """The answer's text, whole; asks again when it is told to."""
    body = {
        "model": profile,
        "prompt": question.prompt,
        "max_tokens": question.num_tokens,
        "temperature": 0,
    }
    body["stream"] = stream
    while True:
        headers = {"Authorization": f"Bearer {token}"}
        async with session.post("/v1/completions", json=body, headers=headers) as response:
            if response.status in REPLIES_TO_REPEAT:
                record.num_repeated += 1
                await asyncio.sleep(float(response.headers["Retry-After"]))
                continue
            assert response.status == 200, f"status {response.status}: {await response.text()}"
            if not stream:
                return (await response.json())["choices"][0]["text"]
            return _streamed_text(await response.text())


async def greedy(address: str, token: str, num_requests: int, statuses: Counter) -> None:
    """Keeps so many requests of one token open, each asked again when it ends or when a refusal
    says so."""

    async def ask(session) -> None:
        body = {"prompt": "more", "max_tokens": 40, "temperature": 0}
        headers = {"Authorization": f"Bearer {token}"}
        while True:
            try:
                async with session.post("/v1/completions", json=body, headers=headers) as got:
                    statuses[got.status] += 1
                    await got.read()
                await asyncio.sleep(float(got.headers.get("Retry-After", 0)))
            except aiohttp.ClientError as error:
                statuses[type(error).__name__] += 1

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, connector=connector) as session:
        await asyncio.gather(*(ask(session) for _ in range(num_requests)))


def _streamed_text(body: str) -> str:
    *events, done, rest = body.split("\n\n")
    assert (done, rest) == ("data: [DONE]", ""), f"a stream without an end: {body[-200:]}"
    parsed = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("error" not in event for event in parsed), body[-200:]
    return "".join(event["choices"][0]["text"] for event in parsed)
