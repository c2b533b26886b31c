"""Makes the hosts of a box, and breaks them. The package's docstring shows how it is used."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster.box.switch import GATEWAY, NETWORK, PREFIX, Switch, ended, started

INIT = Path(__file__).with_name("init.py")
PROGRAMS = ("unshare", "nsenter", "ip", "mount", "pivot_root")
NAMESPACES = ("net", "mnt", "uts", "ipc", "pid")
UNSHARE = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
ENTER = [f"--{name}" for name in ("net", "mount", "uts", "ipc", "pid", "root")]
GONE_S = 20


def why_not() -> str:
    """Why this machine cannot have a box, in one sentence; empty if it can."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if sys.platform != "linux" or missing:
        return (
            f"a cluster in a box needs Linux with iproute2 and util-linux: no {', '.join(missing)}"
        )
    if os.geteuid():
        return "a cluster in a box needs root"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return (
        f"a cluster in a box needs new namespaces: {tried.stderr.strip()}"
        if tried.returncode
        else ""
    )


@dataclass(frozen=True)
class Machine:
    """What a host is made of: its name, folders of this machine that it sees read-only, and the
    size of its disk.
    """

    name: str
    sees: Sequence[Path] = ()
    disk_mb: int = 2048
    shm_mb: int = 256


