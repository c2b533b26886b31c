"""Hosts are separate, links break and heal, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from tests.cluster.box import Box, Machine, why_not
from tests.cluster.box.hosts import inhabitants

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")
ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 20


@pytest.fixture(scope="module")
def box():
    with Box(Machine("one", sees=(ROOT,)), Machine("two", disk_mb=64)) as box:
        yield box


KNOCK = """
import socket, sys, time
for _ in range(int(sys.argv[2])):
    begin = time.monotonic()
    try:
        socket.create_connection((sys.argv[1], 9), timeout=0.5).close()
    except ConnectionRefusedError:
        print(time.monotonic() - begin)  # nobody listens there, but the host has answered
    except OSError:
        pass
"""


def knock(box: Box, name: str, num: int = 1) -> list[float]:
    """The seconds until host `one` heard from another, of those of `num` tries that were answered
    in half a second.
    """
    return [
        float(line) for line in box["one"].run("python", "-I", "-c", KNOCK, name, num).splitlines()
    ]


def test_a_host_has_its_own_names_processes_and_files(box):
    one, two = box["one"], box["two"]
    assert one.run("hostname") == "one\n"
    assert knock(box, "two")
    for host in (one, two):
        for folder in ("/tmp", "/dev/shm", "/root", "/var/tmp"):
            host.run("sh", "-c", f"echo {host.name} > {folder}/whose")
    for folder in ("/tmp", "/dev/shm", "/root", "/var/tmp"):
        assert one.run("cat", f"{folder}/whose") == "one\n"
        assert not Path(folder, "whose").exists()
    sleeper = one.start("sleep", "100")
    assert "sleep 100" in one.run("ps", "ax")
    assert "sleep 100" not in two.run("ps", "ax")
    one.kill(sleeper)
    assert one.run("python", "-c", "import sys; print(sys.prefix)").strip() == str(
        Path(sys.prefix).resolve()
    )
    assert one.run("ls", ROOT).count("pyproject.toml") == 1
    # The folder may be there, for an environment in it.
    assert "pyproject.toml" not in two.run("ls", ROOT, check=False)
    assert "Read-only" in one.run("touch", ROOT / "x", check=False)


def test_nothing_leads_out(box):
    """Not even to an address of this machine."""
    outside = [
        address.address
        for some in psutil.net_if_addrs().values()
        for address in some
        if address.family == AF_INET
    ]
    for address in [
        *(address for address in outside if not address.startswith("127.")),
        "192.0.2.1",
    ]:
        assert not knock(box, address)


def test_a_link_is_cut_and_mended(box):
    box["two"].cut()
    assert not knock(box, "two")
    box["two"].mend()
    assert knock(box, "two")


@pytest.mark.slow
def test_a_slow_link_delays_and_loses(box):
    """30 ms each way, then half of the frames each way: about a quarter of 12 questions are
    answered.
    """
    two = box["two"]
    two.impair(delay_ms=30, loss=0)
    times = knock(box, "two", 3)
    assert len(times) == 3
    assert min(times) >= 0.06
    two.impair(delay_ms=0, loss=0.5)
    assert len(knock(box, "two", 12)) < 10
    two.mend()
    assert len(knock(box, "two", 20)) == 20


@pytest.mark.slow
def test_a_suspended_host_answers_nobody_and_goes_on(box):
    two = box["two"]
    counter = two.start("sh", "-c", "while true; do echo >> /tmp/count; sleep 0.05; done")
    two.suspend()
    first = two.run("wc", "-l", "/tmp/count", check=False)
    time.sleep(0.3)
    assert two.run("wc", "-l", "/tmp/count", check=False) == first
    assert not knock(box, "two")
    two.resume()
    time.sleep(0.3)
    assert two.run("wc", "-l", "/tmp/count") != first
    assert knock(box, "two")
    two.kill(counter)


def test_a_disk_is_full_and_free_again(box):
    two = box["two"]
    two.fill_disk()
    assert "No space left" in two.run(
        "dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=1", check=False
    )
    two.free_disk()
    two.run("dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=1")


@pytest.mark.slow
def test_a_host_without_processes_lives_and_one_without_power_is_new(box):
    two = box["two"]
    sleeper = two.start("setsid", "sleep", "100")
    two.kill_processes()
    assert sleeper.wait(PATIENCE_S) != 0
    assert knock(box, "two")
    two.run("touch", "/tmp/mine")
    two.impair(delay_ms=1, loss=0)
    two.power_off()
    assert not knock(box, "two")
    two.boot()
    assert knock(box, "two")
    assert two.run("hostname") == "two\n"
    assert "No such file" in two.run("ls", "/tmp/mine", check=False)


@pytest.mark.slow
def test_nothing_is_left_of_a_box_whose_maker_was_killed(tmp_path):
    """With daemons on its hosts, one of them suspended."""
    program = """
        import time
        from tests.cluster.box import Box, Machine
        with Box(Machine("one"), Machine("two")) as box:
            box["one"].run("setsid", "--fork", "sleep", "1000")
            box["two"].run("setsid", "--fork", "sleep", "1000")
            box["two"].impair(delay_ms=1, loss=0)
            box["two"].suspend()
            print(*sorted(box["one"].namespaces | box["two"].namespaces), flush=True)
            time.sleep(1000)
    """
    before = set(Path("/tmp").iterdir())
    maker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    namespaces = set(maker.stdout.readline().split())
    assert sum(line.endswith("sleep") for line in inhabitants(namespaces)) == 2
    os.kill(maker.pid, signal.SIGKILL)
    maker.communicate()
    deadline = time.monotonic() + PATIENCE_S
    while (left := inhabitants(namespaces)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert set(Path("/tmp").iterdir()) <= before
