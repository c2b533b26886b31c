"""Histories of revocation: a policy is edited while replicas, proxy, keeper and command are killed
under clients."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

from gram_platform.release.serving.policy import LEASE_S, new_token, token_digest
from tests.release.planted import entry_of
from tests.release.serving.planted import ANSWERS, POLICY, planted, write_storage
from tests.release.serving.running import GRAM, START_TIMEOUT_S, environment, wait_for_port

pytestmark = pytest.mark.ray
BOUND_S = 15.0  # what SECURITY.md promises, from the edit to the last byte
NUM_KILLS, NUM_CLIENTS, NUM_TOKENS = 50, 24, 8
TARGETS = (":Model", ":Ingress", "ProxyActor", "PolicyKeeper", "command")
BESIDE = (
    "",
    '[[tokens]]\nname = "wrong"\n',
    "[[tokens]",
    entry_of("more", "more", ("nobodys",)),
)  # what might delay it


@dataclass
class Heard:
    """One request: when its answer's head came, its last text, and its end."""

    token: str
    status: int
    head_at: float
    text_at: float
    end_at: float
    stream: bool


@dataclass
class History:
    """What was done and heard so far, in seconds of `time.monotonic`."""

    removed_at: dict[str, float] = field(default_factory=dict)  # by token
    heard: list[Heard] = field(default_factory=list)
    killed: Counter = field(default_factory=Counter)
    port: int = 0  # 0 before the command has started
    tokens: list[str] = field(default_factory=list)  # in the policy
    is_over: bool = False

    def latest_s(self) -> tuple[float, float]:
        """The last text, and the last end of a stream that was open at the removal, both from the
        token's removal."""
        after = [h for h in self.heard if h.token in self.removed_at and h.status == 200]
        begun = [h.text_at - self.removed_at[h.token] for h in after]
        open_then = [h for h in after if h.stream and h.head_at < self.removed_at[h.token]]
        return max(begun), max(
            (h.end_at - self.removed_at[h.token] for h in open_then), default=0.0
        )


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_no_answer_outlives_its_token_under_fifty_kills(tmp_path, ray_cluster, capsys):
    seed = random.SystemRandom().randrange(10**6)
    chooser, history = random.Random(seed), History()
    folder = tmp_path / "storage"
    address = ray_cluster.get_runtime_context().gcs_address
    command = [
        *GRAM,
        "serve",
        write_storage(folder, planted()),
        "--storage",
        str(folder),
        "--ray-address",
        address,
    ]
    command += [
        "--policy",
        str(folder / "policy.toml"),
        "--port",
        "0",
        "--rows",
        "1",
        "--waiting",
        "60",
    ]
    edit(history, chooser, folder / "policy.toml")
    clients = threading.Thread(target=lambda: asyncio.run(hammer(history)))
    editing = threading.Thread(
        target=edit_often, args=(history, random.Random(seed + 1), folder / "policy.toml")
    )
    try:
        for thread in (clients, editing):
            thread.start()
        while history.killed.total() < NUM_KILLS:
            with commanded(command, tmp_path, history) as process:
                while process.poll() is None and history.killed.total() < NUM_KILLS:
                    time.sleep(chooser.uniform(0.5, 6.0))
                    if chooser.random() < 0.5:
                        wait_for_an_answer(history)
                    kill_one(history, chooser, process)
                # On its own Ray its replicas live on without it.
                time.sleep(chooser.uniform(0.0, LEASE_S + 5.0))
    finally:
        history.is_over = True
        for thread in (clients, editing):
            thread.join()
    answer_s, stream_s = history.latest_s()
    statuses = Counter(heard.status for heard in history.heard)
    with capsys.disabled():
        print(
            f"\nseed {seed}, killed {dict(history.killed)}; {len(history.removed_at)} tokens"
            f" removed; {dict(statuses)}"
        )
        print(
            f"last text {answer_s:.1f} s after its token's removal, last end of an open stream"
            f" {stream_s:.1f} s"
        )
    served = {heard.token for heard in history.heard if heard.status == 200}
    assert len(served & set(history.removed_at)) >= 20, (
        "too few tokens were removed while they were used"
    )
    assert statuses[401] > 20
    assert answer_s <= BOUND_S, f"seed {seed}"
    assert stream_s <= BOUND_S, f"seed {seed}"


