"""What callers get over HTTP: their own profile's completions, proper refusals, and no way to
anything else."""

import logging
import threading
import time

import pytest

from gram_platform.release.serving.api import MAX_BODY_BYTES
from gram_platform.release.serving.engine import EngineLimits
from gram_platform.release.serving.policy import LEASE_S
from tests.release.serving.http import Served, load_of, served, vocabulary, wait_until
from tests.release.serving.planted import ANSWERS, SEQ_LEN, planted


@pytest.fixture(scope="module")
def site():
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def says() -> dict[str, str]:
    """profile -> what it says in place of each token."""
    return {profile: vocabulary().tokenizer.decode([token]) for profile, token in ANSWERS.items()}


def post(site: Served, body: bytes | str, headers: dict[str, str] | None = None):
    return site.ask(
        "POST", "/v1/completions", body, {"Content-Type": "application/json", **(headers or {})}
    )


@pytest.mark.parametrize("profile", ANSWERS)
def test_a_token_is_answered_by_its_profile(site, says, profile):
    got = site.complete(profile)
    assert got.status == 200
    (choice,) = got.json["choices"]
    assert choice == {
        "index": 0,
        "text": says[profile] * 5,
        "logprobs": None,
        "finish_reason": "length",
    }
    assert (got.json["object"], got.json["model"]) == ("text_completion", profile)
    assert got.json["usage"]["completion_tokens"] == 5
    assert got.json["usage"]["total_tokens"] == got.json["usage"]["prompt_tokens"] + 5


def test_a_stream_has_the_same_text_and_an_end(site, says):
    got = site.complete("both", stream=True, max_tokens=30)
    assert (got.status, got.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *parts, last, done = got.events
    assert done == "[DONE]"
    assert "".join(part["choices"][0]["text"] for part in parts) == says["both"] * 30
    assert all(part["choices"][0]["finish_reason"] is None for part in parts)
    assert last["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "length",
    }
    assert len({part["id"] for part in (*parts, last)}) == 1


def test_a_stream_ends_with_its_usage_where_it_is_asked_for(site):
    asked = {"stream": True, "seed": 1, "max_tokens": 5}
    usage = site.complete("lisp", seed=1, max_tokens=5).json["usage"]
    *parts, last, counts, end = site.complete(
        "lisp", stream_options={"include_usage": True}, **asked
    ).events
    assert (counts["choices"], counts["usage"], end) == ([], usage, "[DONE]")
    assert [part["usage"] for part in (*parts, last)] == [None] * (len(parts) + 1)
    assert last["choices"][0]["finish_reason"] == "length"
    assert {part["id"] for part in (*parts, last)} == {counts["id"]}
    for options in (None, {}, {"include_usage": False}):
        events = site.complete("lisp", stream_options=options, **asked).events
        assert not any("usage" in event for event in events[:-1])
        assert events[-2]["choices"][0]["finish_reason"] == "length"


def test_a_named_profile_of_the_token_is_used(site, says):
    for profile in ("open", "lisp", "medicine"):
        got = site.complete("reader", model=profile)
        assert (got.json["model"], got.json["choices"][0]["text"]) == (profile, says[profile] * 5)
    assert site.complete("reader").json["model"] == "medicine"


def test_a_stop_ends_the_text_before_it(site, says):
    stop = says["lisp"] * 3
    for stream in (False, True):
        got = site.complete("lisp", stop=stop, max_tokens=40, stream=stream)
        texts = [e["choices"][0] for e in got.events[:-1]] if stream else got.json["choices"]
        assert "".join(t["text"] for t in texts) == ""
        assert texts[-1]["finish_reason"] == "stop"
    time.sleep(0.2)
    assert load_of(site.server.engine) == (0, 0)


def test_token_ids_are_a_prompt_and_equal_seeds_are_equal(site):
    assert site.complete("open", prompt=[5, 6, 7]).json["usage"]["prompt_tokens"] == 3
    assert site.complete("open", prompt="").json["usage"]["prompt_tokens"] == 1
    texts = [
        site.complete("open", seed=3, temperature=50).json["choices"][0]["text"] for _ in range(2)
    ]
    assert (
        texts[0]
        == texts[1]
        != site.complete("open", seed=4, temperature=50).json["choices"][0]["text"]
    )


def test_models_lists_the_tokens_own(site):
    got = site.ask("GET", "/v1/models", headers=site.bearer("reader")).json
    assert [(m["id"], m["default"]) for m in got["data"]] == [
        ("open", False),
        ("lisp", False),
        ("medicine", True),
    ]
    assert [
        m["id"] for m in site.ask("GET", "/v1/models", headers=site.bearer("both")).json["data"]
    ] == ["both"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer token-of-nobody"},
        {"Authorization": "Bearer token-of-both "},
        {"Authorization": "Bearer  token-of-both"},
        {"Authorization": "Basic token-of-both"},
        {"Authorization": "token-of-both"},
        {"Authorization": "Bearer TOKEN-OF-BOTH"},
        {"Authorization": "Bearer token-of-both,token-of-open"},
        {"Authorization": "Bearer " + "x" * 5000},
        {"Authorization": "Bearer token-of-b\xf6th"},
        {"X-Api-Key": "token-of-both", "Cookie": "token=token-of-both"},
    ],
)
def test_no_known_token_no_answer(site, headers):
    for got in (
        post(site, '{"prompt": "x"}', headers),
        site.ask("GET", "/v1/models?token=token-of-both", headers=headers),
        site.ask("GET", "/metrics", headers=headers),
    ):
        assert (got.status, got.code) == (401, "invalid_token")
        assert got.headers["www-authenticate"] == "Bearer"


