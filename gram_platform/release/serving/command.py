"""`gram serve`: check everything, start Ray Serve on a Ray of its own or a given one, and stay until interrupted.

The command checks, and then becomes `python -m gram_platform.release.serving`, which checks again and serves.
"""

import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import NoReturn

from gram_platform.config import RunConfig, run_from_plain
from gram_platform.config.identity import invalid, require_int
from gram_platform.engine.local_cluster.head import free_port
from gram_platform.release.serving.engine import EngineLimits
from gram_platform.release.serving.model_server import ModelSource, require_servable
from gram_platform.release.serving.policy import PolicyFile, parse_policy, policy_text
from gram_platform.release.serving.text import Vocabulary
from gram_platform.store import Store
from gram_platform.store.root import open_corpus

OBJECT_STORE_BYTES = 128 * 2**20  # tokens pass through it, and no weights
LOOPBACK = "127.0.0.1"
POLICY_LOOK_S = 2.0  # between two looks at the policy's file
SLOW_CALLER_S = 30.0  # beside a request's own deadline, for sending it and taking the answer; then it ends with 408


@dataclass(frozen=True)
class Listening:
    """Where HTTP is answered, and by how many models; port 0 takes a free one."""

    host: str = LOOPBACK
    port: int = 8000
    num_replicas: int = 1
    ray_address: str = ""

    def __post_init__(self) -> None:
        require_int("port", self.port, 0, 65_535)
        require_int("replicas", self.num_replicas, 1)


@dataclass(frozen=True)
class Service:
    """All that `gram serve` is told."""

    storage: str
    run_id: str
    policy: str
    listening: Listening
    limits: EngineLimits
    precision: str = "float32"
    device: str = "cpu"
    num_threads: int = 1

    @classmethod
    def from_json(cls, text: str) -> "Service":
        fields = json.loads(text)
        parts = {"listening": Listening(**fields["listening"]), "limits": EngineLimits(**fields["limits"])}
        return cls(**{**fields, **parts})

    def run(self) -> NoReturn:
        """Check, and become the process that serves. ValueError as `prepare` and `require_free`."""
        prepare(self)
        require_free(self.listening)
        module = [sys.executable, "-m", "gram_platform.release.serving", json.dumps(asdict(self))]
        sys.stdout.flush()
        os.execve(sys.executable, module, with_own_token(self.listening.ray_address))


@dataclass(frozen=True)
class Prepared:
    """A run that can be served: everything the deployments are made from."""

    run: RunConfig
    source: ModelSource
    tokenizer_json: str
    policy_text: str

    def lines(self) -> list[str]:
        """What is served to whom, for the terminal."""
        policy, granted = self.source.policy, self.source.policy.granted_modules
        absent = [module for module in self.run.model.module_domains if module not in granted]
        lines = [f"run {self.run.run_id}: core{''.join(f', {m}' for m in granted)} in memory"]
        lines += [f"not in memory, since nobody is granted them: {', '.join(absent)}"] if absent else []
        return lines + [f"{rule.name:20} {', '.join(rule.profiles)}" for rule in policy.tokens]


def prepare(service: Service) -> Prepared:
    """ValueError when the run is not complete or cannot be served, or the policy does not fit it; loads no weights."""
    store, run_id, policy_path = Store(service.storage), service.run_id, service.policy
    text = policy_text(policy_path)
    policy = parse_policy(text)
    if not policy.tokens:
        raise invalid("policy", policy_path, "one with at least one token: `gram token NAME --policy FILE` adds one")
    directory = store.run(run_id)
    if directory.result() is None:
        raise invalid("run_id", run_id, f"a complete run of {store.root}, this one is {directory.status()}")
    run = run_from_plain(directory.config())
    require_servable(run, policy)
    tokenizer_json = open_corpus(store, run.data.data_id).tokenizer_path.read_text(encoding="utf-8")
    words = Vocabulary.of(tokenizer_json, run.model.seq_len)
    vocab_size = min(words.num_tokens, run.model.vocab_size)
    how = (service.limits, service.precision, service.device, service.num_threads)
    source = ModelSource(store.root, run_id, policy, vocab_size, words.end_of_text, *how)
    return Prepared(run, source, tokenizer_json, text)


class Interruption:
    """SIGINT and SIGTERM: a KeyboardInterrupt, the one exception that waiting inside Ray lets through; none at the end.

    A second signal must not cut the ending short: on a given Ray, what is left would stay.
    """

    is_ending = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, *_) -> None:
        if not self.is_ending:
            raise KeyboardInterrupt


