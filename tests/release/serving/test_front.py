"""What callers get who send nothing, half a request or something else, and that nobody else waits for them; TLS."""

import contextlib
import datetime
import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gram_platform.engine.machine import free_port
from gram_platform.release.serving import front
from gram_platform.release.serving.api import MAX_BODY_BYTES
from gram_platform.release.serving.command import Endpoint
from gram_platform.release.serving.engine import EngineLimits
from gram_platform.release.serving.front import MAX_REQUESTS, Places, parse_head, start_front, tls_context
from gram_platform.release.serving.requests import Refusal
from tests.release.serving.http import Served, served
from tests.release.serving.planted import ANSWERS, SEQ_LEN, planted

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
KNOWN = b"Authorization: Bearer token-of-open\r\n"


@pytest.fixture(scope="module")
def inner():
    with served() as running:
        yield running


@contextlib.contextmanager
def fronted(
    inner_port: int, response_s: float = 30.0, places: Places | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[int]:
    """The port of a front; at its end it holds no place."""
    places = places or Places(planted().policy, MAX_REQUESTS)
    with Endpoint(port=0).listening() as listening:
        end = start_front(listening, inner_port, response_s, places, tls)
        try:
            yield listening.getsockname()[1]
        finally:
            end()
    assert not places.num_open.total()


@pytest.fixture
def site(inner):
    with fronted(inner.port) as port:
        yield Served(port, inner.plan, inner.server, inner.api)


def until_closed(connection: socket.socket, timeout_s: float = 20.0) -> tuple[bytes, float]:
    """What comes until the other side closes, and how long that takes."""
    started, received = time.monotonic(), b""
    connection.settimeout(timeout_s)
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received, time.monotonic() - started


def test_answers_and_refusals_pass_unchanged(site):
    texts = {p: site.complete(p).json["choices"][0]["text"] for p in ANSWERS}
    assert len(set(texts.values())) == len(ANSWERS)
    for profile, text in texts.items():
        events = site.complete(profile, stream=True).events
        assert events[-1] == "[DONE]"
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == text
    assert site.ask("GET", "/healthz").headers["connection"] == "close"
    assert site.ask("GET", "/").headers["content-type"].startswith("text/html")
    assert site.ask("DELETE", "/v1/completions").status == 405
    got = site.ask("GET", "/v1/models", headers={"Authorization": "Bearer x"})
    assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("num_bytes", [1_000, 250_000])
def test_nothing_of_a_request_is_passed_on_before_it_is_whole(num_bytes):
    """What stands behind notes the first bytes that it gets, and answers nothing."""
    noted: list[bytes] = []

    def note(behind: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with behind.accept()[0] as connection:
                    noted.append(connection.recv(65536))

    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + KNOWN + b"Content-Length: %d\r\n\r\n" % num_bytes
    whole = head + b"x" * num_bytes
    with socket.create_server(("127.0.0.1", 0)) as behind:
        threading.Thread(target=note, args=(behind,), daemon=True).start()
        with fronted(behind.getsockname()[1]) as port, socket.create_connection(("127.0.0.1", port)) as connection:
            first = 0
            for stop in (1, len(head) - 1, len(head), len(head) + 1, len(whole) // 2, len(whole) - 1):
                connection.sendall(whole[first:stop])
                time.sleep(0.1)
                assert not noted
                first = stop
            connection.sendall(whole[first:])
            until_closed(connection)
    assert noted[0].startswith(b"POST /v1/completions")


@pytest.mark.parametrize(
    "sent", [b"", b"GET", GET, GET + KNOWN + b"Content-Length: 9\r\n\r\n{"], ids=["", "word", "head", "body"]
)
def test_half_a_request_is_ended_by_the_deadline(site, monkeypatch, sent):
    monkeypatch.setattr(front, "ARRIVAL_S", 0.5)
    with socket.create_connection(("127.0.0.1", site.port)) as connection:
        connection.sendall(sent)
        received, elapsed_s = until_closed(connection)
    assert 0.4 < elapsed_s < 0.5 + front.LINGER_S + 5
    assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_slow"


def test_a_byte_now_and_then_gives_no_more_time(site, monkeypatch):
    monkeypatch.setattr(front, "ARRIVAL_S", 0.5)
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", site.port)) as connection, contextlib.suppress(ConnectionError):
        while time.monotonic() - started < 10:
            connection.sendall(b"x")
            time.sleep(0.05)
    assert time.monotonic() - started < 5


def test_the_oldest_slow_connections_make_room(site, monkeypatch):
    """And those who send their request are not among them."""
    monkeypatch.setattr(front, "MAX_ARRIVING", 20)
    monkeypatch.setattr(front, "SLOW_S", 0.0)
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection(("127.0.0.1", site.port))) for _ in range(60)]
        for connection in connections:
            connection.sendall(b"POST ")
        assert site.complete("open").status == 200
        assert [until_closed(connection)[0] for connection in connections[:40]] == [b""] * 40
        connections[-1].sendall(GET.removeprefix(b"GET ").join([b"", b"Content-Length: 0\r\n\r\n"]))
        assert until_closed(connections[-1])[0].startswith(b"HTTP/1.1 405")


def test_a_crowd_that_has_just_come_is_not_slow(site, monkeypatch):
    monkeypatch.setattr(front, "MAX_ARRIVING", 20)
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection(("127.0.0.1", site.port))) for _ in range(60)]
        for connection in connections:
            connection.sendall(GET + b"\r\n")
        assert all(until_closed(connection)[0].startswith(b"HTTP/1.1 200") for connection in connections)


