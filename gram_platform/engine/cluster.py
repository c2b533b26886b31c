"""Connects a command to a Ray cluster or starts one, and detects when Ray dies.

Probes an address with a time limit first, because `ray.init` retries for 15 minutes.
"""

import atexit
import contextlib
import logging
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import ray

from gram_platform.config.endings import FAILED, SUBMIT_AGAIN, Stopped
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.engine.machine import OwnFolder, num_cpus, safe_path
from gram_platform.engine.ray_private import address_of, address_record, own_job, refusal

ADDRESS = "RAY_ADDRESS"
FOLDER, TEMPORARY = "RAY_TMPDIR", Path("/tmp")
TOKEN_LOGGER = "ray._private.authentication.authentication_token_setup"
PROBE_S = 5.0
JOIN_S, START_S, LEAVE_S = 90.0, 300.0, 45.0
# Ray's setting, and its default, for the seconds from the head's death until a driver exits
# without a message.
RECONNECT, RECONNECT_S = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0
LOOK_FOR_RAY_S = 0.5
HOST_PORT = re.compile(r"(\[[\da-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}")
# The longest path of Ray's folder, because the path of a socket has at most 107 bytes.
MAX_FOLDER_BYTES = 107 - len(
    f"/ray-12345678/r/session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
)
SESSION = re.compile(r"/session_[\d_-]+")
CURE = (
    f"`ray stop` clears what a dead Ray has left, without {ADDRESS} a Ray is started here, and with"
    " --in-process studies need none"
)
_own_folders: list[OwnFolder] = []
_LEAVING, _LEFT = threading.Event(), threading.Event()
CLUSTER_LOST = f"Ray's process on this machine died. {SUBMIT_AGAIN}"


class ClusterLost(Stopped):
    """Ray died, did not start or has no usable machine. A new submission continues the work."""


def connect(is_verbose: bool = False, may_start: bool = True) -> bool:
    """Connects to the cluster at $RAY_ADDRESS or, if unset, to a cluster on this machine.

    If this machine has no cluster, starts one. With `may_start=False`, returns False instead. A
    cluster that `ray start` started here is skipped if the cluster does not respond or belongs to
    another user. With `is_verbose`, the workers' output is printed. Raises ValueError for an
    unusable $RAY_ADDRESS, and ClusterLost if `ray.init` fails.
    """
    if ray.is_initialized():
        require_ray()
        return True
    # Silences a warning of Ray about tasks without a GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet = {"log_to_driver": is_verbose, "logging_level": logging.WARNING}
    given = os.environ.get(ADDRESS, "")
    if given and given != "local":
        join(given, **quiet)
    elif address := "" if given else _find_address():
        _join(address, None, **quiet)
    elif may_start:
        start(num_cpus=num_cpus(), **quiet)
    return ray.is_initialized()


def join(given: str, **options: object) -> None:
    """Joins the cluster at `given` (HOST:PORT or auto). Raises ValueError if that is unusable."""
    if given != "auto" and not HOST_PORT.fullmatch(given):
        expected = "HOST:PORT of a Ray with a part on this machine"
        others = "`ray job submit --address` takes the others"
        raise invalid(ADDRESS, given, f"{expected} ({others})")
    try:
        address = address_of(given)
        refused = refusal(address, _token(is_named=True), PROBE_S)
    except (ValueError, OSError) as error:
        # `auto` raises ConnectionError if no Ray is running.
        refused = str(error)
    if refused:
        raise invalid(ADDRESS, given, f"a Ray that can be joined ({refused}); {CURE}")
    _join(address, given, **options)


def _join(address: str, given: str | None, **options: object) -> None:
    failure = f"no driver can join the Ray at {address}"
    with _time_limit(JOIN_S, failure):
        _initialise(failure, address=given, **options)
    say(f"joined the Ray at {address}: {_size()}", sys.stderr)


def start(**options: object) -> None:
    """Starts a local Ray cluster, which stops when this process exits.

    `options` are passed to `ray.init`. Ray gets a new folder. If the user has set no token, Ray
    gets a random one. If Ray does not start, keeps the logs and raises ClusterLost.
    """
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Ray would warn that a token is needed.
        logging.getLogger(TOKEN_LOGGER).setLevel(logging.ERROR)
    folder = OwnFolder(_folder())
    failure = f"Ray does not start on this machine (its logs: {folder.path}/session_latest/logs)"
    # $TORCHINDUCTOR_CACHE_DIR can be a folder for compiled code that outlives this Ray.
    variables = {"TMPDIR": str(folder.path.parent), **safe_path()}
    try:
        with _time_limit(START_S, failure, folder.keep), _environment(variables):
            _initialise(failure, address="local", _temp_dir=str(folder.path), **options)
    except ClusterLost:
        folder.keep()
        raise
    _own_folders.append(folder)
    say(f"started a Ray on this machine: {_size()}", sys.stderr)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def _initialise(failure: str, **options: object) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(job_config=own_job(), **options)
    except Exception as error:
        ray.shutdown()
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "are memory, the disk of this folder and /dev/shm full?"
        advice += " With --in-process studies need no Ray"
        raise ClusterLost(f"{failure}: {reason}; {advice}") from error
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    _LEAVING.clear()
    _LEFT.clear()
    # Finds Ray's processes for `_watch_ray`.
    require_ray()
    threading.Thread(target=_watch_ray, daemon=True).start()
    atexit.register(leave)


