"""`gram serve` and `token`."""

from gram_platform.cli.flags import Positional, Storage, stored
from gram_platform.config.identity import invalid, local_path, require_choice, require_int
from gram_platform.config.view import PRECISIONS
from gram_platform.release.serving.policy import load_policy, new_token, parse_policy, token_entry, write_policy


def serve_command(
    run_id: Positional[str],
    policy: str = "policy.toml",
    storage: Storage = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int = 1,
    rows: int = 64,
    waiting: int = 512,
    deadline: float = 60.0,
    precision: str = "float32",
    device: str = "cpu",
    threads: int = 1,
    ray_address: str = "",
) -> None:
    """Serve a run over HTTP: a caller's token decides which of its modules answer. Ends with Ctrl-C.

    Args:
        run_id: a complete run, such as one of GRAM's
        policy: the file that maps tokens to profiles and profiles to modules
        storage: folder or URL of the storage
        host: interface to listen on; the default is this machine alone
        port: port to listen on; 0 takes a free one
        replicas: processes that each have the model
        rows: completions that one of them continues at once
        waiting: further ones that may wait; more are refused with status 429
        deadline: seconds after which a request is given up
        precision: float32 or bfloat16
        device: cpu or cuda
        threads: CPU threads of a replica
        ray_address: a Ray cluster to join; default $RAY_ADDRESS, else a private one on this machine
    """
    from gram_platform.release.serving.command import Listening, Service
    from gram_platform.release.serving.engine import EngineLimits

    require_choice("precision", precision, PRECISIONS)
    require_choice("device", device, ("cpu", "cuda"))
    require_int("threads", threads, 1)
    listening = Listening(host, port, replicas, ray_address)
    limits = EngineLimits(rows, waiting, deadline)
    place = str(local_path("policy", policy))
    Service(stored(storage).root, run_id, place, listening, limits, precision, device, threads).run()


def token_command(
    name: Positional[str],
    profiles: tuple[str, ...],
    policy: str = "policy.toml",
    default: str = "",
    metrics: bool = False,
) -> None:
    """Make a token, add its hash to a policy, and print it; nobody can print it again.

    Args:
        name: whose it is, for people and logs
        profiles: profiles of the policy that it may use
        policy: the file to add it to; it must have the profiles
        default: the profile of a request that names none; needed with several
        metrics: whether it may read /metrics
    """
    if not profiles:
        raise invalid("profiles", profiles, "at least one profile of the policy")
    load_policy(policy)
    token, path = new_token(), local_path("policy", policy)
    text = path.read_text(encoding="utf-8") + token_entry(name, token, profiles, default or profiles[0], metrics)
    if len(profiles) > 1 and not default:
        raise invalid("default", default, "one of " + ", ".join(profiles))
    parse_policy(text)
    write_policy(path, text)
    print(token)