def test_a_caller_who_does_not_read_is_ended(inner):
    """Also one whose answer would never end: the time is from the whole request on."""
    with fronted(inner.port, response_s=0.5) as port, slowed(inner, 0.1):
        request = completion(inner, max_tokens=50, stream=True)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request)
            received, elapsed_s = until_closed(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in received
    assert elapsed_s < 4.5  # and not the 5 s of fifty steps
    wait_until_idle(inner)


def test_a_caller_who_reads_a_little_now_and_then_gets_no_more_time():
    """The time is for the whole response, not from one read to the next."""
    with socket.create_server(("127.0.0.1", 0)) as behind:
        threading.Thread(target=answer_for_ever, args=(behind,), daemon=True).start()
        with fronted(behind.getsockname()[1], response_s=0.5) as port, socket.socket() as connection:
            connection.settimeout(20)
            connection.connect(("127.0.0.1", port))
            connection.sendall(GET + b"\r\n")
            started, num_bytes = time.monotonic(), 0
            with contextlib.suppress(ConnectionError):
                while (part := connection.recv(65536)) and time.monotonic() - started < 10:
                    num_bytes += len(part)
                    time.sleep(0.01)
    assert num_bytes > 2**20  # so it was read all the time
    assert time.monotonic() - started < 9


def answer_for_ever(behind: socket.socket) -> None:
    """Answers one request with a body that has no end."""
    with contextlib.suppress(OSError), behind.accept()[0] as connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)


def test_a_caller_who_leaves_frees_the_row(inner, site):
    with slowed(inner, 0.1):
        with socket.create_connection(("127.0.0.1", site.port)) as connection:
            connection.sendall(completion(inner, max_tokens=50, stream=True))
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        wait_until_idle(inner)


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_only_sends_no_more_is_answered(inner, site, monkeypatch, stream):
    """However long that takes; of an answer that comes late the head may follow an interim one."""
    monkeypatch.setattr(front, "CALLER_PROBE_S", 0.1)
    for step_s, protocol in ((0.0, b"HTTP/1.1"), (0.05, b"HTTP/1.1"), (0.05, b"HTTP/1.0")):
        request = completion(inner, max_tokens=8, stream=stream).replace(b"HTTP/1.1", protocol)
        with slowed(inner, step_s), socket.create_connection(("127.0.0.1", site.port)) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            received, _ = until_closed(connection)
        head = received.replace(front.CONTINUE, b"") if protocol == b"HTTP/1.1" else received
        assert head.startswith(b"HTTP/1.1 200")
        assert (b"data: [DONE]" if stream else b'"finish_reason":"length"') in received
    wait_until_idle(inner)


def test_a_caller_who_leaves_before_the_answer_frees_the_place(inner, monkeypatch):
    """Ray Serve's proxy, behind, then abandons the request."""
    monkeypatch.setattr(front, "CALLER_PROBE_S", 0.1)
    places = Places(inner.plan.policy, MAX_REQUESTS)
    with fronted(inner.port, places=places) as port, slowed(inner, 0.5):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(completion(inner, max_tokens=10))
            wait_until(lambda: inner.server.engine.load() == (1, 0))
        wait_until(lambda: not places.num_open.total())
        assert inner.server.engine.load() == (1, 0)  # so it was not the answer's end
    wait_until_idle(inner)


