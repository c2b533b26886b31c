"""Takes connections in front of Ray Serve's HTTP proxy, which gets whole requests only: TLS, deadlines, limits.

The proxy itself has no deadline before the end of a request's head, and a caller's headers can switch off its others.
So a request is read here, head and body, and only then passed on, with those headers alone that the API reads. The
response comes back byte for byte, and ends the connection. A token beyond its limit is refused here, where that costs
least; who may use what is decided behind. HAProxy cannot bound the time of a whole response (docs/findings/serving.md).
"""

import asyncio
import contextlib
import http
import json
import re
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from gram_platform.config.identity import invalid
from gram_platform.release.serving.policy import Policy
from gram_platform.release.serving.requests import (
    MAX_BODY_BYTES,
    PATHS,
    Refusal,
    over_limit,
    refusal,
    require_holder,
)

LOOPBACK = "127.0.0.1"
MAX_REQUESTS = 64  # of one token at once, by default
PLACE_WAIT_S = 0.25  # a caller hears the end of an answer a moment before its place is free
ARRIVAL_S = 10.0  # from the connection (with TLS: from its handshake, which has as long) to the request's last byte
MAX_ARRIVING = 2000  # connections whose request is not whole; one more closes the oldest, if that is slow
MAX_FILES = 8192  # open at once: a request that is passed on needs two
SLOW_S = 2.0  # a crowd that has just come is not slow
MAX_HEAD_BYTES = 16 * 1024
LINGER_S = 2.0  # a refused caller's further bytes are dropped: with them unread it would lose the answer
CALLER_PROBE_S = 2.0  # between two writes to a caller who may have left; the second one fails
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
READ_BYTES = 64 * 1024
REQUEST_LINE = re.compile(rb"[A-Z]+ [!-~]+ HTTP/1\.[01]")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\r\n\0]*)")
PASSED_ON = (b"accept", b"authorization", b"content-encoding", b"content-type", b"host")


def tls_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """Returns the server's side of TLS, or None without files; ValueError for files that are no pair."""
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise invalid("tls_cert", certificate, f"a certificate beside a key, and a key beside one (tls_key={key!r})")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")  # a key with a password would be asked for
    except OSError as error:
        allowed = f"a PEM certificate with its chain, whose key without a password is {key!r} ({error})"
        raise invalid("tls_cert", certificate, allowed) from None
    return context


class Places:
    """Counts each token's open requests. Belongs to one event loop, but for `policy`, which may be replaced."""

    def __init__(self, policy: Policy, max_requests: int):
        self.policy, self.max_requests, self.num_open = policy, max_requests, Counter[str]()

    @contextlib.asynccontextmanager
    async def taken(self, authorization: Sequence[str]) -> AsyncIterator[None]:
        """Has one place; Refusal 401 without a known token, 429 for one whose places stay taken for `PLACE_WAIT_S`."""
        _, rule = require_holder(self.policy, authorization)
        allowed, refused_at = rule.max_requests or self.max_requests, time.monotonic() + PLACE_WAIT_S
        while self.num_open[rule.name] >= allowed:
            if time.monotonic() > refused_at:
                raise over_limit(allowed)
            await asyncio.sleep(PLACE_WAIT_S / 5)
        self.num_open[rule.name] += 1
        try:
            yield
        finally:
            self.num_open[rule.name] -= 1


@dataclass(frozen=True)
class Head:
    """A request's head, checked."""

    passed_on: bytes
    length: int  # of the body, in bytes
    waits: bool  # for leave to send the body
    authorization: tuple[str, ...]