def test_nobody_is_answered_without_a_confirmed_policy():
    with served() as site:
        assert site.ask("GET", "/healthz").body == b"ok\n"
        site.api.num_left_out = 2
        assert site.ask("GET", "/healthz").body.startswith(
            b"ok, but the policy's file has errors: 2 of its parts"
        )
        site.api.confirmed_at = time.monotonic() - LEASE_S - 0.1
        for got in (
            site.complete("both"),
            site.ask("GET", "/v1/models", headers=site.bearer("both")),
        ):
            assert (got.status, got.code, got.headers["retry-after"]) == (
                503,
                "policy_unconfirmed",
                "5",
            )
        assert site.ask("GET", "/healthz").code == "policy_unconfirmed"
        site.api.confirmed_at = time.monotonic() - 3.0
        scraped = site.ask("GET", "/metrics", headers=site.bearer("reader")).body.decode()
        assert "gram_policy_age_seconds 3." in scraped
        assert "gram_policy_refused 2.0" in scraped


def test_a_digest_is_no_token(site):
    digest = site.plan.policy.tokens[0].sha256
    assert post(site, '{"prompt": "x"}', {"Authorization": f"Bearer {digest}"}).status == 401


@pytest.mark.parametrize(
    "model", ["both", "nobodys", "virology", "", "OPEN", "open\x00", "\uff4fpen", "x" * 10_000]
)
def test_profiles_of_others_do_not_exist(site, model):
    for stream in (False, True):
        got = site.complete("reader", model=model, stream=stream)
        assert (got.status, got.code) == (404, "model_not_found")
        assert got.body == site.complete("reader", model="no-such-thing").body


@pytest.mark.parametrize(
    "extra",
    [
        {"modules": ["secret"]},
        {"grant": {"weights": [["secret", 1.0]]}},
        {"extra_body": {"model": "both"}},
        {"prompt": [299]},
        {"max_tokens": 10**40},
        {"seed": 2**70},
    ],
)
def test_fields_that_ask_for_more_are_refused(site, extra):
    got = site.complete("reader", **extra)
    assert got.status == 400
    assert "secret" not in got.body.decode()


def test_headers_choose_nothing(site, says):
    stray = {"X-Profile": "both", "X-Gram-Modules": "secret", "serve_multiplexed_model_id": "both"}
    stray |= {"X-Forwarded-User": "both", "X-Original-Authorization": "Bearer token-of-both"}
    headers = {**site.bearer("lisp"), **stray, "Content-Type": "application/json"}
    body = '{"prompt": "x", "max_tokens": 3}'
    got = site.ask("POST", "/v1/completions", body, headers)
    assert got.json["choices"][0]["text"] == says["lisp"] * 3
    for path in ("/v1/completions?model=both", "/v1/completions?modules=secret#both"):
        got = site.ask("POST", path, body, headers)
        assert got.json["choices"][0]["text"] == says["lisp"] * 3


