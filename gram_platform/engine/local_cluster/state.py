"""Which local cluster there is: its state file, its processes, and their end.

Every process that descends from a cluster carries the cluster's random mark in its environment, so that exactly these
are ended, whatever their process ids and groups. They are killed, not asked: a study survives that by design.
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
    """What is written to the state file: enough to stop a cluster whose starter was killed."""

    mark: str
    owner_pid: int
    owner_created: float  # Unix seconds; with the pid it names one process: pids are reused
    folder: str  # the token, Ray's temporary files; only we may enter it
    address: str  # of the dashboard, which takes jobs

    @property
    def token_file(self) -> Path:
        return Path(self.folder) / "token"

    @property
    def ray_folder(self) -> Path:
        return Path(self.folder) / "ray"  # Ray opens this one to everybody

    @property
    def head_log(self) -> Path:
        return Path(self.folder) / "head.log"

    def owner_is_alive(self) -> bool:
        """Whether the process that started this still runs; its creation time moves a little when clocks are set."""
        with contextlib.suppress(psutil.NoSuchProcess):
            owner = psutil.Process(self.owner_pid)
            return abs(owner.create_time() - self.owner_created) < 5 and owner.status() != psutil.STATUS_ZOMBIE
        return False


# --------------------------------------------------------------------------------------- storage and state file


def default_storage() -> str:
    """`$GRAM_STORAGE`, else `~/.gram`; absolute, unless it is the URL of an object store.

    ValueError for the home of a user that does not exist.
    """
    storage = os.environ.get("GRAM_STORAGE") or "~/.gram"
    try:
        return storage if "://" in storage else str(Path(storage).expanduser().resolve())
    except RuntimeError as error:
        raise invalid("storage", storage, f"a path or a URL: {error}") from error


def local_folder() -> Path:
    """The storage if it is on this machine, else `~/.gram`: where the state file and a failed cluster's logs go."""
    storage = default_storage()
    return Path("~/.gram").expanduser() if "://" in storage else Path(storage)


def state_file() -> Path:
    return local_folder() / "local_cluster.json"


def read_state() -> Cluster | None:
    """The cluster that is written down; ValueError for a storage that is no folder, or that we may not read."""
    try:
        return Cluster(**json.loads(state_file().read_text()))
    except FileNotFoundError:
        return None
    except (NotADirectoryError, PermissionError) as error:
        raise invalid("storage", default_storage(), f"a folder that we may read ({error})") from error
    except (ValueError, TypeError):  # half written by a machine that died: nothing of it can still run
        state_file().unlink(missing_ok=True)
        return None


def write_state(cluster: Cluster) -> None:
    state_file().parent.mkdir(parents=True, exist_ok=True)
    with whole_file(state_file()) as temporary:
        Path(temporary).write_text(json.dumps(asdict(cluster), indent=1))


# ------------------------------------------------------------------------------------------ processes and ports


def processes_of(cluster: Cluster) -> list[psutil.Process]:
    """Every process that carries the cluster's mark, and their descendants; never this one."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == cluster.mark:
                found |= {process, *process.children(recursive=True)}
    return [p for p in found if p.pid != os.getpid()]


def kill_processes(cluster: Cluster) -> int:
    """Kills all that `processes_of` finds until it finds nothing; returns how many there were."""
    num_processes = 0
    while processes := processes_of(cluster):  # again, since a dying raylet may still start a worker
        num_processes += len(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=5)
    return num_processes


def stop(cluster: Cluster) -> int:
    """Kills the cluster's processes, removes its folder and the state file; returns how many processes there were."""
    num_processes = kill_processes(cluster)
    shutil.rmtree(cluster.folder, ignore_errors=True)
    state_file().unlink(missing_ok=True)
    return num_processes
