"""Records the local cluster in a state file, finds its processes, and ends them.

Every process of a cluster inherits the cluster's random mark in its environment, so exactly these are ended, whatever
their process ids and groups. They are killed without warning; a study survives that by design.
"""

import contextlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from gram_platform.config.crash_safe import whole_file
from gram_platform.config.identity import invalid

MARK = "GRAM_LOCAL_CLUSTER"  # the environment variable that every process of a cluster inherits


@dataclass(frozen=True)
class Cluster:
    """Holds the state file's fields: enough to stop a cluster whose starter was killed."""

    mark: str
    owner_pid: int
    owner_created: float  # Unix seconds; pid and time identify a process, because pids are reused
    folder: str  # the token and Ray's temporary files; accessible to this user only
    address: str  # of the dashboard, which accepts jobs

    @property
    def token_file(self) -> Path:
        return Path(self.folder) / "token"

    @property
    def ray_folder(self) -> Path:
        return Path(self.folder) / "ray"  # Ray makes it accessible to everybody

    @property
    def head_log(self) -> Path:
        return Path(self.folder) / "head.log"

    def owner_is_alive(self) -> bool:
        """Tells whether the starter still runs; its creation time may shift slightly when clocks are set."""
        with contextlib.suppress(psutil.NoSuchProcess):
            owner = psutil.Process(self.owner_pid)
            return abs(owner.create_time() - self.owner_created) < 5 and owner.status() != psutil.STATUS_ZOMBIE
        return False


# --------------------------------------------------------------------------------------- storage and state file


def default_storage() -> str:
    """Returns `$GRAM_STORAGE`, else `~/.gram`, as an absolute path or an object store's URL.

    ValueError for the home of an unknown user.
    """
    storage = os.environ.get("GRAM_STORAGE") or "~/.gram"
    try:
        return storage if "://" in storage else str(Path(storage).expanduser().resolve())
    except RuntimeError as error:
        raise invalid("storage", storage, f"a path or a URL: {error}") from error


def local_folder() -> Path:
    """Returns the folder of the state file and a failed cluster's logs: the storage if local, else `~/.gram`."""
    storage = default_storage()
    return Path("~/.gram").expanduser() if "://" in storage else Path(storage)


def state_file() -> Path:
    return local_folder() / "local_cluster.json"


def read_state() -> Cluster | None:
    """Returns the recorded cluster; ValueError if the storage is not a readable folder."""
    try:
        return Cluster(**json.loads(state_file().read_text()))
    except FileNotFoundError:
        return None
    except (NotADirectoryError, PermissionError) as error:
        raise invalid("storage", default_storage(), f"a readable folder ({error})") from error
    except (ValueError, TypeError):  # half written when the machine died, so nothing runs any more
        state_file().unlink(missing_ok=True)
        return None


def write_state(cluster: Cluster) -> None:
    state_file().parent.mkdir(parents=True, exist_ok=True)
    with whole_file(state_file()) as temporary:
        Path(temporary).write_text(json.dumps(asdict(cluster), indent=1))


# ----------------------------------------------------------------------------------------------------- processes


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    """Finds every process with the cluster's mark, and their descendants, except this one."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == cluster.mark:
                found |= {process, *process.children(recursive=True)}
    return [p for p in found if p.pid != os.getpid()]


def kill_processes(cluster: Cluster) -> int:
    """Kills `processes_of` until none is left; returns their number."""
    num_processes = 0
    while processes := processes_of(cluster):  # repeats, because a dying raylet may still start a worker
        num_processes += len(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=5)
    return num_processes


def stop(cluster: Cluster) -> int:
    """Kills the cluster's processes, removes its folder and the state file; returns the number of processes."""
    num_processes = kill_processes(cluster)
    shutil.rmtree(cluster.folder, ignore_errors=True)
    state_file().unlink(missing_ok=True)
    return num_processes
