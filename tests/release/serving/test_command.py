"""`gram serve` ends when it is told to, ready or not, and refuses what it could only wait for."""

import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import ray
from ray import serve

from gram_platform.config.endings import exit_codes
from gram_platform.release.serving import command, deployments
from gram_platform.release.serving.command import Service, serve_until_stopped
from gram_platform.release.serving.engine import EngineLimits
from gram_platform.release.serving.policy import Policy
from tests.refused import refused
from tests.release.serving.planted import planted
from tests.release.serving.running import GRAM, START_TIMEOUT_S, environment

SIGNALS = {
    "SIGINT": [signal.SIGINT],
    "SIGTERM": [signal.SIGTERM],
    "both": [signal.SIGINT, signal.SIGTERM],
}


def send(numbers: list[int]) -> None:
    """To the main thread; from there, all before one of them is heard.

    Another thread may not take one instead, and nothing stays blocked: every process started later
    would inherit it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            signal.pthread_kill(threading.main_thread().ident, number)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def wait_for_ever(*_, **__) -> None:
    threading.Event().wait(30)
    raise AssertionError("it waits on")


def joined(is_private: bool) -> bool:
    """As ray.init does: SIGTERM is Ray's afterwards."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
    return is_private


@pytest.fixture
def planted_ray(monkeypatch, tmp_path):
    """No Ray, a policy file, and a list of what has been said and ended; the signals' handlers are
    put back."""
    handlers, happened = {number: signal.getsignal(number) for number in SIGNALS["both"]}, []
    (tmp_path / "policy.toml").write_text(planted().policy_text)
    run = SimpleNamespace(model=SimpleNamespace(seq_len=8))
    source = SimpleNamespace(policy=planted().policy)
    prepared = SimpleNamespace(run=run, source=source, tokenizer_json="")
    prepared.lines = lambda: ["lines"]
    monkeypatch.setattr(command, "prepare", lambda _: prepared)
    monkeypatch.setattr(command, "make_environment_private", lambda: None)
    monkeypatch.setattr(command, "join_ray", lambda *_: joined(is_private=False))
    monkeypatch.setattr(command, "POLICY_CHECK_S", 0.01)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(
        ray, "nodes", lambda: [{"NodeID": "here", "Resources": {command.HEAD: 1.0}}]
    )
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here")
    )
    monkeypatch.setattr(ray, "shutdown", lambda: happened.append("ray.shutdown"))
    monkeypatch.setattr(serve, "start", lambda **_: None)
    monkeypatch.setattr(serve, "run", lambda *_, **__: happened.append("run"))
    applications = {}
    monkeypatch.setattr(
        serve, "status", lambda: SimpleNamespace(applications=applications, proxies={})
    )
    monkeypatch.setattr(serve, "shutdown", lambda: happened.append("serve.shutdown"))
    monkeypatch.setattr(command, "new_keeper", lambda _: lambda *_: None)
    monkeypatch.setattr(deployments, "application", lambda *_: None)
    yield happened
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def service(tmp_path, device: str = "cpu", host: str = "127.0.0.1") -> Service:
    policy = str(tmp_path / "policy.toml")
    return Service(str(tmp_path), "abc", policy, host, 8123, EngineLimits(), device=device)