def test_two_tokens_are_none(site):
    body = b'{"prompt": "x"}'
    lines = [
        b"POST /v1/completions HTTP/1.1",
        b"Host: x",
        b"Connection: close",
        b"Content-Type: application/json",
    ]
    lines += [b"Authorization: Bearer token-of-lisp", b"Authorization: Bearer token-of-both"]
    head = b"\r\n".join([*lines, b"Content-Length: %d" % len(body)])
    assert site.raw(head + b"\r\n\r\n" + body).startswith(b"HTTP/1.1 401")
    lines = [
        *lines[:5],
        b"X: a\rAuthorization: Bearer token-of-both",
        b"Content-Length: 15",
        b"",
        body,
    ]
    smuggled = b"\r\n".join(lines)
    assert site.raw(smuggled).startswith(b"HTTP/1.1 400")


def test_too_much_is_refused(site):
    auth = site.bearer("open")
    for body in (b"x" * (MAX_BODY_BYTES + 1), b'{"prompt": "' + b"a" * 3_000_000 + b'"}'):
        got = post(site, body, auth)
        assert (got.status, got.code) == (413, "body_too_large")
    unsized = (b"a" * 65536 for _ in range(40))
    got = post(site, unsized, auth)  # in chunks, without a length
    assert (got.status, got.code) == (413, "body_too_large")
    got = site.complete("open", prompt="the fox " * 2000)
    assert (got.status, got.code, got.json["error"]["param"]) == (
        400,
        "context_length_exceeded",
        "prompt",
    )
    got = site.complete("open", prompt=[1] * SEQ_LEN, max_tokens=2)
    assert (got.status, got.code) == (400, "context_length_exceeded")


def test_what_is_no_json_post_is_refused(site):
    auth = site.bearer("open")
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "",
        "json",
    ):
        assert post(site, '{"prompt": "x"}', {**auth, "Content-Type": kind}).status == 415
    assert post(site, '{"prompt": "x"}', {**auth, "Content-Encoding": "gzip"}).status == 415
    for body in ("", b"\xff\xfe", "[" * 100_000):
        got = post(site, body, auth)
        assert (got.status, got.code) == (400, "invalid_json")
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        got = site.ask(method, "/v1/completions", headers=auth)
        assert (got.status, got.code) == (405, "method_not_allowed")
    assert site.ask("POST", "/v1/models", headers=auth).status == 405
    for path in (
        "/v1/chat/completions",
        "/v1/completions/",
        "/docs",
        "/openapi.json",
        "/..%2f..%2fetc/passwd",
        "/v1",
    ):
        got = site.ask("GET", path, headers=auth)
        assert (got.status, got.code) == (404, "not_found")


def test_refusals_are_logged_without_what_was_said(site, caplog, monkeypatch):
    # Its own handler hears it: others decide which loggers above pass records on.
    log = logging.getLogger("ray.serve.gram")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "propagate", False)
    caplog.set_level(logging.DEBUG)
    site.complete("reader", model="secret-model-name", prompt="secret-prompt")
    site.complete("reader", secret_field="secret-value", prompt="secret-prompt")
    post(site, '{"prompt": "secret-prompt"}', {"Authorization": "Bearer secret-token"})
    site.complete("reader", prompt="secret-prompt " * 1000)
    site.ask("GET", "/secret-path")
    wanted = [("reader", 404, "model_not_found"), ("reader", 400, "unknown_field")]
    wanted += [("nobody known", 401, "invalid_token"), ("reader", 400, "context_length_exceeded")]
    wanted += [("nobody known", 404, "not_found")]
    logged = [r.getMessage() for r in caplog.records if r.name == "ray.serve.gram"]
    assert logged == [
        f"refused: holder={holder} status={status} code={code}" for holder, status, code in wanted
    ]
    assert "secret" not in caplog.text


def test_too_many_requests_get_429_and_late_ones_504():
    with served(EngineLimits(num_rows=1, num_waiting=1, deadline_s=1.0)) as site, site.slowed(0.1):
        got: list = []
        ask = lambda: got.append(site.complete("open", max_tokens=40))
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes = sorted(
            (answer.status, answer.code, answer.headers.get("retry-after")) for answer in got
        )
        assert codes == [(429, "busy", "1")] * 4 + [(504, "deadline", None)] * 2
        got = site.complete("open", max_tokens=40, stream=True)
        assert got.status == 200
        assert got.events[-1]["error"]["code"] == "deadline"


