"""Runs `gram serve` until it is interrupted."""

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from gram_platform.config import RunConfig, run_from_plain
from gram_platform.config.endings import Stopped
from gram_platform.config.identity import invalid, require_int
from gram_platform.config.terminal import one_line
from gram_platform.release.serving.engine import EngineLimits
from gram_platform.release.serving.model_server import ModelSource, require_servable
from gram_platform.release.serving.policy import LEASE_S, Policy, update_policy
from gram_platform.release.serving.policy_file import load_policy, policy_text
from gram_platform.release.serving.text import Vocabulary
from gram_platform.store import Store
from gram_platform.store.data import open_corpus

# The object store of a private Ray cluster, which holds tokens but no weights.
SERVING_STORE_BYTES = 128 * 2**20
HEAD = "node:__internal_head__"
POLICY_CHECK_S = 2.0
Confirm = Callable[[Policy, int, float], None]
# Extra seconds after a request's deadline for slow readers.
SLOW_CALLER_S = 30.0
LOOPBACKS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Service:
    """The arguments of `gram serve`. Port 0 means any free port."""

    storage: str
    run_id: str
    policy: str
    host: str
    port: int
    limits: EngineLimits
    num_replicas: int = 1
    ray_address: str = ""
    precision: str = "float32"
    device: str = "cpu"
    num_threads: int = 1
    # The most open requests per token, if the policy sets no limit.
    max_requests: int = 64

    def __post_init__(self) -> None:
        require_int("port", self.port, 0, 65_535)
        require_int("replicas", self.num_replicas, 1)
        require_int("max_requests", self.max_requests, 1)

    def find_port(self) -> int:
        """Returns `port`, or a free port if it is 0. Raises ValueError if the port is in use."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise invalid(
                    "port", self.port, f"a free port of {self.host} ({error.strerror})"
                ) from None
            return probe.getsockname()[1]


@dataclass(frozen=True)
class PreparedService:
    """A run that can be served, with its model source and tokenizer."""

    run: RunConfig
    source: ModelSource
    tokenizer_json: str

    def lines(self) -> list[str]:
        """Returns status lines about the loaded modules and each token's profiles."""
        policy = self.source.policy
        granted = policy.modules_of_tokens
        absent = [module for module in self.run.model.module_domains if module not in granted]
        lines = [f"run {self.run.run_id}: {', '.join(('core', *granted))} in memory"]
        if absent:
            lines.append(f"not in memory, because no token is granted them: {', '.join(absent)}")
        return lines + [f"{rule.name:20} {', '.join(rule.profiles)}" for rule in policy.tokens]


def prepare(service: Service) -> PreparedService:
    """Validates a service without loading weights.

    Raises ValueError if the run cannot be served, or lacks a module that the policy names.
    """
    store, policy = Store(service.storage), load_granting(service.policy)
    run_id = store.find_run(service.run_id)
    directory = store.run(run_id)
    directory.require_result()
    run = directory.config_as(run_from_plain)
    require_servable(run, policy)
    tokenizer_json = open_corpus(store, run.data.data_id).tokenizer_path.read_text(encoding="utf-8")
    vocabulary = Vocabulary.of(tokenizer_json, run.model.seq_len)
    source = ModelSource(
        storage=store.root,
        run_id=run_id,
        policy=policy,
        vocab_size=min(vocabulary.num_tokens, run.model.vocab_size),
        end_of_text=vocabulary.end_of_text,
        limits=service.limits,
        precision=service.precision,
        device=service.device,
        num_threads=service.num_threads,
    )
    return PreparedService(run, source, tokenizer_json)


