"""The shipped configuration of the reverse proxy: what callers get, and what reaches the server
behind it.

Most tests have a planted model behind it; those of single bytes have a server that notes them.
"""

import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gram_platform.release.serving.requests import MAX_BODY_BYTES
from tests.release.serving.http import Served, load_of, served, wait_until
from tests.release.serving.planted import ANSWERS
from tests.release.serving.proxy import CONFIGURATION, Proxied, proxied, read_all

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
PASSED_ON = {
    b"accept",
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"host",
}
REQUEST_S = 10.0  # from a connection's handshake to the request's last byte
MAX_CONNECTIONS = 100  # of one address


@pytest.fixture(scope="module")
def inner() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(inner, tmp_path_factory) -> Iterator[Proxied]:
    with proxied(tmp_path_factory.mktemp("proxy"), inner.port) as running:
        yield running


@contextlib.contextmanager
def noting(noted: list[bytes]) -> Iterator[int]:
    """The port of a server that notes what each connection sends, and answers once a request is
    whole."""

    def answer(behind: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with behind.accept()[0] as connection:
                    connection.settimeout(5)
                    noted.append(b"")
                    while not is_whole(noted[-1]):
                        part = connection.recv(65536)
                        if not part:
                            break
                        noted[-1] += part
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )

    with socket.create_server(("127.0.0.1", 0)) as behind:
        threading.Thread(target=answer, args=(behind,), daemon=True).start()
        yield behind.getsockname()[1]


def is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


@pytest.fixture(scope="module")
def noted() -> list[bytes]:
    return []


@pytest.fixture(scope="module")
def noting_proxy(noted, tmp_path_factory) -> Iterator[Proxied]:
    with noting(noted) as port, proxied(tmp_path_factory.mktemp("noting"), port) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_noted(noted) -> None:
    noted.clear()


def test_all_addresses_of_the_api_pass_and_answers_come_back_unchanged(proxy, inner):
    for profile in ANSWERS:
        headers = {**inner.bearer(profile), "Content-Type": "application/json"}
        for stream in (False, True):
            body = json.dumps({"prompt": "the fox", "max_tokens": 5, "stream": stream})
            got = proxy.ask("POST", "/v1/completions", body, headers)
            choices = [e["choices"][0] for e in got.events[:-1]] if stream else got.json["choices"]
            own = inner.complete(profile).json["choices"][0]["text"]
            assert "".join(choice["text"] for choice in choices) == own
    for route in inner.api.app().routes:
        assert proxy.ask("OPTIONS", f"{route.path}?now").status == 405
    assert proxy.ask("GET", "/healthz").body == b"ok\n"
    got = proxy.ask("GET", "/v1/models", headers={"Authorization": "Bearer x"})
    assert (got.status, got.code, got.headers["www-authenticate"]) == (
        401,
        "invalid_token",
        "Bearer",
    )


def test_a_stream_comes_while_it_is_made(proxy, inner):
    with inner.slowed(0.1), proxy.connect() as connection:
        started = time.monotonic()
        connection.sendall(inner.completion("open", max_tokens=50, stream=True))
        while b"data: " not in connection.recv(65536):
            pass
        assert time.monotonic() - started < 3  # and not the 5 s of fifty steps


def test_a_caller_who_leaves_frees_the_row(proxy, inner):
    with inner.slowed(0.5):
        with proxy.connect() as connection:
            connection.sendall(inner.completion("open", max_tokens=60, stream=True))
            wait_until(lambda: load_of(inner.server.engine) == (1, 0))
        started = time.monotonic()
        wait_until(lambda: load_of(inner.server.engine) == (0, 0))
        assert time.monotonic() - started < 10  # and not the 30 s of sixty steps


def test_a_caller_who_leaves_before_the_answer_is_told_to_the_server(tmp_path):
    """Ray Serve then abandons the request."""
    with (
        socket.create_server(("127.0.0.1", 0)) as behind,
        proxied(tmp_path, behind.getsockname()[1]) as proxy,
    ):
        connection = proxy.connect()
        connection.sendall(GET + b"\r\n")
        asked, _ = behind.accept()
        with asked:
            asked.settimeout(5)
            assert asked.recv(65536).startswith(b"GET /healthz")
            connection.close()
            with contextlib.suppress(ConnectionError):
                assert asked.recv(1) == b""


