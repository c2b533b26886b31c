"""`cluster/onprem.yaml` executed over a real sshd: `ray up`, jobs, `ray down`, as the guide has it.

Its commands run unchanged. What the guide asks of a machine is in its `~/.bashrc`, with the host's
share of this one.
"""

import importlib.util
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.box import Box, Host, Machine, why_not
from tests.cluster.box.cluster import AGENT_PORTS, JOBS_PORT, LISTENS, START_S, Cluster
from tests.cluster.files import ROOT, onprem

SSHD = "/usr/sbin/sshd"
UP_S, JOB_S, STUDY_S, IDLE_S, END_S = 360, 480, 600, 180, 240
PROBE = """
import json, os, socket, ray
ray.init(log_to_driver=False)
Place = ray.remote(num_cpus=1)(type("Place", (), {"name": lambda self: socket.gethostname()}))
places = [Place.remote() for _ in range(2)]  # at the same time: one for each worker
print("SEEN", json.dumps({
    "driver": socket.gethostname(),
    "work": sorted(ray.get([place.name.remote() for place in places])),
    "storage": os.environ["GRAM_STORAGE"],
}))
"""
START_WITH_PORTS = """#!/bin/sh
command=$1
shift
[ "$command" != start ] || set -- {ports} "$@"
exec {programs}/ray "$command" "$@"
"""
RESULTS = """
import sys
from gram_platform.store import Store
store = Store(sys.argv[1])
print("RESULTS", *(store.run(run_id).result() is not None for run_id in store.list_runs()))
"""


def why_no_lab() -> str:
    """Why this machine cannot have hosts with sshd, in one sentence; empty if it can."""
    missing = [name for name in (SSHD, "ssh", "rsync") if not shutil.which(name)]
    if missing:
        return f"not installed: {', '.join(missing)}: apt-get install openssh-server rsync"
    return why_not()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "never"),
]


