"""A webhook gets one message when a submission ends, and can neither fail nor hold it up: a real
HTTP server."""

import json
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import InvalidField, mask_secrets
from gram_platform.studies import drive, live
from gram_platform.studies.library.scaling import STUDY
from tests.submitted import execute, plan_of

KEY = "T0/B0/5ecretKey"
FLAGS = (
    "--preset",
    "smoke",
    "--methods",
    "baseline",
    "--seeds",
    "1",
    "--sizes",
    "tiny",
    "--in-process",
)


class Webhook(ThreadingHTTPServer):
    """Keeps what it is sent; answers with `status`, or never where that is 0, letter by letter
    where it is -1."""

    daemon_threads = True

    def __init__(self):
        self.got: list[dict] = []
        self.paths: list[str] = []
        self.status, self.is_closed = 200, threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{KEY}"


class Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.paths.append(self.path)
        if self.server.status > 0:
            self.send_response(self.server.status)
            self.send_header(
                "Location", f"file:///{KEY}" if self.server.status == 307 else "/elsewhere"
            )
            self.end_headers()
            return
        while not self.server.is_closed.wait(0.05):
            self.wfile.write(b"h" if self.server.status else b"")

    def log_message(self, *_) -> None:
        """Prints nothing."""


@pytest.fixture
def server() -> Iterator[Webhook]:
    with Webhook() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        yield server
        server.is_closed.set()
        server.shutdown()


@pytest.mark.slow
def test_each_end_of_a_study_is_one_message_without_secrets(server, storage, monkeypatch, capsys):
    """Limit, failure, error of the machine, end: each submission goes on where the last one
    stopped."""
    monkeypatch.setattr(sys, "argv", ["scaling.py", *FLAGS, "--notify", server.url])
    flags = [*FLAGS, "--notify", server.url]

    def ended(code: int, event: str, *more: str) -> dict:
        before = len(server.got)
        assert execute(STUDY, [*flags, *more]) == code
        (message,) = server.got[before:]
        assert set(message) == {
            "text",
            "event",
            "study",
            "storage",
            "counts",
            "failures",
            "verdicts",
        }
        assert (message["event"], message["study"], message["storage"]) == (
            event,
            "scaling",
            "storage",
        )
        assert message["counts"] in message["text"]
        return message

    assert re.match(r"1 of 2 .*\b1 now", ended(3, "limit reached", "--max-hours", "1e-9")["counts"])
    failed = ended(1, "failed", "--set", "sizes[tiny].peak_lr=1e30")
    assert failed["failures"] == 2

    def no_machine(*_, **__):
        raise Unavailable("https://me:pa55word@host is away")

    with monkeypatch.context() as patch:
        patch.setattr(drive, "write_tables", no_machine)
        with pytest.raises(Unavailable):
            execute(STUDY, flags)
    assert server.got[-1]["event"] == "failed"
    assert "Unavailable: https://***@host is away" in server.got[-1]["text"]
    server.status = 500
    capsys.readouterr()
    done = ended(0, "done")
    assert re.match(r"2 of 2 .*\b1 now", done["counts"])
    assert (done["failures"], done["verdicts"]) == (0, {})
    assert capsys.readouterr().out.count("HTTP Error 500") == 1
    assert set(server.paths) == {f"/services/{KEY}"}
    record = json.loads((storage / "studies/scaling/study.json").read_text())
    assert record["submissions"][-1]["command"].endswith("--in-process --notify ***")
    kept = [
        path for path in storage.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()
    ]
    assert not kept


def test_claims_are_counted_in_the_message(server):
    message = live.message_of(
        "scaling",
        "s3://key:secret@bucket/runs/",
        0,
        "4 nodes\n2 trials",
        0,
        {"agree": 3, "disagree": 1},
    )
    assert live.post(server.url, message) == ""
    assert server.got == [message]
    assert (message["event"], message["storage"], message["failures"]) == ("done", "runs", 0)
    assert message["verdicts"] == {"agree": 3, "disagree": 1}


@pytest.mark.parametrize("status", [0, -1])
def test_a_webhook_that_does_not_answer_is_left_after_its_time(server, status, monkeypatch):
    monkeypatch.setattr(live, "TIMEOUT_S", 0.3)
    server.status, started = status, time.monotonic()
    assert " 0.3 s" in live.post(server.url, {"text": "?"})
    assert time.monotonic() - started < 5.0
    assert server.got == [{"text": "?"}]


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_a_reason_and_is_not_followed(server, status):
    """It was a GET without the message, which counted as taken."""
    server.status = status
    reason = live.post(server.url, {"text": "?"})
    assert reason.startswith(f"HTTP Error {status}")
    assert KEY not in reason
    assert server.got == [{"text": "?"}]


def test_a_webhook_that_is_not_there_is_a_reason(server):
    url = server.url.replace(str(server.server_port), "1")
    assert "refused" in live.post(url, {"text": "?"})


@pytest.mark.parametrize(
    "url",
    [
        f"hooks.example.org/services/{KEY}",
        f"https://me:pa55word@hooks.example.org/{KEY}",
        f"https://hooks.example.org?key={KEY}&a= b",
        f"https://hooks.example.org/'{KEY}",
    ],
)
def test_another_address_is_bad_input_whose_error_has_no_key(url):
    with pytest.raises(InvalidField) as found:
        plan_of(STUDY, ["--notify", url])
    assert found.value.field == "notify"
    assert KEY.split("/")[-1] not in str(found.value)
    assert "pa55word" not in str(found.value)


@pytest.mark.parametrize("form", [["--notify", "{}"], ["--notify={}"]])
def test_a_recorded_command_has_no_webhook(form):
    url = f"https://hooks.example.org/services/{KEY}?a=1&b=2"
    command = shlex.join(["scaling.py", *(part.format(url) for part in form), "--seeds", "2"])
    assert shlex.split(mask_secrets(command)) == [
        "scaling.py",
        *(part.format("***") for part in form),
        "--seeds",
        "2",
    ]