@pytest.mark.parametrize("numbers", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_ends_it_while_a_model_waits_for_its_place(
    planted_ray, monkeypatch, tmp_path, numbers
):
    monkeypatch.setattr(serve, "run", lambda *_, **__: (send(numbers), wait_for_ever()))
    serve_until_stopped(service(tmp_path), planted_ray.append)
    assert planted_ray == ["stopping", "serve.shutdown", "ray.shutdown"]


def test_a_private_ray_ends_with_all_that_it_serves(planted_ray, monkeypatch, tmp_path):
    """The shutdown of Ray Serve alone prints an error of Ray, which tries it for ever."""
    monkeypatch.setattr(command, "join_ray", lambda *_: joined(is_private=True))
    monkeypatch.setattr(serve, "run", lambda *_, **__: (send([signal.SIGINT]), wait_for_ever()))
    serve_until_stopped(service(tmp_path), planted_ray.append)
    assert planted_ray == ["stopping", "ray.shutdown"]


@pytest.mark.parametrize("numbers", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_ends_it_while_it_joins_ray(planted_ray, monkeypatch, tmp_path, numbers):
    """Ray Serve was not started: its shutdown would end somebody else's, or start a Ray."""
    monkeypatch.setattr(command, "join_ray", lambda *_: (send(numbers), wait_for_ever()))
    serve_until_stopped(service(tmp_path), planted_ray.append)
    assert planted_ray == ["stopping", "ray.shutdown"]


@pytest.mark.parametrize("numbers", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_ends_it_while_it_serves_and_a_second_does_not_cut_that_short(
    planted_ray, monkeypatch, tmp_path, numbers
):
    def say(text: str) -> None:
        planted_ray.append(text)
        if text == "ready: http://127.0.0.1:8123":
            threading.Timer(0.05, send, [numbers]).start()

    monkeypatch.setattr(
        serve, "shutdown", lambda: (send(SIGNALS["both"]), planted_ray.append("serve.shutdown"))
    )
    serve_until_stopped(service(tmp_path), say)
    assert planted_ray[:3] == ["run", "lines", "ready: http://127.0.0.1:8123"]
    assert planted_ray[3:] == ["stopping", "serve.shutdown", "ray.shutdown"]


def test_another_host_is_warned_about(planted_ray, monkeypatch, tmp_path):
    """With the file of the reverse proxy that has to stand before it."""

    def say(text: str) -> None:
        planted_ray.append(text)
        if text.startswith("ready: "):
            threading.Timer(0.05, send, [[signal.SIGTERM]]).start()

    asked = []
    monkeypatch.setattr(
        serve, "start", lambda **options: asked.append(options["http_options"]["host"])
    )
    serve_until_stopped(service(tmp_path, host="0.0.0.0"), say)
    assert asked == ["0.0.0.0"]
    warning = planted_ray.index("lines") + 1
    assert "0.0.0.0" in planted_ray[warning]
    assert "cluster/haproxy.cfg" in planted_ray[warning + 1]


def test_the_policy_is_confirmed_while_it_loads_and_while_it_serves(
    planted_ray, monkeypatch, tmp_path
):
    """Each text once a look; an error costs its entry, and a text that cannot be read the
    confirmation."""
    path, plan, confirmed, said = tmp_path / "policy.toml", planted(), [], []
    reached = {step: threading.Event() for step in ("loading", "revoked", "unreadable")}

    def confirm(policy: Policy, num_left_out: int, read_at: float) -> None:
        assert 0 <= time.monotonic() - read_at < 5
        holders = {rule.name for rule in policy.tokens}
        confirmed.append((holders, num_left_out))
        if len(confirmed) > 3:
            reached["loading"].set()
        if "lisp" not in holders:
            reached["revoked"].set()

    def say(text: str) -> None:
        said.append(text)
        if "everybody is refused" in text:
            reached["unreadable"].set()

    def load(*_, **__) -> None:
        assert reached["loading"].wait(30)
        digest = plan.policy.tokens[1].sha256
        path.write_text(plan.policy_text.replace(digest, "revoked"))
        assert reached["revoked"].wait(30)
        for spoil in (
            lambda: path.write_text(plan.policy_text + "[[tokens]"),
            lambda: path.chmod(0o666),
        ):
            reached["unreadable"].clear()
            spoil()
            assert reached["unreadable"].wait(30)
        confirmed.append("unreadable")
        send([signal.SIGTERM])

    monkeypatch.setattr(command, "new_keeper", lambda _: confirm)
    monkeypatch.setattr(serve, "run", load)
    serve_until_stopped(service(tmp_path), say)
    everybody = {rule.name for rule in plan.policy.tokens}
    assert confirmed[0] == (everybody, 0)
    assert confirmed[-2] == (everybody - {"lisp"}, 1)
    assert confirmed[-1] == "unreadable"
    assert said[-1] == "stopping"
    changed, *errors = said[:-1]
    assert re.search(r"policy .*changed: 4\b", changed)
    assert [bool(re.search(r"policy .*\berror: ", text)) for text in errors] == [True] * 3


def test_another_serve_is_neither_joined_nor_ended(planted_ray, monkeypatch, tmp_path):
    """Ray Serve's options and address would be the other's, and its shutdown would end every
    application."""
    monkeypatch.setattr(
        serve, "status", lambda: SimpleNamespace(applications={"theirs": 1}, proxies={"node": 1})
    )
    with refused("ray_address", "theirs"):
        serve_until_stopped(service(tmp_path), planted_ray.append)
    assert planted_ray == ["ray.shutdown"]


def test_a_ray_whose_head_is_elsewhere_is_refused(planted_ray, monkeypatch, tmp_path):
    """Ray Serve's proxy listens on the loopback of the head's machine, where nobody here can reach
    it."""
    nodes = [
        {"NodeID": "here", "Resources": {}},
        {"NodeID": "there", "Resources": {command.HEAD: 1.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with refused("ray_address", "there"):
        serve_until_stopped(service(tmp_path), planted_ray.append)
    assert planted_ray == ["ray.shutdown"]


def test_only_its_own_application_is_deleted(planted_ray, monkeypatch, tmp_path):
    """Somebody has deployed another one since."""
    applications = {}

    def run(_, name, **__) -> None:
        applications.update({name: 1, "theirs": 1})
        send([signal.SIGINT])

    monkeypatch.setattr(
        serve, "status", lambda: SimpleNamespace(applications=applications, proxies={})
    )
    monkeypatch.setattr(serve, "run", run)
    monkeypatch.setattr(
        serve, "delete", lambda name: (applications.pop(name), planted_ray.append(name[:9]))
    )
    serve_until_stopped(service(tmp_path), planted_ray.append)
    assert planted_ray == ["stopping", "gram-abc-", "ray.shutdown"]
    assert applications == {"theirs": 1}


@pytest.mark.parametrize(
    "died",
    [
        ray.exceptions.ActorDiedError(),
        ray.exceptions.GetTimeoutError("Get timed out"),
        RuntimeError("Deploying application gram failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_ray_serve_that_dies_while_it_starts_is_one_line(
    planted_ray, monkeypatch, tmp_path, capsys, died
):
    def die(*_, **__):
        raise died

    monkeypatch.setattr(serve, "run", die)

    # From then on its controller is dead, too.
    def new_keeper(name: str):
        monkeypatch.setattr(serve, "status", die)
        return lambda *_: None

    monkeypatch.setattr(command, "new_keeper", new_keeper)

    def serve_command() -> None:
        with exit_codes():
            serve_until_stopped(service(tmp_path), planted_ray.append)

    with pytest.raises(SystemExit) as ended:
        serve_command()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "gram serve" in said
    assert planted_ray == ["ray.shutdown"]


@pytest.mark.parametrize(
    ("flag", "variable", "expected"),
    [
        ("", "", ""),
        ("", "local", ""),
        ("local", "127.0.0.1:1", ""),
        ("", "127.0.0.1:1", "127.0.0.1:1"),
        ("127.0.0.1:2", "local", "127.0.0.1:2"),
    ],
)
def test_local_is_a_ray_of_its_own(monkeypatch, flag, variable, expected):
    """As everywhere: `RAY_ADDRESS=local` starts one."""
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert command.choose_ray(flag) == expected


def test_cuda_is_refused_where_ray_has_no_gpu(planted_ray, monkeypatch, tmp_path):
    with refused("device", "cuda"):
        serve_until_stopped(service(tmp_path, "cuda"), planted_ray.append)
    assert planted_ray == ["ray.shutdown"]
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "GPU": 1.0})
    monkeypatch.setattr(serve, "run", lambda *_, **__: send([signal.SIGINT]))
    serve_until_stopped(service(tmp_path, "cuda"), planted_ray.append)
    assert planted_ray == ["ray.shutdown", "stopping", "serve.shutdown", "ray.shutdown"]


def test_the_process_that_serves_says_what_it_refuses(tmp_path):
    policy = str(tmp_path / "policy.toml")
    told = [*GRAM, "serve", "abc", "--storage", str(tmp_path), "--policy", policy]
    ended = subprocess.run(
        told, env=environment(), capture_output=True, text=True, timeout=START_TIMEOUT_S
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: --policy")
    assert "Traceback" not in ended.stderr