def leave() -> None:
    """Disconnects from Ray, and stops the cluster if this command started it."""
    _LEAVING.set()
    ray.shutdown()
    while _own_folders:
        _own_folders.pop().remove()
    _LEFT.set()


def _watch_ray() -> None:
    """Exits the process with a message if Ray dies or if disconnecting takes too long.

    Runs in a thread that starts early, because Python cannot start a thread while exiting.
    """
    patience_s = 0.8 * float(os.environ.get(RECONNECT, RECONNECT_S))
    last_alive = time.monotonic()
    while not _LEAVING.wait(LOOK_FOR_RAY_S):
        is_dead = False
        # An error may only mean that the command is disconnecting.
        with contextlib.suppress(Exception):
            is_dead = not _is_ray_alive()
        if not is_dead:
            last_alive = time.monotonic()
        elif time.monotonic() - last_alive > patience_s:
            say(f"error: {CLUSTER_LOST}", sys.stderr)
            os._exit(FAILED)
    if not _LEFT.wait(LEAVE_S):
        _give_up(LEAVE_S, "what is done is kept, but Ray does not let this command end")


def _size() -> str:
    total = ray.cluster_resources()
    return f"{total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs"


@contextlib.contextmanager
def _time_limit(
    seconds: float, failure: str, before: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Context manager that exits the process if its block takes longer than `seconds`.

    Calls the function `before` before exiting. A limit is needed because a call to Ray can block
    forever, and Python does not handle Ctrl-C or other signals meanwhile.
    """

    def end() -> None:
        before()
        _give_up(seconds, failure)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float, failure: str) -> None:
    say(f"error: {failure} within {seconds:.0f} s; {CURE}", sys.stderr)
    os._exit(FAILED)


def _find_address() -> str:
    """Returns the address of the cluster that `ray start` started here, or "" if there is none.

    If this user cannot connect to the cluster, prints the reason and returns "".
    """
    record = address_record()
    if not record.is_file():
        return ""
    address = ""
    try:
        address = address_of(None)
        is_ours = record.stat().st_uid in (0, os.getuid())
        refused = refusal(address, _token(is_named=False), PROBE_S) if is_ours else "another user's"
    except (ValueError, OSError) as error:
        refused = str(error)
    if refused:
        say(f"passed over the Ray {address} that {record} names: {refused}", sys.stderr)
    return "" if refused else address


def _token(is_named: bool) -> str:
    """Returns the token that `ray.init` would send to a cluster, or "" if it would send none.

    `is_named` means that the user has set the cluster's address. In that case, `ray.init` sends a
    token only if $RAY_AUTH_MODE is `token`.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "disabled" if is_named else "token")
    if mode.lower() != "token":
        return ""
    if token := os.environ.get("RAY_AUTH_TOKEN", ""):
        return token.strip()
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    with contextlib.suppress(OSError, RuntimeError, UnicodeDecodeError):
        return Path(path).expanduser().read_text().strip()
    return ""


def _folder() -> Path:
    """Chooses the folder in which to create Ray's folder: $RAY_TMPDIR, else $TMPDIR, else /tmp.

    It must be writable, and its path short enough for Ray's sockets. If $TMPDIR is unsuitable, uses
    /tmp. Raises ValueError if $RAY_TMPDIR or /tmp is unsuitable.
    """
    if named := os.environ.get(FOLDER, ""):
        return _require_writable(Path(named))
    with contextlib.suppress(ValueError):
        return _require_writable(Path(os.environ.get("TMPDIR") or TEMPORARY))
    return _require_writable(TEMPORARY)


def _require_writable(folder: Path) -> Path:
    room = f"{MAX_FOLDER_BYTES} bytes (Ray has sockets there)"
    expected = f"a folder that can be written, whose path has at most {room}"
    if len(os.fsencode(folder.absolute())) > MAX_FOLDER_BYTES:
        raise invalid(FOLDER, str(folder), expected)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.absolute()
    except OSError as error:
        raise invalid(FOLDER, str(folder), f"{expected}: {error.strerror}") from error


# Ray's processes on this machine by Ray's node id; empty if they are not visible.
_processes: dict[str, list[psutil.Process]] = {}


def require_ray() -> None:
    """Raises ClusterLost if a Ray process on this machine has died. Drivers call this often.

    Ray itself detects a lost machine only after 15 s, and may then end the driver without a
    message. A head process on another machine is checked only by Ray.
    """
    if not _is_ray_alive():
        raise ClusterLost(CLUSTER_LOST)


def _is_ray_alive() -> bool:
    if not ray.is_initialized():
        return True
    node_id = ray.get_runtime_context().get_node_id()
    if node_id not in _processes:
        _processes[node_id] = _processes_of(node_id)
    return all(map(_is_alive, _processes[node_id]))


def _processes_of(node_id: str) -> list[psutil.Process]:
    commands: dict[str, list] = {"raylet": [], "gcs_server": []}
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] in commands:
            words = " ".join(process.info["cmdline"] or ())
            commands[process.info["name"]].append((process, words))
    raylets = [(process, words) for process, words in commands["raylet"] if node_id in words]
    sessions = {session[0] for _, words in raylets if (session := SESSION.search(words))}
    heads = [head for head in commands["gcs_server"] if any(s in head[1] for s in sessions)]
    return [process for process, _ in raylets + heads]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    # The state is unknown.
    except (OSError, psutil.AccessDenied):
        return True