def test_a_body_that_waits_for_leave_gets_it(proxy, inner):
    head, _, body = inner.completion("open", max_tokens=1).partition(b"\r\n\r\n")
    with proxy.connect() as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_only_the_addresses_of_the_api_are_passed_on(noting_proxy, noted):
    """Ray Serve answers some of its own to strangers, such as the names of the applications."""
    paths = [
        "/-/routes",
        "/%2D/routes",
        "//-/routes",
        "/./-/routes",
        "/v1/../-/routes",
        "/-/healthz",
        "/v1/models/",
    ]
    paths += ["http://x/-/routes", "http://x/healthz", "*"]
    for path in paths:
        got = noting_proxy.send(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        assert got.startswith(b"HTTP/1.1 404"), path
    assert not noted


def test_only_five_headers_and_the_length_are_passed_on(noting_proxy, noted):
    """Ray Serve would take its time-out from a header, and log another."""
    switches = (
        b"X-Request-Timeout-Seconds: 0\r\nX-Request-Disconnect-Disabled: ?1\r\nX-Request-ID:"
        b" secret\r\n"
    )
    rest = (
        b"Connection: keep-alive, x\r\nUpgrade: websocket\r\nCookie: a\r\nAuthorization:\tBearer t"
        b" \r\n"
    )
    kinds = (
        b"Accept: */*\r\nContent-Type: application/json\r\nContent-Encoding:"
        b" gzip\r\nContent-Length: 7\r\n\r\n"
    )
    assert noting_proxy.send(POST + switches + rest + kinds + b"x" * 7).startswith(b"HTTP/1.1 200")
    head, _, body = noted[0].partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert fields.keys() - {b"connection"} == PASSED_ON
    assert (fields[b"authorization"], fields.get(b"connection", b"close")) == (
        b"bearer t",
        b"close",
    )
    assert body == b"x" * 7


@pytest.mark.parametrize("num_bytes", [1_000, 250_000])
def test_nothing_of_a_request_is_passed_on_before_it_is_whole(noting_proxy, noted, num_bytes):
    head = POST + b"Content-Length: %d\r\n\r\n" % num_bytes
    whole, first = head + b"x" * num_bytes, 0
    with noting_proxy.connect() as connection:
        for stop in (1, len(head) - 1, len(head), len(head) + 1, len(whole) // 2, len(whole) - 1):
            connection.sendall(whole[first:stop])
            time.sleep(0.1)
            assert not noted
            first = stop
        connection.sendall(whole[first:])
        assert read_all(connection).startswith(b"HTTP/1.1 200")
    assert is_whole(noted[0])
    assert noted[0].endswith(b"x" * num_bytes)


def test_half_a_request_is_ended_after_ten_seconds(noting_proxy, noted, proxy, inner):
    """Also one of which a byte comes now and then, or whose head comes late and whose body is slow.

    An answer may take longer: its caller says nothing meanwhile, and hears nothing unless it is a
    stream.
    """
    head = POST + b"Content-Length: 1000\r\n\r\n"
    slow_body = [*bytes_of(head, 2.5), *bytes_of(b"x" * 900, 20)]
    cases = {
        "nothing": [],
        "a word": [(b"GET", 0.0)],
        "half a head": [(GET, 0.0)],
        "a head byte by byte": bytes_of(GET * 20, 20),
        "a body byte by byte": [(head, 0.0), *bytes_of(b"x" * 900, 20)],
        "a late head and a slow body": slow_body,
    }
    whole = [inner.completion("open", max_tokens=25, stream=stream) for stream in (False, True)]
    with (
        inner.slowed(0.5),
        ThreadPoolExecutor(len(cases) + 4) as pool,
        noting_proxy.connect() as half_a_body,
    ):
        started = time.monotonic()
        # At once: HAProxy answers a head that comes later than 3 s with a page of its own.
        half_a_body.sendall(head + b"x")
        body_answer = pool.submit(read_all, half_a_body)
        answers = pool.map(proxy.send, whole)
        silent = pool.submit(seconds_of_a_silent_handshake, noting_proxy)
        asked = {
            name: pool.submit(send_slowly, noting_proxy, parts) for name, parts in cases.items()
        }
        ended = {name: sent.result() for name, sent in asked.items()}
        status, _, body = body_answer.result().partition(b"\r\n\r\n")
        at_once, streamed = answers
        assert time.monotonic() - started > REQUEST_S
    assert b'"finish_reason":"length"' in at_once
    assert b"data: [DONE]" in streamed
    assert {name: s for name, (_, s) in ended.items() if s > REQUEST_S + 1.5} == {}
    assert silent.result() < REQUEST_S + 1.5
    assert not noted
    assert status.startswith(b"HTTP/1.1 408")
    assert json.loads(body)["error"]["code"] == "too_slow"
    # A caller who still sends may lose a part of the answer.
    for name in ("a body byte by byte", "a late head and a slow body"):
        received = ended[name][0]
        assert received.startswith(b"HTTP/1.1 408") or not received


def bytes_of(text: bytes, duration_s: float) -> list[tuple[bytes, float]]:
    """(a byte, how long to wait after it), for all of a text in so many seconds."""
    return [(text[i : i + 1], duration_s / len(text)) for i in range(len(text))]


def send_slowly(proxy: Proxied, parts: list[tuple[bytes, float]]) -> tuple[bytes, float]:
    """What comes back, and after how many seconds the connection has ended.

    One thread reads and writes: Python's TLS crashes where two do.
    """
    received, started = [], time.monotonic()
    with proxy.connect() as connection, contextlib.suppress(OSError):
        for part, pause_s in parts:
            connection.settimeout(30)
            connection.sendall(part)
            if not is_open_after(connection, pause_s, received):
                break
        else:
            is_open_after(connection, 30, received)
    return b"".join(received), time.monotonic() - started


def is_open_after(connection: socket.socket, seconds: float, received: list[bytes]) -> bool:
    """Reads for so long; whether the other side has not closed by then."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        connection.settimeout(left)
        with contextlib.suppress(TimeoutError):
            part = connection.recv(65536)
            if not part:
                return False
            received.append(part)
    return True


def seconds_of_a_silent_handshake(proxy: Proxied) -> float:
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", proxy.port), 30) as connection:
        read_all(connection)
    return time.monotonic() - started


def test_too_much_is_refused_before_it_is_read(noting_proxy, noted):
    for size in (MAX_BODY_BYTES + 1, 3_000_000):
        got = noting_proxy.send(POST + b"Content-Length: %d\r\n\r\n" % size)
        assert (got[:12], code_of(got)) == (b"HTTP/1.1 413", "body_too_large")
    got = noting_proxy.send(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
    assert (got[:12], code_of(got)) == (b"HTTP/1.1 411", "length_required")
    much = b"a" * 20_000
    for head in (
        b"GET /?" + much + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        GET + b"X: " + much + b"\r\n\r\n",
    ):
        got = noting_proxy.send(head)
        assert (got[:12], code_of(got)) == (b"HTTP/1.1 431", "head_too_large")
    assert not noted


def code_of(answer: bytes) -> str:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


TWO_LENGTHS = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\n"
IN_THE_BODY = b"0\r\n\r\n" + GET + b"\r\n"


@pytest.mark.parametrize(
    "text",
    [
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n Authorization: Bearer t\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\nAuthorization: Bearer t\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\rAuthorization: Bearer t\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\0\r\n\r\n",
        b"GET / HTTP/1.1\r\n: b\r\n\r\n",
        TWO_LENGTHS + GET + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\n" + GET + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        + IN_THE_BODY,
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n"
        + IN_THE_BODY,
        GET + b"\r\n" + GET + b"\r\n",
    ],
)
def test_nothing_is_passed_on_that_could_be_read_in_two_ways(noting_proxy, noted, text):
    """What passes was written anew by the proxy: one request with the headers that pass, and
    nothing after it."""
    noting_proxy.send(text)
    time.sleep(0.1)
    assert len(noted) <= 1
    for request in noted:
        head, _, body = request.partition(b"\r\n\r\n")
        assert re.fullmatch(rb"(GET|POST) \S+ HTTP/1\.1", head.split(b"\r\n")[0])
        assert {
            line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]
        } <= PASSED_ON | {b"connection"}
        assert b"\n" not in head.replace(b"\r\n", b"")
        assert b"GET" not in body


def test_an_address_has_a_hundred_connections(proxy):
    """Those of another address are answered meanwhile."""
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_CONNECTIONS):
            opened.enter_context(proxy.connect("127.0.0.2"))
        with pytest.raises(OSError):
            proxy.connect("127.0.0.2")
        assert proxy.ask("GET", "/healthz").status == 200
    wait_until(lambda: is_accepted(proxy, "127.0.0.2"))


def is_accepted(proxy: Proxied, address: str) -> bool:
    with contextlib.suppress(OSError), proxy.connect(address):
        return True
    return False


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_callers_speak_tls_1_2_or_newer(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), 30) as plain:
        plain.sendall(GET + b"\r\n")
        assert not read_all(plain).startswith(b"HTTP/1.1 200")
    old = ssl.create_default_context(cafile=proxy.certificate)
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", proxy.port), 30) as plain:
        old.wrap_socket(plain, server_hostname="localhost")


def test_nobody_behind_it_is_a_503(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with proxied(tmp_path, port) as proxy:
        got = proxy.ask("GET", "/healthz")
    assert (got.status, got.code) == (503, "unavailable")


def test_many_at_once_beside_slow_ones(proxy, inner):
    """Nobody waits for those who send nothing."""
    with contextlib.ExitStack() as opened:
        for _ in range(40):
            opened.enter_context(proxy.connect()).sendall(GET)
        with ThreadPoolExecutor(30) as pool:
            requests = [inner.completion("open", max_tokens=3)] * 30
            assert all(got.startswith(b"HTTP/1.1 200") for got in pool.map(proxy.send, requests))


def test_it_waits_longer_than_the_server():
    """Ray Serve ends a request 30 s after the deadline of `gram serve`, which is 60 s by
    default."""
    (seconds,) = re.findall(r"timeout server (\d+)s", CONFIGURATION.read_text())
    assert int(seconds) > 60 + 30
