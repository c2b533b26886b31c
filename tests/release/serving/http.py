"""The HTTP interface on a free port, in a thread, with a planted model behind it; and clients that
can misbehave."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn

from gram_platform.corpora.tokenizer import train_tokenizer
from gram_platform.release.serving.api import Api
from gram_platform.release.serving.engine import Engine, EngineLimits
from gram_platform.release.serving.model_server import ModelServer, ModelSource
from gram_platform.release.serving.text import Vocabulary
from tests.release.serving.planted import END_OF_TEXT, SEQ_LEN, Planted, planted, planted_model

TEXTS = ["the quick brown fox jumps over the lazy dog, and the dog sleeps"] * 4


@dataclass(frozen=True)
class Answered:
    """A response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]

    @property
    def events(self) -> list[dict | str]:
        parts = [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]
        return [part if part == "[DONE]" else json.loads(part) for part in parts]


@dataclass(frozen=True)
class Served:
    """Where it is, and whose tokens it knows."""

    port: int
    plan: Planted
    server: ModelServer | None = None
    api: Api | None = None

    def ask(
        self, method: str, path: str, body=None, headers=None, timeout_s=60.0, opened=lambda: None
    ) -> Answered:
        """The answer; `opened` is called after its head, which a stream has when it is taken up,
        before its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            opened()
            return Answered(response.status, dict(response.getheaders()), response.read())

    def bearer(self, holder: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.plan.tokens[holder]}"}

    def complete(self, holder: str, opened=lambda: None, **fields) -> Answered:
        body = json.dumps({"prompt": "the fox", "max_tokens": 5, **fields})
        headers = {**self.bearer(holder), "Content-Type": "application/json"}
        return self.ask("POST", "/v1/completions", body, headers, opened=opened)

    def completion(self, holder: str, **fields) -> bytes:
        """A whole request as it is sent."""
        body = json.dumps({"prompt": "x", **fields}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization:"
            f" {self.bearer(holder)['Authorization']}\r\n"
        )
        return (
            head.encode()
            + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )

    @contextlib.contextmanager
    def slowed(self, step_s: float) -> Iterator[None]:
        """Lets each step of the model take so much longer."""
        batch = self.server.engine._batch
        step, batch.step = batch.step, lambda: (time.sleep(step_s), step())[1]
        try:
            yield
        finally:
            batch.step = step

    def raw(self, text: bytes, num_bytes: int = 2**20, timeout_s: float = 10.0) -> bytes:
        """The answer to bytes sent as they are, as far as it goes; with enough of it the connection
        is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            connection.sendall(text)
            received = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                while len(received) < num_bytes and (part := connection.recv(65536)):
                    received += part
            return received


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def load_of(engine: Engine) -> tuple[int, int]:
    """(active sequences, waiting requests)"""
    num_active = len(engine._active_jobs)
    return num_active, max(0, engine._num_open - num_active)


def vocabulary() -> Vocabulary:
    return Vocabulary.of(train_tokenizer(TEXTS, 270).to_str(), SEQ_LEN)


@contextlib.contextmanager
def served(
    limits: EngineLimits | None = None, max_requests: int = 64, **of_holders: int
) -> Iterator[Served]:
    """Without Ray: the same application and model server that Ray Serve runs.

    `max_requests`: of one token at once; `of_holders`: of some of them.
    """
    words, plan = vocabulary(), planted(**of_holders)
    source = ModelSource(
        "", "", plan.policy, words.num_tokens, END_OF_TEXT, limits or EngineLimits(num_rows=8)
    )
    model = ModelServer(source, planted_model(plan.config))
    api = Api(plan.policy, words, model, max_requests)
    with contextlib.closing(socket.socket()) as endpoint:
        endpoint.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(api.app(), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([endpoint],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Served(endpoint.getsockname()[1], plan, model, api)
        finally:
            server.should_exit = True
            thread.join()
            model.engine.close()