class Lab(Cluster):
    """A laptop, and machines that it reaches by SSH: a head, two workers, and a storage."""

    def __init__(self, box: Box, logs: Path) -> None:
        super().__init__(box, logs)
        self.machines = [box[name] for name in ("head", *self.workers)]
        laptop = box["laptop"]
        laptop.run("mkdir", "-m", "700", ".ssh", ".ray")
        laptop.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ".ssh/gram")
        self.write(laptop, ".ray/auth_token", self._token)
        config = onprem(*(machine.address for machine in self.machines))
        self.write(
            laptop,
            "onprem.yaml",
            config.replace("idle_timeout_minutes: 5", "idle_timeout_minutes: 0.2"),
        )
        for machine in self.machines:
            self.prepare(machine, laptop.run("cat", ".ssh/gram.pub"))

    @property
    def variables(self) -> dict[str, str]:
        """The dashboard listens on the head's loopback, and `ray dashboard` forwards it to the
        laptop's.
        """
        return super().variables | {"RAY_API_SERVER_ADDRESS": f"http://localhost:{JOBS_PORT}"}

    def write(self, host: Host, path: str, content: str) -> None:
        host.run("sh", "-c", 'umask 077 && printf %s "$1" > $0', path, content)

    def prepare(self, machine: Host, key: str) -> None:
        """An SSH server that knows the key; the programs and the host's share of this machine in
        every shell.
        """
        share = {
            "CPU": int(machine.name != "head"),
            "memory": 3 * 2**30,
            "object_store_memory": 100 * 2**20,
        }
        variables = {
            name: value for name, value in self.variables.items() if not name.startswith("RAY_A")
        }
        programs = f"{Path(sys.prefix).resolve()}/bin"
        variables |= {"PATH": f"/root/bin:{programs}:$PATH"}
        variables |= {"RAY_OVERRIDE_RESOURCES": f"'{json.dumps(share)}'"}
        # All hosts share two cores, so that Ray's own processes start slowly.
        variables |= {"RAY_raylet_start_wait_time_s": "240"}
        machine.run("mkdir", "-p", "-m", "700", ".ssh", "/run/sshd", "bin")
        self.write(
            machine,
            "bin/ray",
            START_WITH_PORTS.format(programs=programs, ports=" ".join(AGENT_PORTS)),
        )
        machine.run("chmod", "700", "bin/ray")
        self.write(machine, ".ssh/authorized_keys", key)
        self.write(
            machine,
            ".bashrc",
            "".join(f"export {name}={value}\n" for name, value in variables.items()),
        )
        machine.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ".ssh/host_key")
        self.serve(machine.name, "sshd", 22, SSHD, "-D", "-e", "-o", "HostKey=/root/.ssh/host_key")

    def up(self) -> None:
        laptop, log = self["laptop"], self.logs / "dashboard.log"
        # An earlier `ray dashboard`, whose port ssh's shared connection holds for 10 s more.
        laptop.kill_processes()
        self.on_laptop("ray", "up", "-y", "/root/onprem.yaml", timeout_s=UP_S)
        laptop.start("ray", "dashboard", "/root/onprem.yaml", log=log, env=self.variables)
        laptop.run(
            "python", "-I", "-c", LISTENS, "localhost", JOBS_PORT, START_S, timeout_s=START_S + 10
        )

    def down(self) -> None:
        """Ray ends on the workers too, once they have lost the head."""
        self.on_laptop("ray", "down", "-y", "/root/onprem.yaml", timeout_s=START_S)
        self.wait_for([], END_S)

    def job(self, *command: str | Path, timeout_s: float) -> str:
        """The log of a job whose driver a worker runs."""
        return self.submit(
            *command, options=("--entrypoint-resources", '{"driver": 1}'), timeout_s=timeout_s
        )

    def with_ray(self) -> list[str]:
        """The machines with a raylet, or with another process that belongs to one."""
        count = "ps ax -o args | grep -c '[r]aylet/raylet\\|[r]ay::' || true"
        return [machine.name for machine in self.machines if int(machine.run("sh", "-c", count))]

    def wait_for(self, machines: list[str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (found := self.with_ray()) != machines:
            assert time.monotonic() < deadline, f"Ray still runs on {found}"
            time.sleep(2)


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    names = ("laptop", "head", "worker1", "worker2", "storage")
    with Box(*(Machine(name, sees=(ROOT,) if name == "laptop" else ()) for name in names)) as box:
        yield Lab(box, tmp_path_factory.mktemp("lab"))


def test_workers_start_on_demand_and_stop_when_idle(lab):
    """Twice on the same machines; `ray down` ends Ray on the workers too, after they have lost the
    head.
    """
    lab.up()
    assert lab.with_ray() == ["head"], "a worker was started for nothing"
    for _ in range(2):
        said = lab.job("python", "-c", PROBE, timeout_s=JOB_S)
        seen = json.loads(re.search(r"^SEEN (.*)$", said, re.MULTILINE)[1])
        assert seen.pop("driver") in lab.workers
        assert seen == {"work": lab.workers, "storage": "/mnt/gram"}
        lab.wait_for(["head"], IDLE_S)
    lab.job("python", "-c", "pass", timeout_s=JOB_S)
    lab.down()


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("moto", "s3fs"))),
    reason=(
        "an object store needs pip install -c constraints.txt -c cluster/requirements.txt -e"
        " '.[dev,s3-tests]'"
    ),
)
def test_a_study(lab):
    """The checkout is only on the laptop, and the workers share nothing but a bucket."""
    lab.start_s3()
    lab.up()
    study = [
        "python",
        "experiments/scaling.py",
        "--preset",
        "smoke",
        "--sizes",
        "tiny",
        "--seeds",
        "1",
    ]
    study += [
        "--methods",
        "baseline",
        "--storage",
        lab.storage,
        "--tracking-uri",
        "sqlite:////tmp/mlflow.db",
    ]
    said = lab.job(*study, timeout_s=STUDY_S)
    assert f"{lab.storage}/studies/scaling/report.html" in said
    results = lab.on_laptop("python", "-c", RESULTS, lab.storage).split("RESULTS", 1)[1].split()
    assert results
    assert set(results) == {"True"}
    lab.down()
