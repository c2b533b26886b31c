"""The network of a box: a bridge in a namespace of its own, with a cable to every host."""

import subprocess
import sys
from pathlib import Path

NETWORK, PREFIX = "10.77.0", 24
GATEWAY = f"{NETWORK}.254"  # answers, and leads nowhere
FORWARDER = Path(__file__).with_name("impaired.py")
PATIENCE_S = 30


def started(command: list[str]) -> tuple[subprocess.Popen, str]:
    """A process that lives until its standard input closes, and the first line that it prints.

    Raises RuntimeError with its error output if it ends before.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    line = process.stdout.readline().strip()
    if not line:
        ended(process)
        raise RuntimeError(f"{' '.join(command)[:200]}: {process.stderr.read()}")
    return process, line


def ended(process: subprocess.Popen) -> None:
    """Closes its standard input, and waits until it is gone."""
    process.stdin.close()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Switch:
    """Cables are numbered as their hosts are: cable N has the port `pN` here, and ends at `eth0` of
    a host.
    """

    def __init__(self) -> None:
        self.process, _ = started(["unshare", "--net", "sh", "-c", "echo ready; exec cat"])
        self.forwarders: dict[int, subprocess.Popen] = {}
        self.ip("link", "add", "bridge", "type", "bridge")
        self.ip("addr", "add", f"{GATEWAY}/{PREFIX}", "dev", "bridge")
        self.ip("link", "set", "bridge", "up")

    @property
    def inside(self) -> list[str]:
        """The start of a command line that runs in the switch's namespace."""
        return ["nsenter", f"--target={self.process.pid}", "--net"]

    def ip(self, *arguments: str) -> None:
        """Raises RuntimeError with what `ip` says where it fails."""
        done = subprocess.run(
            [*self.inside, "ip", *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr}")

    def plug(self, number: int, pid: int) -> None:
        """Lays a cable to the host whose first process is `pid`; it has the same hardware address
        each time.
        """
        end = ["peer", "name", "eth0", "address", f"02:00:00:00:00:{number:02x}", "netns", str(pid)]
        self.ip("link", "add", f"p{number}", "type", "veth", *end)
        self.ip("link", "set", f"p{number}", "master", "bridge", "up")

    def unplug(self, number: int) -> None:
        self.direct(number)
        self.ip("link", "del", f"p{number}")

    def carry(self, number: int, is_up: bool) -> None:
        self.ip("link", "set", f"p{number}", "up" if is_up else "down")

    def impair(self, number: int, delay_s: float, loss: float) -> None:
        """Puts a forwarder between a cable and the bridge: port - second bridge - TAP - forwarder -
        TAP - bridge.
        """
        self.direct(number)
        near, far, extra = f"a{number}", f"b{number}", f"x{number}"
        forwarder = [sys.executable, "-I", str(FORWARDER), near, far, str(delay_s), str(loss)]
        self.forwarders[number], _ = started([*self.inside, *forwarder])
        self.ip("link", "add", extra, "type", "bridge")
        self.ip("link", "set", near, "master", extra, "up")
        self.ip("link", "set", far, "master", "bridge", "up")
        self.ip("link", "set", extra, "up")
        self.ip("link", "set", f"p{number}", "master", extra)

    def direct(self, number: int) -> None:
        """Takes the forwarder out again, if there is one. Frames in it are lost."""
        if number in self.forwarders:
            self.ip("link", "set", f"p{number}", "master", "bridge")
            ended(self.forwarders.pop(number))
            self.ip("link", "del", f"x{number}")

    def close(self) -> None:
        for forwarder in self.forwarders.values():
            ended(forwarder)
        ended(self.process)