def test_only_the_addresses_of_the_api_are_passed_on(site):
    """Ray Serve's proxy answers some of its own, such as the applications' names, to strangers."""
    for path in (
        "/-/routes",
        "/%2D/routes",
        "//-/routes",
        "/./-/routes",
        "/v1/../-/routes",
        "/-/healthz",
        "/v1/models/",
    ):
        assert (site.ask("GET", path).status, site.ask("GET", path).code) == (404, "not_found")
        with pytest.raises(Refusal) as refused:
            parse_head(b"GET http://x" + path.encode() + b" HTTP/1.1\r\n\r\n")
        assert refused.value.status == 404
    assert site.ask("GET", "/healthz?now").status == 200


def completion(site: Served, **fields) -> bytes:
    body = json.dumps({"prompt": "x", **fields}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + site.plan.tokens["open"].encode()
    return head + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def slowed(inner: Served, step_s: float) -> Iterator[None]:
    batch = inner.server.engine._batch
    step, batch.step = batch.step, lambda: (time.sleep(step_s), step())[1]
    try:
        yield
    finally:
        batch.step = step


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_idle(inner: Served) -> None:
    wait_until(lambda: inner.server.engine.load() == (0, 0))


def test_only_the_token_over_its_limit_gets_429():
    """Its places are free again once its requests have ended, however they end; nobody else is refused."""
    with served(EngineLimits(num_rows=1, num_waiting=100)) as inner:
        places = Places(planted(lisp=6).policy, max_requests=4)
        with fronted(inner.port, places=places) as port, slowed(inner, 0.05):
            site = Served(port, inner.plan)
            got: dict[str, list] = {"open": [], "lisp": [], "both": []}
            ask = lambda holder, stream: got[holder].append(site.complete(holder, max_tokens=4, stream=stream))
            wanted = (
                [("open", n) for n in range(20)] + [("lisp", n) for n in range(9)] + [("both", n) for n in range(4)]
            )
            threads = [threading.Thread(target=ask, args=(holder, n % 2 == 0)) for holder, n in wanted]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            num_served = [sum(a.status == 200 for a in got[holder]) for holder in got]
            assert num_served[0] < 12
            assert num_served[1] >= 6
            assert num_served[2] == 4
            refused = [answer for answers in got.values() for answer in answers if answer.status != 200]
            assert {(a.status, a.code, a.headers.get("Retry-After")) for a in refused} == {(429, "token_limit", "1")}
            assert " 4 requests " in refused[0].json["error"]["message"]
            for _ in range(5):  # refused ones and ones whose caller left have places too
                assert site.complete("open", prompt=[1] * SEQ_LEN, max_tokens=2).status == 400
                assert site.raw(completion(inner, max_tokens=50, stream=True), num_bytes=300).startswith(
                    b"HTTP/1.1 200"
                )
            for _ in range(20):  # one after the other is never two at once
                places.policy = planted(lisp=1).policy
                assert site.complete("lisp", max_tokens=1).status == 200
            deadline = time.monotonic() + 60
            while places.num_open.total() and time.monotonic() < deadline:
                time.sleep(0.05)


def test_a_strangers_body_is_not_read(site):
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic token-of-open"}):
        started = time.monotonic()
        lines = [b"%s: %s" % (name.encode(), value.encode()) for name, value in headers.items()]
        head = b"\r\n".join([b"POST /v1/completions HTTP/1.1", *lines, b"Content-Length: 100000", b"", b""])
        assert site.raw(head, num_bytes=12).startswith(b"HTTP/1.1 401")
        assert time.monotonic() - started < 5


def test_too_much_is_refused_before_it_is_read(site):
    """A caller who sends on hears the answer all the same."""
    for size in (MAX_BODY_BYTES + 1, 3_000_000):
        got = site.ask("POST", "/v1/completions", b"x" * size, site.bearer("open"))
        assert (got.status, got.code) == (413, "body_too_large")
    unsized = (b"a" * 65536 for _ in range(4))
    assert site.ask("POST", "/v1/completions", unsized, site.bearer("open")).code == "length_required"
    assert site.ask("GET", "/" + "a" * 20_000).code == "head_too_large"
    assert site.ask("GET", "/", headers={"X": "a" * 20_000}).code == "head_too_large"


def test_nobody_behind_it_is_a_503():
    with fronted(free_port()) as port:
        answer = urllib_status(f"http://127.0.0.1:{port}/healthz")
    assert answer == 503


def test_a_body_that_waits_for_leave_gets_it(site):
    head, _, body = completion(site, max_tokens=1).partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", site.port)) as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert until_closed(connection)[0].startswith(b"HTTP/1.1 200")


def test_only_what_the_api_reads_is_passed_on():
    """Ray Serve would take its time-out from a header, and log another."""
    switches = b"X-Request-Timeout-Seconds: 0\r\nX-Request-Disconnect-Disabled: ?1\r\nX-Request-ID: secret\r\n"
    rest = b"Connection: keep-alive, x\r\nUpgrade: websocket\r\nCookie: a\r\nauthorization:\tBearer t \r\n"
    head = parse_head(GET + switches + rest + b"Content-Length: 7\r\n\r\n")
    assert head.passed_on == (
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nauthorization: Bearer t\r\ncontent-length: 7\r\nconnection: close\r\n\r\n"
    )
    assert (head.length, head.waits, head.authorization) == (7, False, ("Bearer t",))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, b"GET /\r\n\r\n"),
        (400, b"get / HTTP/1.1\r\n\r\n"),
        (400, b"GET / HTTP/2.0\r\n\r\n"),
        (400, b"GET /a b HTTP/1.1\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nA: b\r\n Authorization: Bearer t\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nA: b\nAuthorization: Bearer t\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nA: b\rAuthorization: Bearer t\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nA: b\0\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n: b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nA\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\nContent-Length: \xc2\xb2\r\n\r\n"),
        (400, b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"),
        (411, b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (413, b"POST / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(status, text):
    with pytest.raises(Refusal) as refused:
        parse_head(text)
    assert refused.value.status == status


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """A self-signed certificate of localhost, and its key."""
    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return paths


def urllib_status(address: str, trusted: Path | None = None) -> int:
    context = ssl.create_default_context(cafile=trusted) if trusted else None
    try:
        with urllib.request.urlopen(address, context=context, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_https_with_a_certificate_of_ones_own(inner, pair):
    with fronted(inner.port, tls=tls_context(*map(str, pair))) as port:
        assert urllib_status(f"https://localhost:{port}/healthz", trusted=pair[0]) == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib_status(f"https://localhost:{port}/healthz")
        with pytest.raises(OSError):
            urllib_status(f"http://localhost:{port}/healthz")
        old = ssl.create_default_context(cafile=pair[0])
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError), socket.create_connection(("localhost", port)) as plain:
            old.wrap_socket(plain, server_hostname="localhost")


def test_a_handshake_and_a_head_over_tls_have_deadlines_too(inner, pair, monkeypatch):
    monkeypatch.setattr(front, "ARRIVAL_S", 0.5)
    with fronted(inner.port, tls=tls_context(*map(str, pair))) as port:
        with socket.create_connection(("localhost", port)) as silent:
            assert until_closed(silent)[1] < 5
        context = ssl.create_default_context(cafile=pair[0])
        with context.wrap_socket(socket.create_connection(("localhost", port)), server_hostname="localhost") as half:
            half.sendall(GET)
            received, elapsed_s = until_closed(half)
    assert received.startswith(b"HTTP/1.1 408")
    assert elapsed_s < 5


def test_files_that_are_no_pair_are_refused(pair, tmp_path):
    certificate, key = map(str, pair)
    assert tls_context("", "") is None
    with pytest.raises(ValueError, match=r"tls_cert='': expected .*\bkey\b"):
        tls_context("", key)
    with pytest.raises(ValueError, match="tls_key=''"):
        tls_context(certificate, "")
    with pytest.raises(ValueError, match=r"tls_cert='.*gone\.pem': expected .*PEM"):
        tls_context(str(tmp_path / "gone.pem"), key)
    with pytest.raises(ValueError, match="tls_cert="):
        tls_context(key, certificate)
    locked = tmp_path / "locked.pem"
    loaded = serialization.load_pem_private_key(pair[1].read_bytes(), None)
    plain = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    locked.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, *plain))
    with pytest.raises(ValueError, match="without a password"):
        tls_context(certificate, str(locked))


def test_many_at_once_beside_slow_ones(site):
    """Nobody waits for those who send nothing."""
    with contextlib.ExitStack() as opened:
        for _ in range(40):
            opened.enter_context(socket.create_connection(("127.0.0.1", site.port))).sendall(GET)
        statuses: list[int] = []
        ask = lambda: statuses.append(site.complete("lisp", max_tokens=3).status)
        threads = [threading.Thread(target=ask) for _ in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 30