def test_only_the_token_over_its_limit_gets_429():
    """Its places are free again once its requests have ended, however they end; nobody else is
    refused."""
    with (
        served(EngineLimits(num_rows=1, num_waiting=100), max_requests=4, lisp=6) as site,
        site.slowed(0.05),
    ):
        got: dict[str, list] = {"open": [], "lisp": [], "both": []}
        ask = lambda holder, stream: got[holder].append(
            site.complete(holder, max_tokens=4, stream=stream)
        )
        wanted = [
            (holder, n)
            for holder, number in (("open", 20), ("lisp", 9), ("both", 4))
            for n in range(number)
        ]
        threads = [threading.Thread(target=ask, args=(holder, n % 2 == 0)) for holder, n in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        num_served = [sum(answer.status == 200 for answer in answers) for answers in got.values()]
        assert num_served[0] < 12
        assert num_served[1] >= 6
        assert num_served[2] == 4
        refused = [answer for answers in got.values() for answer in answers if answer.status != 200]
        assert {(a.status, a.code, a.headers.get("retry-after")) for a in refused} == {
            (429, "token_limit", "1")
        }
        site.api.policy = planted(lisp=1).policy
        left = site.completion("lisp", max_tokens=50, stream=True)
        for _ in range(3):  # a request that is refused, one whose caller leaves, and two that end
            assert site.complete("lisp", prompt=[1] * SEQ_LEN, max_tokens=2).status == 400
            assert site.raw(left, num_bytes=300).startswith(b"HTTP/1.1 200")
            wait_until(lambda: site.complete("lisp", max_tokens=1).status == 200)
            for stream in (False, True):
                assert site.complete("lisp", max_tokens=1, stream=stream).status == 200


def test_a_disconnected_caller_frees_the_row():
    with served(EngineLimits(num_rows=1, num_waiting=4)) as site, site.slowed(0.2):
        started = time.monotonic()
        request = site.completion("open", max_tokens=50, stream=True)
        assert site.raw(request, num_bytes=300).startswith(b"HTTP/1.1 200")
        assert site.complete("lisp", max_tokens=1).status == 200
        assert time.monotonic() - started < 8.0  # and not the 10 s of fifty steps


def test_a_dead_engine_is_reported_at_once():
    with served() as site:
        assert site.ask("GET", "/healthz").body == b"ok\n"
        site.server.engine._batch.step = lambda: 1 / 0
        got = site.complete("open", max_tokens=20)
        assert (got.status, got.code, got.headers["retry-after"]) == (503, "interrupted", "5")
        got = site.ask("GET", "/healthz")
        assert (got.status, got.code) == (503, "unavailable")


def test_metrics_count_by_profile():
    with served() as site:
        site.complete("lisp", prompt=[5, 6], max_tokens=4)
        site.complete("lisp", prompt=[5, 6], max_tokens=4, stream=True)
        site.complete("open", model="lisp")
        site.complete("both", max_tokens=3)
        got = site.ask("GET", "/metrics", headers=site.bearer("open"))
        assert (got.status, got.code) == (403, "no_metrics")
        text = site.ask("GET", "/metrics", headers=site.bearer("reader")).body.decode()
    assert "both" not in text  # which is no profile of the token
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['gram_completions_total{end="length",profile="lisp"}'] == "2.0"
    assert lines['gram_prompt_tokens_total{profile="lisp"}'] == "4.0"
    assert lines['gram_completion_tokens_total{profile="lisp"}'] == "8.0"
    assert lines['gram_open_completions{profile="lisp"}'] == "0.0"
    assert lines['gram_refusals_total{code="model_not_found",status="404"}'] == "1.0"
    assert lines['gram_completion_seconds_count{profile="lisp"}'] == "2.0"


def test_a_caller_who_leaves_within_a_body_is_no_error_of_ours(site, caplog):
    head = f"Authorization: {site.bearer('open')['Authorization']}\r\nContent-Length: 99\r\n"
    start = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}"
    with caplog.at_level(logging.WARNING):
        assert site.raw(f"{start}\r\n{{".encode(), timeout_s=0.3) == b""
        time.sleep(0.5)
    assert not caplog.records


def test_the_page_allows_itself_and_nothing_else(site):
    got = site.ask("GET", "/")
    assert (got.status, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = got.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "http://" not in got.body.decode()
    assert "https://" not in got.body.decode()
    got = site.ask("OPTIONS", "/v1/completions", headers={"Origin": "http://elsewhere.example"})
    assert got.status == 405
    assert "access-control-allow-origin" not in got.headers