def listen(handler: Callable[..., None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def interrupt(*_) -> None:
    """Raises KeyboardInterrupt to end the command.

    Ignores further signals, which could stop the clean-up and leave processes in Ray.
    """
    listen(ignore)
    raise KeyboardInterrupt


def ignore(*_) -> None:
    pass


def serve_until_stopped(service: Service, say: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM. Then stops the application, and Ray if it is private.

    Call before importing Ray. Raises ValueError if an argument is invalid, and Stopped
    if Ray or Ray Serve fails.
    """
    prepared = prepare(service)
    service.find_port()
    if not choose_ray(service.ray_address):
        make_environment_private()

    from gram_platform.engine.cluster import ClusterLost, leave, require_ray
    from gram_platform.release.serving.deployments import CALL_ERRORS

    with ExitStack() as ending:
        ending.callback(leave)
        listen(interrupt)
        try:
            is_private = join_ray(service.ray_address, service.num_replicas * service.num_threads)
            # Set again, because ray.init has replaced the signal handlers.
            listen(interrupt)
            require_gpu(service.device)
            require_own_serve()
            name = f"gram-{service.run_id}-{secrets.token_hex(4)}"
            ending.callback(end_application, name, is_private)
            is_over = threading.Event()
            ending.callback(is_over.set)
            arguments = (service.policy, prepared.source.policy, new_keeper(name), say, is_over)
            threading.Thread(target=follow_policy, args=arguments, daemon=True).start()
            port = start(service, prepared, name)
            for line in prepared.lines():
                say(line)
            if service.host not in LOOPBACKS:
                risk = "and nothing here ends slow requests."
                say(f"warning: other machines may reach {service.host}, {risk}")
                say("Let only a reverse proxy reach it, such as HAProxy with cluster/haproxy.cfg")
            say(f"ready: http://{service.host}:{port}")
            while True:
                require_ray()
                time.sleep(POLICY_CHECK_S)
        # Ray raises SystemExit for SIGTERM while it starts.
        except (KeyboardInterrupt, SystemExit):
            listen(ignore)
            say("stopping")
        except ClusterLost as error:
            raise Stopped(
                "Ray has died, and all models with it: start `gram serve` again"
            ) from error
        except (*CALL_ERRORS, RuntimeError) as error:
            reason = one_line(error) or type(error).__name__
            raise Stopped(
                f"Ray Serve has died or does not start ({reason}): start `gram serve` again, where"
                " processors and memory are free"
            ) from error
        finally:
            listen(ignore)


def start(service: Service, prepared: PreparedService, name: str) -> int:
    """Deploys an application, waits until its models are ready, and returns its port.

    The application and its `PolicyKeeper` are both called `name`.
    """
    from ray import serve

    from gram_platform.release.serving.deployments import application

    port = service.find_port()
    serve.start(
        proxy_location="HeadOnly",
        http_options={
            "host": service.host,
            "port": port,
            "request_timeout_s": service.limits.deadline_s + SLOW_CALLER_S,
        },
    )
    app = application(
        prepared.source,
        prepared.tokenizer_json,
        prepared.run.model.seq_len,
        service.max_requests,
        service.num_replicas,
        name,
    )
    serve.run(app, name=name, route_prefix="/")
    return port


def new_keeper(name: str) -> Confirm:
    """Starts a `PolicyKeeper` on this machine. Returns a function that calls `keeper.confirm`."""
    import ray

    from gram_platform.release.serving.deployments import NAMESPACE, PolicyKeeper

    keeper = PolicyKeeper.options(name=name, namespace=NAMESPACE, resources={HEAD: 0.001}).remote()
    return lambda *arguments: ray.get(keeper.confirm.remote(*arguments), timeout=LEASE_S)


def load_granting(path: str) -> Policy:
    """Reads a policy. Raises ValueError if it is invalid or has no tokens."""
    policy = load_policy(path)
    if not policy.tokens:
        raise invalid(
            "policy",
            path,
            "a policy with at least one token: `gram token NAME --policy FILE` adds one",
        )
    return policy


def follow_policy(
    path: str,
    policy: Policy,
    confirm: Confirm,
    say: Callable[[str], None],
    is_over: threading.Event,
) -> None:
    """Reads the policy file every `POLICY_CHECK_S` seconds and passes the policy to `confirm`.

    Reports each change and error once. A policy's age counts from just before the file is read. If
    the read or `confirm` fails, no policy is confirmed, and replicas reject all requests when the
    last confirmed policy is more than `LEASE_S` seconds old.
    """
    reported, loaded = (), policy.modules_of_tokens
    while not is_over.is_set():
        before, errors, read_at = policy, (), time.monotonic()
        try:
            policy, errors = update_policy(policy_text(path), before, loaded)
            confirm(policy, len(errors), read_at)
        except Exception as why:
            effect = f"without a confirmed policy everybody is refused after {LEASE_S:.0f} s"
            errors = (f"{why}; {effect}",)
        if is_over.is_set():
            return
        if policy != before:
            say(f"the policy has changed: {len(policy.tokens)} tokens")
        for error in errors:
            if error not in reported:
                say(f"the policy has an error: {error}")
        reported = errors
        is_over.wait(POLICY_CHECK_S)


def require_own_serve() -> None:
    """Raises ValueError if Ray Serve is already running or this machine is not Ray's head node."""
    import ray
    from ray import serve

    (head,) = [node["NodeID"] for node in ray.nodes() if HEAD in node["Resources"]]
    if head != ray.get_runtime_context().get_node_id():
        raise invalid("ray_address", head, "a Ray whose head is this machine")
    status = serve.status()
    if status.applications or status.proxies:
        raise invalid(
            "ray_address",
            ", ".join(sorted(status.applications)) or "no application",
            "a Ray without Ray Serve; `serve shutdown` there ends one that is left over",
        )


def end_application(name: str, is_private: bool) -> None:
    """Deletes this command's application, then stops Ray Serve if no application is left.

    In a private cluster, leaves Ray Serve running until Ray ends. Stopping Ray Serve earlier would
    log a message about endless retries.
    """
    from ray import serve

    from gram_platform.engine.cluster import require_ray
    from gram_platform.release.serving.deployments import CALL_ERRORS

    try:
        require_ray()
        if name in serve.status().applications:
            serve.delete(name)
        if not (is_private or serve.status().applications):
            serve.shutdown()
    except (*CALL_ERRORS, RuntimeError):
        # Further calls would wait for a dead cluster.
        return


def require_gpu(device: str) -> None:
    """Raises ValueError if `device` is "cuda" and Ray has no GPU.

    Without this check, models would wait for a GPU forever.
    """
    import ray

    if device == "cuda" and not ray.cluster_resources().get("GPU"):
        raise invalid("device", device, "cpu: this Ray has no GPU")


def make_environment_private() -> None:
    """Sets a private Ray cluster's environment variables. Call before importing Ray."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Single-machine mode (on Linux too): most ports listen only on the loopback.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def choose_ray(address: str) -> str:
    """Returns the address of the Ray cluster to join, or "" to start a private cluster.

    If `address` is "", uses `$RAY_ADDRESS`. The address `local` starts a private cluster.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address


def join_ray(address: str, num_cpus: int) -> bool:
    """Connects to the Ray cluster that `choose_ray(address)` names, or starts a private one.

    Returns True if the cluster is private.
    """
    from gram_platform.engine.cluster import join
    from gram_platform.engine.cluster import start as start_ray

    quiet = {"log_to_driver": True, "logging_level": logging.WARNING}
    if address := choose_ray(address):
        join(address, **quiet)
        return False
    assert os.environ.get("RAY_AUTH_TOKEN"), "a private Ray needs a token of its own"
    quiet |= {"object_store_memory": SERVING_STORE_BYTES, "include_dashboard": False}
    start_ray(num_cpus=num_cpus, **quiet)
    return True
