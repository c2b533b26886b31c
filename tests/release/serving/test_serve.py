"""`gram serve` on Ray Serve: hostile and ordinary callers, many at once, and a model process that
is killed."""

import asyncio
import re
import threading
import time
from pathlib import Path

import grpc
import psutil
import pytest

from gram_platform.cli import main
from gram_platform.release.serving.policy import token_digest
from gram_platform.release.serving.policy_file import load_policy
from tests.release.serving.http import Answered, Served
from tests.release.serving.load import Question, hammer
from tests.release.serving.planted import ANSWERS, POLICY
from tests.release.serving.proxy import proxied
from tests.release.serving.running import Running, gram_serve

pytestmark = pytest.mark.ray
NUM_TOKENS = 24
RAY_METHODS = (  # of each kind of server that Ray and Ray Serve start, one or two
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.ReporterService/GetTraceback",
    "/ray.serve.ASGIService/HandleRequest",
    "/ray.serve.ASGIService/HandleRequestStreaming",
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with gram_serve(tmp_path_factory.mktemp("serve")) as server:
        yield server


def planted_questions(running: Running) -> list[Question]:
    """Prompts whose greedy answers tell the four profiles apart."""
    says = {p: running.site.complete(p, max_tokens=1).json["choices"][0]["text"] for p in ANSWERS}
    assert len(set(says.values())) == 4
    answers = {profile: text * NUM_TOKENS for profile, text in says.items()}
    return [
        Question(prompt, answers, NUM_TOKENS)
        for prompt in ("the fox", "a lazy dog and", "", "jumps over it, " * 2)
    ]


def test_callers_get_their_own_profile_and_no_other(running):
    site = running.site
    texts = {p: site.complete(p).json["choices"][0]["text"] for p in ANSWERS}
    assert len(set(texts.values())) == 4
    for profile in ("open", "lisp", "medicine"):
        assert site.complete("reader", model=profile).json["choices"][0]["text"] == texts[profile]
    for profile in ("both", "nobodys", "secret"):
        got = site.complete("reader", model=profile)
        assert (got.status, got.code) == (404, "model_not_found")
    assert site.complete("lisp", stream=True).events[-1] == "[DONE]"
    assert re.search(r"not in memory.*: secret\b", running.log.read_text())


def test_forty_clients_of_four_profiles(running, capsys):
    address = f"http://127.0.0.1:{running.site.port}"
    record = asyncio.run(
        hammer(address, [running.site.plan.tokens], planted_questions(running), 40, 3.0)
    )
    with capsys.disabled():
        print(f"\n40 clients: {record.summary()}")
    assert not record.wrong
    assert not record.lost
    assert set(record.answered) == set(ANSWERS)
    assert sum(record.answered.values()) >= 40
    scraped = running.site.ask(
        "GET", "/metrics", headers=running.site.bearer("reader")
    ).body.decode()
    assert 'gram_open_completions{profile="lisp"} 0.0' in scraped


def test_who_listens_and_what_they_say_to_strangers(running):
    """Nothing but Serve's port of each replica is off the loopback; no port serves anybody without
    a token.

    Two exceptions are public: the page and health of `gram serve`, and Ray's metrics of machine and
    actors; both are on the loopback.
    """
    port, answers = running.site.port, {}
    for name, address in listening(running):
        if not address.ip.endswith("127.0.0.1"):
            assert name.startswith("ray::ServeReplica"), f"{name} listens on {address}"
        if address.port != port:
            answers.setdefault(name.partition(":gram-")[0], set()).update(
                said_to_a_stranger(address.port)
            )
    assert (port, "127.0.0.1") in {(address.port, address.ip) for _, address in listening(running)}
    assert {said for each in answers.values() for said in each} == {
        "401",
        "200 metrics",
        "UNAUTHENTICATED",
    }, answers
    # Beside another cluster it says 401.
    assert answers["ray::DashboardAgent"] - {"401"} == {"200 metrics", "UNAUTHENTICATED"}
    assert answers["ray::ServeReplica"] == {"UNAUTHENTICATED"}
    assert answers["ray::ProxyActor"] == {"UNAUTHENTICATED"}


def listening(running: Running) -> list[tuple[str, tuple]]:
    """(a process's name, an address where it listens) of the command and all processes below it."""
    processes = [
        running.process.pid,
        *(p.pid for p in psutil.Process(running.process.pid).children(recursive=True)),
    ]
    found = [
        c
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.pid in processes
    ]
    return [(" ".join(psutil.Process(c.pid).cmdline()).strip(), c.laddr) for c in found]


def said_to_a_stranger(port: int) -> set[str]:
    """The status of an HTTP request, or of calls by gRPC, all without a token."""
    answer = Served(port, None).raw(
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 1000, 3.0
    )
    if answer.startswith(b"HTTP/1"):
        return {answer.split()[1].decode() + (" metrics" if b"\r\n\r\n# HELP" in answer else "")}
    said = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in RAY_METHODS:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(method)(b"", timeout=60)
            said.add(error.value.code().name)
    assert said <= {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    assert "UNAUTHENTICATED" in said, f"no method of port {port} is among those that were tried"
    return {"UNAUTHENTICATED"}


def test_nobody_else_may_read_its_files_and_no_file_has_a_secret(running, tmp_path):
    """Ray opens its own folder to everybody, inside one that is this user's alone; no file has a
    token or a prompt.

    Nor a header, through the reverse proxy: Ray Serve itself would log one. What the command prints
    names a refusal by the token's name.
    """
    site, prompt = running.site, "a planted prompt, " * 2
    for stream in (False, True):
        assert site.complete("lisp", prompt=prompt, stream=stream).status == 200
    assert site.complete("lisp", model="planted-model", prompt=prompt).status == 404
    with proxied(tmp_path, site.port) as proxy:
        strays = {"X-Request-ID": "planted-id", "Cookie": "planted"}
        assert proxy.ask("GET", "/planted-path?planted-query", headers=strays).status == 404
        assert (
            proxy.ask(
                "GET", "/v1/models?planted-query", headers=strays | site.bearer("lisp")
            ).status
            == 200
        )
    words = " ".join(name for name, _ in listening(running))
    folders = {Path(found) for found in re.findall(r"temp[-_]dir=(\S+)", words)}
    assert folders, "no process of Ray names its folder"
    assert {folder.parent.stat().st_mode & 0o777 for folder in folders} == {0o700}
    of_ray = psutil.Process(running.process.pid).children()
    (ray_token,) = {child.environ()["RAY_AUTH_TOKEN"].encode() for child in of_ray}
    secrets = [b"planted", ray_token, *(token.encode() for token in site.plan.tokens.values())]
    running.wait_until(
        lambda: "refused: holder=lisp status=404 code=model_not_found" in running.log.read_text()
    )
    time.sleep(3)  # Ray writes some of its logs now and then
    files = [
        running.log,
        *(path for folder in folders for path in folder.rglob("*") if path.is_file()),
    ]
    assert len(files) > 20
    assert {
        path.name for path in files if any(secret in path.read_bytes() for secret in secrets)
    } == set()
    processes = [
        psutil.Process(running.process.pid),
        *psutil.Process(running.process.pid).children(recursive=True),
    ]
    assert not [
        p for p in processes if any(secret.decode() in " ".join(p.cmdline()) for secret in secrets)
    ]


def test_the_policy_is_followed_while_it_serves(running, capsys):
    """Tokens come and go without a restart; an entry with an error loses its rights, the rest is
    followed."""
    site, path = running.site, running.log.parent / "storage" / "policy.toml"
    before, processes = path.read_text(), [process.pid for process in running.replicas("Model")]
    main(["token", "zoe", "--policy", str(path), "--profiles", "lisp"])
    site.plan.tokens["zoe"] = capsys.readouterr().out.strip()
    running.wait_until(lambda: site.complete("zoe").status == 200)
    assert (
        site.complete("zoe").json["choices"][0]["text"]
        == site.complete("lisp").json["choices"][0]["text"]
    )
    with_zoe = path.read_text()
    path.write_text(with_zoe.replace('name = "open"', "name = 1"))
    running.wait_until(lambda: "has an error: tokens[0].name=1" in running.log.read_text())
    running.wait_until(lambda: b"has errors: 1 of its parts" in site.ask("GET", "/healthz").body)
    assert site.complete("open").status == 401
    scraped = site.ask("GET", "/metrics", headers=site.bearer("reader")).body.decode()
    assert "gram_policy_refused 1.0" in scraped
    assert site.complete("zoe").status == 200
    # One edit takes zoe's token away and grants lisp's a module that is not in memory.
    path.write_text(
        before.replace('profiles = ["lisp"]', 'profiles = ["lisp", "nobodys"]\ndefault = "lisp"')
    )
    running.wait_until(
        lambda: "profiles.nobodys.modules='secret': expected" in running.log.read_text()
    )
    running.wait_until(lambda: site.complete("zoe").status == 401)
    assert site.complete("lisp").status == 200
    assert site.complete("lisp", model="nobodys").status == 404
    path.write_text(before)
    running.wait_until(lambda: site.ask("GET", "/healthz").body == b"ok\n")
    assert [process.pid for process in running.replicas("Model")] == processes
    del site.plan.tokens["zoe"]


@pytest.mark.slow
def test_a_killed_model_is_reported_and_replaced(running):
    """Open streams and requests end with an error, later ones are told when to come again, and then
    it works."""
    site, got, is_open, is_back = running.site, [], threading.Event(), threading.Event()
    expected = site.complete("both").json["choices"][0]["text"]

    def ask(stream: bool) -> None:
        # One that was not yet given to the old model may wait for the new one.
        while not is_back.is_set():
            opened = is_open.set if stream else lambda: None
            answer = site.complete("both", opened, prompt="x", max_tokens=60, stream=stream)
            got.append(answer)
            if answer.status != 200 or is_broken(answer):
                return

    threads = [threading.Thread(target=ask, args=(number % 2 == 0,)) for number in range(16)]
    for thread in threads:
        thread.start()
    (model,) = running.replicas("Model")
    running.wait_until(lambda: len(got) >= 2 * len(threads))
    is_open.clear()
    # A moment at which streams are open: they all start and end nearly together.
    assert is_open.wait(60)
    model.kill()
    running.wait_until(lambda: any(answer.status != 200 or is_broken(answer) for answer in got))
    running.wait_until_ready()
    is_back.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a request hangs"
    streams = [answer for answer in got if "event-stream" in answer.headers["content-type"]]
    assert all(answer.events[-1] == "[DONE]" or is_broken(answer) for answer in streams)
    errors = [answer.events[-1]["error"]["code"] for answer in streams if is_broken(answer)]
    errors += [answer.code for answer in got if answer.status != 200]
    assert set(errors) <= {"interrupted", "unavailable"}
    assert "interrupted" in errors
    assert all(answer.headers["retry-after"] == "5" for answer in got if answer.status == 503)
    deadline = time.monotonic() + 60
    # The new model may not be known everywhere yet.
    while (answer := site.complete("both")).status != 200:
        assert (answer.status, answer.code) == (503, "unavailable")
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert answer.json["choices"][0]["text"] == expected
    assert [process.pid for process in running.replicas("Model")] != [model.pid]


def is_broken(answer: Answered) -> bool:
    """Whether it is a stream that ends with an error."""
    return (
        b"data: " in answer.body
        and isinstance(answer.events[-1], dict)
        and "error" in answer.events[-1]
    )


def refused(capsys, *arguments: str) -> str:
    """What the command says when it ends with code 2."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_served_is_refused_at_once(tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    where = ("--storage", str(tmp_path), "--policy", str(policy))
    assert "--policy" in refused(capsys, "serve", "abc", *where)  # nobody has a token yet
    assert "gone" in refused(capsys, "serve", "abc", *where[:3], str(tmp_path / "gone"))
    assert "--port 70000" in refused(capsys, "serve", "abc", *where, "--port", "70000")
    assert "num_rows=0" in refused(capsys, "serve", "abc", *where, "--rows", "0")
    both = ("--policy", str(policy), "--profiles", "open", "lisp")
    assert "--default: " in refused(capsys, "token", "zoe", *both)
    main(["token", "zoe", *both, "--default", "lisp"])
    rule = load_policy(str(policy)).holder(token_digest(capsys.readouterr().out.strip()))
    assert (rule.name, rule.default) == ("zoe", "lisp")
    assert re.search("run_id='abc': expected .*run", refused(capsys, "serve", "abc", *where))
    assert "tokens.name='zoe'" in refused(capsys, "token", "zoe", *both, "--default", "lisp")
