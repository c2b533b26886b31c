"""What a server of text answers, real requests over this machine's network: refusals, and answers
that pass."""

import dataclasses
import http.server
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import Counter

import aiohttp
import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import httpx

from gram_platform.config.endings import Unavailable
from gram_platform.corpora import Packing, catalog, hub, hub_access, prepare, resolve
from gram_platform.corpora.recipe import HubRow, HubSource
from tests.corpora.test_hub import BIG, fetched, local_row, small_parts


class Server(http.server.ThreadingHTTPServer):
    """Serves texts by path, and a status for every other path.

    `faults` says which requests fail for the moment.
    """

    daemon_threads = True
    handle_error = lambda *_: None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.texts: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []
        self.faults = lambda path: False
        self.hub = f"http://127.0.0.1:{self.server_port}"
        # Another host: the library knows the hub's own files.
        self.files = f"http://localhost:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.server.asked.append(self.path)
        body = self.server.texts.get(self.path, b"{}")
        known = 200 if self.path in self.server.texts else 404
        status = (
            503 if self.server.faults(self.path) else self.server.statuses.get(self.path, known)
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    found = Server()
    threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr("datasets.config.HF_ENDPOINT", found.hub)
    monkeypatch.setattr(hub_access, "PAUSES_S", (0.0,) * 3)
    monkeypatch.setattr("datasets.config.STREAMING_READ_RETRY_INTERVAL", 0)
    monkeypatch.setattr("datasets.config.STREAMING_OPEN_RETRY_INTERVAL", 0)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield found
    found.shutdown()


def lines(records) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def hub_row(name: str, **changes) -> HubRow:
    return dataclasses.replace(
        HubRow(f"org/{name}", "main", ("text",), 1.0, False, label="core"), **changes
    )


def test_every_row_is_asked_before_any_is_fetched(
    server, tmp_path, records, jsonl, settings, monkeypatch
):
    """Two rows of three are refused: one error names both, the variable and the page, and no text
    was fetched."""
    server.statuses["/api/datasets/org/gated/auth-check"] = 403
    server.statuses["/api/datasets/org/private/auth-check"] = 401
    readable = local_row(jsonl(tmp_path / "a.jsonl", records))
    rows = (readable, hub_row("gated", data_dir="data/lisp"), hub_row("private"))
    monkeypatch.setitem(catalog.CORPORA, "here", catalog.HubCorpus(rows, ("core",), 2_000, 1.0))
    with pytest.raises(ValueError, match="HF_TOKEN") as found:
        prepare(resolve("here", Packing(**settings)), tmp_path / "data")
    assert "org/gated data/lisp at main" in str(found.value)
    assert f"{server.hub}/datasets/org/private" in str(found.value)
    assert not list((tmp_path / "data").rglob("part-*"))


def test_a_dataset_that_does_not_exist_is_bad_input(server, tmp_path):
    with pytest.raises(ValueError, match="org/absent"):
        fetched(hub_row("absent"), tmp_path)


@pytest.mark.parametrize("status", [429, 500])
def test_a_server_that_is_overloaded_is_asked_again(server, tmp_path, records, status):
    """It is no bad input.

    The row is asked four times in all, and one good answer in between is enough.
    """
    server.texts["/a.jsonl"] = lines(records)
    server.statuses["/a.jsonl"] = status
    row = local_row(f"{server.files}/a.jsonl")
    with pytest.raises(Unavailable, match=f"{status}") as found:
        fetched(row, tmp_path / "hub")
    assert not isinstance(found.value, ValueError)
    assert type(pickle.loads(pickle.dumps(found.value))) is Unavailable  # as it comes from a worker
    assert Counter(server.asked) == {"/a.jsonl": 4}
    seen = []
    server.statuses.clear()
    server.faults = lambda path: seen.append(path) or len(seen) <= 3
    assert len(fetched(row, tmp_path / "hub")) == len(records)


def test_rows_of_a_hub_that_is_away_are_asked_again_together(server, tmp_path):
    """One pause for all of them, and none where one is refused: that will not pass."""
    rows = tuple(hub_row(f"away-{number}") for number in range(3))
    server.statuses |= {f"/api/datasets/{row.dataset}/auth-check": 503 for row in rows}
    with pytest.raises(Unavailable):
        hub.fetch(HubSource(rows, (BIG,) * 3), tmp_path, lambda *_: None)
    assert set(Counter(server.asked).values()) == {4}
    server.asked.clear()
    server.statuses["/api/datasets/org/away-1/auth-check"] = 403
    with pytest.raises(ValueError, match="org/away-1"):
        hub.fetch(HubSource(rows, (BIG,) * 3), tmp_path, lambda *_: None)
    assert set(Counter(server.asked).values()) == {1}


def test_what_a_request_cannot_hold_is_bad_input(server, tmp_path, monkeypatch):
    """Its message names the characters, and not the token.

    An offline library is no server that is away.
    """
    monkeypatch.setenv("HF_TOKEN", "\N{LEFT DOUBLE QUOTATION MARK}hf_secret")
    with pytest.raises(ValueError, match="HF_TOKEN='\N{LEFT DOUBLE QUOTATION MARK}'") as found:
        fetched(hub_row("a"), tmp_path)
    assert "secret" not in str(found.value)
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        fetched(hub_row("a"), tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("seed", range(2))
def test_a_fetch_outlives_random_faults(server, tmp_path, records, jsonl, monkeypatch, seed):
    """A third of all requests fail, of two files: the same records as from the disk."""
    small_parts(monkeypatch)
    monkeypatch.setattr(hub_access, "PAUSES_S", (0.0,) * 99)
    half, draw = len(records) // 2, random.Random(seed)
    server.texts |= {"/a.jsonl": lines(records[:half]), "/b.jsonl": lines(records[half:])}
    server.faults = lambda path: draw.random() < 1 / 3
    row = dataclasses.replace(
        local_row(""), files=(f"{server.files}/a.jsonl", f"{server.files}/b.jsonl")
    )
    assert fetched(row, tmp_path / "hub") == [(r["label"], r["text"]) for r in records]


def test_a_file_that_is_missing_is_named(server, tmp_path, records):
    server.texts["/a.jsonl"] = lines(records)
    row = dataclasses.replace(
        local_row(""), files=(f"{server.files}/a.jsonl", f"{server.files}/b.jsonl")
    )
    with pytest.raises(ValueError, match=r"b\.jsonl"):
        fetched(row, tmp_path / "hub")


def test_the_pauses_begin_anew_after_each_part():
    """Five breaks with progress in between are outlived with two pauses.

    A third in the same place is not.
    """
    breaks, done = [0, 1, 2, 3, 4, 4, 4], []

    def work() -> str:
        if breaks and breaks[0] == len(done):
            breaks.pop(0)
            raise Unavailable("away")
        done.append(1)
        return work() if len(done) < 6 else "whole"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_access, "PAUSES_S", (0.0, 0.0))
        with pytest.raises(Unavailable):
            hub_access.retry_unavailable(work, lambda: len(done))
    assert len(done) == 4


def test_the_cause_of_an_error_decides():
    """The libraries raise "not found" from the answer of a server that is overloaded."""
    request = httpx.Request("GET", "http://hub")
    answers = {
        status: HfHubHTTPError("no", response=httpx.Response(status, request=request))
        for status in (403, 404, 503)
    }
    for status, answer in answers.items():
        hidden = FileNotFoundError("not found")
        hidden.__cause__ = answer
        assert hub_access.is_passing(hidden) == (status == 503)
    broken = (
        ConnectionResetError(),
        TimeoutError(),
        httpx.ReadTimeout(""),
        aiohttp.ServerDisconnectedError(),
    )
    assert all(map(hub_access.is_passing, (*broken, aiohttp.ClientPayloadError())))
    denied = PermissionError()
    denied.__cause__ = type("ClientError", (Exception,), {})()  # as botocore calls it
    final = (
        FileNotFoundError(),
        PermissionError(),
        denied,
        ValueError("a bad record"),
        OfflineModeIsEnabled(),
    )
    assert not any(map(hub_access.is_passing, final))


TOKENIZER_OF = """
import sys
from gram_platform.corpora.tokenizer import hub_tokenizer
try:
    hub_tokenizer("org/absent@main")
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, "InvalidField"), pytest.param(503, "Unavailable", marks=pytest.mark.slow)],
)
def test_a_tokenizer_of_a_hub_that_is_away(server, tmp_path, status, kind):
    """In a process of its own, which reads the hub's address as it starts.

    The library itself asks for 23 s.
    """
    server.statuses["/org/absent/resolve/main/tokenizer.json"] = status
    environment = os.environ | {"HF_ENDPOINT": server.hub, "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", TOKENIZER_OF],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [kind]


def test_rows_that_have_text_are_not_asked_again(server, tmp_path, records, monkeypatch):
    server.texts["/a.jsonl"] = lines(records)
    source = HubSource((local_row(f"{server.files}/a.jsonl"),), (BIG,))
    first = hub.fetch(source, tmp_path, lambda *_: None)
    server.asked.clear()
    assert hub.fetch(source, tmp_path, lambda *_: None) == first
    assert server.asked == []
