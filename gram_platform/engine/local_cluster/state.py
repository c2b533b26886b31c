"""Records the local cluster in a folder of this user and machine, finds its processes, and ends them.

The folder's place follows from the storage's name, and nothing in a storage is read: whoever can write the storage can
neither end a process nor remove a folder of this machine. Every process of a cluster inherits the cluster's random mark
in its environment, so exactly these are ended, whatever their process ids and groups. They are killed without warning;
a study survives that by design.
"""

import contextlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from gram_platform.config.identity import invalid, is_url, local_path, parse_json, short_hash

# The environment variable that every process of a cluster inherits.
MARK = "GRAM_LOCAL_CLUSTER"
# Short, because a socket's path has at most 107 bytes.
TEMPORARY = Path("/tmp")


@dataclass(frozen=True)
class Cluster:
    """Holds the state file's fields: enough to stop a cluster whose starter was killed."""

    mark: str
    owner_pid: int
    # Unix seconds. Pid and time identify a process, because pids are reused.
    owner_created: float
    # The address of the dashboard, which accepts jobs.
    address: str

    @property
    def folder(self) -> Path:
        # Has the token and Ray's temporary files; only this user can read it.
        return state_file().parent

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def ray_folder(self) -> Path:
        # Ray makes it accessible to everybody.
        return self.folder / "ray"

    @property
    def head_log(self) -> Path:
        return self.folder / "head.log"

    def owner_is_alive(self) -> bool:
        """Returns whether the starter still runs; its creation time may shift slightly when clocks are set."""
        with contextlib.suppress(psutil.NoSuchProcess):
            owner = psutil.Process(self.owner_pid)
            return abs(owner.create_time() - self.owner_created) < 5 and owner.status() != psutil.STATUS_ZOMBIE
        return False


# The shape of the state file.
HEAD_SHAPE = {"mark": str, "owner_pid": int, "owner_created": float, "address": str}

# --------------------------------------------------------------------------------------- storage and state file


def default_storage() -> str:
    """Returns `$GRAM_STORAGE`, else `~/.gram`, as an absolute path or an object store's URL.

    ValueError for the home of an unknown user.
    """
    storage = os.environ.get("GRAM_STORAGE") or "~/.gram"
    return storage if is_url(storage) else str(local_path("storage", storage).resolve())


def local_folder() -> Path:
    """Returns the folder of a failed cluster's logs and MLflow's database: the storage if local, else `~/.gram`."""
    storage = default_storage()
    return Path("~/.gram").expanduser() if is_url(storage) else Path(storage)


def private_folder() -> Path:
    """Returns this user's folder of clusters on this machine, made at first use; ValueError if others may change it."""
    folder = TEMPORARY / f"gram-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise invalid("folder", str(folder), "a folder that this user alone owns and may enter (mode 0700)")
    return folder


def state_file() -> Path:
    """Returns the state file of the storage's cluster on this machine."""
    return private_folder() / short_hash(default_storage()) / "cluster.json"


def read_state() -> Cluster | None:
    """Returns the recorded cluster; ValueError if the storage is a file."""
    if local_folder().is_file():
        raise invalid("storage", default_storage(), "a folder, found a file")
    try:
        plain = parse_json(state_file().read_text(), HEAD_SHAPE)
        return Cluster(**{name: plain[name] for name in HEAD_SHAPE})
    except FileNotFoundError:
        return None
    except ValueError:
        # The file is damaged: its cluster cannot be found any more.
        shutil.rmtree(state_file().parent, ignore_errors=True)
        return None


def write_state(cluster: Cluster) -> None:
    """Makes the cluster's folder, with the state file from its first moment; ValueError if there is one."""
    unnamed = Path(tempfile.mkdtemp(dir=private_folder()))
    (unnamed / state_file().name).write_text(json.dumps(asdict(cluster), indent=1))
    try:
        unnamed.rename(cluster.folder)
    except OSError as error:
        shutil.rmtree(unnamed)
        raise invalid("storage", default_storage(), "a storage that no other demo of this machine uses") from error


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
    # Repeats, because a dying raylet may still start a worker.
    while processes := processes_of(cluster):
        num_processes += len(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=5)
    return num_processes


def stop(cluster: Cluster) -> int:
    """Kills the cluster's processes, removes its folder with the state file; returns the number of processes."""
    num_processes = kill_processes(cluster)
    shutil.rmtree(cluster.folder, ignore_errors=True)
    return num_processes