def serve_until_stopped(service: Service, say: Callable[[str], None]) -> None:
    """Returns after SIGINT or SIGTERM, ready or not, with everything that it started ended.

    ValueError as `prepare` and `require_gpu`; RuntimeError when it does not start.
    """
    prepared, listening, interruption = prepare(service), service.listening, Interruption()
    import ray

    with ExitStack() as ending:
        ending.callback(ray.shutdown)
        interruption.listen()
        try:
            join_ray(listening.ray_address, listening.num_replicas * service.num_threads)
            interruption.listen()  # Ray has put handlers of its own in their place
            require_gpu(service.device)
            from ray import serve

            ending.callback(serve.shutdown)
            follow_policy(service.policy, prepared, start(service, prepared, say), say)
        except (KeyboardInterrupt, SystemExit):  # the latter is Ray's answer to SIGTERM while it starts
            interruption.is_ending = True
            say("stopping")
        finally:
            interruption.is_ending = True


def start(service: Service, prepared: Prepared, say: Callable[[str], None]) -> Callable[[str], None]:
    """Waits until the models answer; returns what gives them another policy, without waiting for any of them."""
    from ray import serve

    from gram_platform.release.serving.app import APP, application

    listening, context = service.listening, prepared.run.model.seq_len
    port, within_s = listening.port or free_port(), service.limits.deadline_s + SLOW_CALLER_S

    def with_policy(policy: str) -> serve.Application:
        return application(prepared.source, prepared.tokenizer_json, context, listening.num_replicas, policy)

    def change(policy: str) -> None:
        # a replica that is being replaced, or has no place, must not keep the others from a token's end
        target = serve.RunTarget(with_policy(policy), name=APP, route_prefix="/")
        serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)

    http = {"host": listening.host, "port": port, "request_timeout_s": within_s}
    serve.start(proxy_location="HeadOnly", http_options=http)
    serve.run(with_policy(prepared.policy_text), name=APP, route_prefix="/")
    for line in prepared.lines():
        say(line)
    say(f"ready: http://{listening.host}:{port}")
    return change


def follow_policy(path: str, prepared: Prepared, change: Callable[[str], None], say: Callable[[str], None]) -> NoReturn:
    """Calls `change` with the policy whenever its file changes. One that cannot be taken is said, and left.

    Modules are loaded at the start alone: a policy that grants others has to wait for a new one.
    """
    file = PolicyFile(path, prepared.policy_text)
    while True:
        time.sleep(POLICY_LOOK_S)
        try:
            text = file.changed()
            if text is None:
                continue
            policy = parse_policy(text)
            policy.require_loaded(prepared.source.policy.granted_modules)
        except ValueError as error:
            say(f"the policy stays as it was: {error}")
            continue
        change(text)
        say(f"the policy has changed: {len(policy.tokens)} tokens")


def require_gpu(device: str) -> None:
    """ValueError for "cuda" on a Ray that was joined and has no GPU: its models would wait for a place without end."""
    import ray

    if device == "cuda" and not ray.cluster_resources().get("GPU"):
        raise invalid("device", device, "cpu: this Ray has no GPU")


def require_free(listening: Listening) -> None:
    """ValueError when HTTP cannot be answered there: Ray Serve would only say that its proxy is not healthy."""
    with socket.socket(socket.AF_INET6 if ":" in listening.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listening.host, listening.port))
        except OSError as error:
            allowed = f"one that can be listened on at {listening.host} ({error.strerror})"
            raise invalid("port", listening.port, allowed) from None


def with_own_token(address: str) -> dict[str, str]:
    """The environment for `join_ray`: Ray reads it when it is imported, so it has to be a process's first one."""
    if address or os.environ.get("RAY_ADDRESS"):
        return dict(os.environ)
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    return theirs | own


def join_ray(address: str, num_cpus: int) -> None:
    """Join the Ray at `address` or $RAY_ADDRESS; without either start one of `num_cpus` that nobody else can use.

    Its ports are open, as those of any Ray, to whoever has its token (`with_own_token`); it has no dashboard.
    """
    import ray

    given = address or os.environ.get("RAY_ADDRESS", "")
    quiet = {"log_to_driver": True, "logging_level": logging.WARNING}
    if given:
        ray.init(address=given, **quiet)
        return
    assert os.environ.get("RAY_AUTH_TOKEN"), "a Ray of its own needs a token of its own"
    own = {"num_cpus": num_cpus, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    ray.init(address="local", **own, **quiet)