class _Front:
    """Answers connections. All coroutines belong to one event loop."""

    def __init__(self, inner_port: int, response_s: float, places: Places):
        self.inner_port, self.response_s, self.places = inner_port, response_s, places
        self._arriving: dict[asyncio.StreamWriter, float] = {}  # since when, the oldest first

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                async with contextlib.AsyncExitStack() as held:
                    request = await self._arrived(reader, writer, held)
                    async with asyncio.timeout(self.response_s):
                        await self._pass_on(request, reader, writer)
                        writer.close()
                        await writer.wait_closed()
            except Refusal as refused:
                writer.write(_response(refused))
                async with asyncio.timeout(LINGER_S):
                    await _drop(reader)
        except (OSError, EOFError, TimeoutError):
            pass  # the caller has left, or is too slow
        finally:
            writer.transport.abort()

    async def _arrived(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: contextlib.AsyncExitStack
    ) -> bytes:
        """Returns the whole request as it is passed on, with its place if it has a body; Refusal."""
        self._make_room()
        self._arriving[writer] = time.monotonic()
        try:
            async with asyncio.timeout(ARRIVAL_S):
                head = parse_head(await reader.readuntil(b"\r\n\r\n"))
                if head.length:
                    await held.enter_async_context(self.places.taken(head.authorization))
                if head.waits:
                    writer.write(CONTINUE)
                return head.passed_on + await reader.readexactly(head.length)
        except asyncio.LimitOverrunError:
            raise Refusal(431, "head_too_large", f"a request's head has at most {MAX_HEAD_BYTES} bytes") from None
        except TimeoutError:
            raise Refusal(408, "too_slow", f"a request must be whole after {ARRIVAL_S:.0f} s") from None
        finally:
            self._arriving.pop(writer, None)

    def _make_room(self) -> None:
        if len(self._arriving) >= MAX_ARRIVING:
            oldest, since = next(iter(self._arriving.items()))
            if time.monotonic() - since > SLOW_S:
                del self._arriving[oldest]
                oldest.transport.abort()

    async def _pass_on(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes the response back, until it ends or the caller leaves; Refusal 503 where nobody answers."""
        try:
            inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, self.inner_port)
        except OSError:
            raise refusal("unavailable") from None
        inner_writer.write(request)
        has_begun, may_probe = asyncio.Event(), request.partition(b"\r\n")[0].endswith(b"HTTP/1.1")
        coming, left = _copy(inner_reader, writer, has_begun), _left(reader, writer, has_begun, may_probe)
        tasks = [asyncio.create_task(coming), asyncio.create_task(left)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            inner_writer.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def start_front(
    listening: socket.socket, inner_port: int, response_s: float, places: Places, tls: ssl.SSLContext | None
) -> Callable[[], None]:
    """Serves a bound socket from a thread, with the server at `inner_port` behind it; returns what ends it.

    `response_s`: from a whole request to the last byte of its response, slow readers included.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, MAX_FILES)), hard))
    front, runner = _Front(inner_port, response_s, places), asyncio.Runner()
    with_tls = {"ssl": tls, "ssl_handshake_timeout": ARRIVAL_S, "ssl_shutdown_timeout": LINGER_S} if tls else {}
    starting = asyncio.start_server(front.answer, sock=listening, limit=MAX_HEAD_BYTES, backlog=1024, **with_tls)
    server, loop = runner.run(starting), runner.get_loop()
    thread = threading.Thread(target=loop.run_forever, name="gram-front", daemon=True)
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        runner.close()

    return end


def parse_head(text: bytes) -> Head:
    """Refusal for a head that two readers may read differently."""
    first, *lines = text.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [FIELD.fullmatch(line) for line in lines]
    if not REQUEST_LINE.fullmatch(first) or not all(fields):
        raise Refusal(400, "invalid_head", "the request's head is not HTTP/1.1's")
    path = first.split(b" ")[1].partition(b"?")[0]
    if path.decode() not in PATHS:  # the proxy answers others, such as /-/routes, to strangers
        raise refusal("not_found")
    pairs = [(field[1].lower(), field[2].strip(b" \t")) for field in fields]
    given = dict(pairs)
    if b"transfer-encoding" in given:
        raise Refusal(411, "length_required", "send the body's Content-Length instead of chunks")
    lengths = [value for name, value in pairs if name == b"content-length"] or [b"0"]
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,15}", lengths[0]):
        raise Refusal(400, "invalid_head", "Content-Length is not one number")
    if (length := int(lengths[0])) > MAX_BODY_BYTES:
        raise refusal("body_too_large")
    kept = [first, *(b"%s: %s" % pair for pair in pairs if pair[0] in PASSED_ON)]
    kept += [b"content-length: %d" % length, b"connection: close"]
    authorization = tuple(value.decode("latin-1") for name, value in pairs if name == b"authorization")
    waits = given.get(b"expect", b"").lower() == b"100-continue"
    return Head(b"\r\n".join([*kept, b"", b""]), length, waits, authorization)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, has_begun: asyncio.Event) -> None:
    while part := await source.read(READ_BYTES):
        has_begun.set()
        target.write(part)
        await target.drain()


async def _left(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_begun: asyncio.Event, may_probe: bool
) -> None:
    """Returns when the caller has left.

    One who sends no more may still read. Only a write tells: before the response an interim one, of HTTP/1.1.
    """
    await _drop(reader)
    while not writer.transport.is_closing():
        await asyncio.sleep(CALLER_PROBE_S)
        if may_probe and not has_begun.is_set():
            writer.write(CONTINUE)


async def _drop(source: asyncio.StreamReader) -> None:
    """Reads to the end."""
    with contextlib.suppress(OSError):
        while await source.read(READ_BYTES):
            pass


def _response(refused: Refusal) -> bytes:
    body = json.dumps(refused.body()).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {refused.status} {http.HTTPStatus(refused.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in (fields | dict(refused.headers())).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