class Host:
    """A machine that is up or down.

    Commands run as root in its namespaces, with this environment's programs.
    """

    def __init__(self, machine: Machine, number: int, names: str, switch: Switch) -> None:
        self.machine, self.number, self.names, self.switch = machine, number, names, switch
        self.name, self.address = machine.name, f"{NETWORK}.{number}"
        self.process: subprocess.Popen | None = None
        self.pid = 0
        self.namespaces: set[str] = set()  # of all its lives
        self.boot()

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def boot(self) -> None:
        """Starts a host that is down, with an empty disk."""
        assert self.process is None, f"{self.name} is up"
        image = sorted({str(path) for path in (*_environment(), *self.machine.sees)}, key=len)
        spec = {"name": self.name, "hosts": self.names, "image": image}
        spec |= {"disk_mb": self.machine.disk_mb, "shm_mb": self.machine.shm_mb}
        self.process, pid = started([*UNSHARE, sys.executable, "-I", str(INIT), json.dumps(spec)])
        self.pid = int(pid)
        self.namespaces |= {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}
        self.switch.plug(self.number, self.pid)
        self.run("ip", "addr", "add", f"{self.address}/{PREFIX}", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", GATEWAY)

    def power_off(self) -> None:
        """Ends the host as a power failure does: its peers hear nothing of it."""
        self.switch.unplug(self.number)
        self.shut_down()

    def shut_down(self) -> None:
        """Ends every process of the host, which closes its connections, and the host."""
        if self.process:
            ended(self.process)
        self.process = None

    def start(self, *command: str | Path, log: Path | None = None, **options) -> subprocess.Popen:
        """A process on the host; `log`: a file of this machine for its output.

        Options: `env`, `cwd`, as in `run`.
        """
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else subprocess.DEVNULL
            return self.popen(command, output, **options)

    def run(
        self, *command: str | Path, timeout_s: float = 60, check: bool = True, **options
    ) -> str:
        """The output of a command, errors among it.

        Options: `env` (added to the host's), `cwd` (on the host). Raises AssertionError with the
        output where the command fails and `check` is set, or when the time is over.
        """
        # No pipe: a daemon that the command leaves would keep it open.
        with tempfile.TemporaryFile() as output:
            process = self.popen(command, output, **options)
            try:
                code = process.wait(timeout_s)
            except BaseException:
                self.kill(process)
                raise
            finally:
                output.seek(0)
                text = output.read().decode(errors="replace")
        assert code == 0 or not check, f"{self.name}: {command} ended with {code}:\n{text[-6000:]}"
        return text

    def popen(
        self,
        command: Sequence,
        output: IO | int | None,
        env: dict[str, str] | None = None,
        cwd: str | Path = "/root",
    ) -> subprocess.Popen:
        """A process on the host whose output goes where `subprocess` sends it."""
        assert self.process, f"{self.name} is down"
        enter = ["nsenter", f"--target={self.pid}", *ENTER, "--", "env", f"--chdir={cwd}"]
        return subprocess.Popen(
            [*enter, *map(str, command)],
            env=_variables() | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self, process: subprocess.Popen, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a process that `start` made and to its session, and waits for its
        end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(GONE_S)

    def kill_processes(self) -> None:
        self._signal_all("KILL")

    def _signal_all(self, name: str) -> None:
        """`kill -1` leaves out the first process and the shell itself."""
        self.run("sh", "-c", f"kill -{name} -1 || true")

    def cut(self) -> None:
        self.switch.carry(self.number, False)

    def impair(self, delay_ms: float, loss: float) -> None:
        """Delays each frame by so many milliseconds each way, and drops a share of them."""
        self.switch.impair(self.number, delay_ms / 1000, loss)

    def mend(self) -> None:
        """Makes the link as it was at first."""
        self.switch.direct(self.number)
        self.switch.carry(self.number, True)

    def suspend(self) -> None:
        """Stops every process and answers nobody, as a virtual machine that is paused; clocks go
        on.
        """
        self.cut()
        self._signal_all("STOP")

    def resume(self) -> None:
        self._signal_all("CONT")
        self.switch.carry(self.number, True)

    def fill_disk(self) -> None:
        """Makes the disk as small as what is on it."""
        shrink = (
            "mount -t tmpfs -o remount,size=$(df --output=used / | tail -n 1 | tr -d ' ')k disk /"
        )
        # Fails while something is being written.
        self.run("sh", "-c", f"until {shrink}; do sleep 0.1; done")

    def free_disk(self) -> None:
        self.run("mount", "-t", "tmpfs", "-o", f"remount,size={self.machine.disk_mb}m", "disk", "/")


class Box:
    """The hosts and their network.

    Leaving it ends them, and raises AssertionError if anything stays behind.
    """

    def __init__(self, *machines: Machine) -> None:
        assert not why_not(), why_not()
        self.machines = machines
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> "Box":
        self.before = _traces()
        self.stack = contextlib.ExitStack()
        with self.stack:  # whatever fails below, what is up is ended
            switch = Switch()
            self.stack.callback(switch.close)
            addresses = [
                f"{NETWORK}.{number} {machine.name}"
                for number, machine in enumerate(self.machines, 1)
            ]
            names = "\n".join(["127.0.0.1 localhost", *addresses, ""])
            for number, machine in enumerate(self.machines, 1):
                host = self.hosts[machine.name] = Host(machine, number, names, switch)
                self.stack.callback(host.shut_down)
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        namespaces = set().union(*(host.namespaces for host in self.hosts.values()))
        deadline = time.monotonic() + GONE_S  # the kernel takes namespaces apart in the background
        while (
            left := inhabitants(namespaces) + sorted(_traces() - self.before)
        ) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, f"the box left behind: {left}"

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]


def _environment() -> list[Path]:
    """The virtual environment, and the Python that it was made of."""
    return [Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()]


def _variables() -> dict[str, str]:
    """A host knows nothing of the variables of whoever made the box."""
    programs = [f"{Path(sys.prefix).resolve()}/bin", "/usr/local/sbin", "/usr/local/bin"]
    path = ":".join([*programs, "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    return {"PATH": path, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8"}


def inhabitants(namespaces: set[str]) -> list[str]:
    """The processes in any of the namespaces (`net:[4026532193]`), as `PID NAME`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if namespaces & {os.readlink(folder / "ns" / kind) for kind in NAMESPACES}:
                found.append(f"{folder.name} {(folder / 'comm').read_text().strip()}")
    return found


def _traces() -> set[str]:
    """This machine's mounts and network devices."""
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return mounts | {f"network device {path.name}" for path in Path("/sys/class/net").iterdir()}