def edit(history: History, chooser: random.Random, path: Path) -> None:
    """Removes a random token for good and adds new ones; the file may be wrong otherwise."""
    kept = list(history.tokens)
    removed = [kept.pop(chooser.randrange(len(kept)))] if kept else []
    kept += [new_token() for _ in range(NUM_TOKENS - len(kept))]
    named = {token: choice(token) for token in kept}
    entries = [entry_of(f"h{token_digest(t)[:12]}", t, (profile,)) for t, profile in named.items()]
    text = "".join([*entries, chooser.choice(BESIDE)])
    beside = path.with_suffix(".new")
    beside.write_text(POLICY + text)
    os.replace(beside, path)
    history.tokens = kept
    history.removed_at |= dict.fromkeys(removed, time.monotonic())


def choice(token: str) -> str:
    return sorted(ANSWERS)[sum(token.encode()) % len(ANSWERS)]


def edit_often(history: History, chooser: random.Random, path: Path) -> None:
    while not history.is_over:
        time.sleep(chooser.uniform(0.5, 8.0))
        edit(history, chooser, path)


def kill_one(history: History, chooser: random.Random, process: subprocess.Popen) -> None:
    target = chooser.choices(TARGETS, weights=(6, 4, 5, 5, 2))[0]
    if target == "command":
        process.kill()
        process.wait()
    else:
        found = [
            p for p in psutil.Process().children(recursive=True) if target in " ".join(p.cmdline())
        ]
        if not found:
            return
        chooser.choice(found).kill()
    history.killed[target] += 1


def wait_for_an_answer(history: History, timeout_s: float = 60.0) -> None:
    """Without it nearly nobody would be answered, so that little could be wrong."""
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        if any(heard.status == 200 and heard.head_at > started for heard in history.heard[-200:]):
            return
        time.sleep(0.1)


@contextlib.contextmanager
def commanded(command: list[str], folder: Path, history: History) -> Iterator[subprocess.Popen]:
    """`gram serve`, started again until it is ready, for a policy may be wrong just now; its Ray
    Serve ends with it."""
    from ray import serve

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        log = folder / f"serve-{time.monotonic_ns()}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env=environment(), stdout=output, stderr=output, start_new_session=True
            )
        with contextlib.suppress(AssertionError):
            history.port = wait_for_port(process, log)
            break
        assert time.monotonic() < deadline, log.read_text()[-3000:]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        serve.shutdown()


async def hammer(history: History) -> None:
    timeout = aiohttp.ClientTimeout(total=90)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as session:
        await asyncio.gather(
            *(client(session, history, random.Random(number)) for number in range(NUM_CLIENTS))
        )


async def client(session: aiohttp.ClientSession, history: History, chooser: random.Random) -> None:
    """Asks with tokens in the policy, and as often with one that was removed lately."""
    while not history.is_over:
        lately = [
            t for t, at in list(history.removed_at.items()) if time.monotonic() - at < 2 * BOUND_S
        ]
        tokens = chooser.choice([kind for kind in (list(history.tokens), lately) if kind])
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            if history.port:
                await ask(session, history, chooser.choice(tokens), chooser)
        await asyncio.sleep(chooser.uniform(0.0, 0.3))


async def ask(
    session: aiohttp.ClientSession, history: History, token: str, chooser: random.Random
) -> None:
    stream, address = chooser.random() < 0.5, f"http://127.0.0.1:{history.port}/v1/completions"
    body = {"prompt": "the fox", "max_tokens": 50, "stream": stream}
    async with session.post(
        address, json=body, headers={"Authorization": f"Bearer {token}"}
    ) as response:
        head_at = text_at = time.monotonic()
        heard = Heard(token, response.status, head_at, text_at, head_at, stream)
        history.heard.append(heard)
        try:
            async for line in response.content:
                if line.startswith(b"data: {") and "choices" in json.loads(line[6:]):
                    heard.text_at = time.monotonic()
        finally:
            heard.end_at = time.monotonic()
            if not stream and response.status == 200:
                heard.text_at = heard.end_at
