"""The groups of machines that the files describe, under Ray's own autoscaler with pretended
machines on this one.

Ray's test provider starts a real raylet for each machine that the autoscaler asks for: nothing is
simulated but the cloud, and the GPUs, which are numbers here.
"""

import json
import sys
import time

import pytest
from ray.util import get_node_ip_address

from gram_platform.engine.machine import free_port
from gram_platform.store import Store
from tests.cluster.files import ROOT, launcher
from tests.heads import Head, running_head

HEAD_ID = "f" * 51 + "00000"  # what Ray's test provider calls its head
UP_S, DOWN_S = 120, 120
# Of `ray job submit`: the job's driver gets a machine for drivers.
DRIVER = ("--entrypoint-resources", '{"driver": 1}')
COMMANDS = (
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "initialization_commands",
)
COMMANDS += ("head_start_ray_commands", "worker_start_ray_commands")
PROBE = """
import json, os, ray
from gram_platform.engine.capacity import has_fixed_size
ray.init(log_to_driver=False)
fixed = [has_fixed_size()]
where = lambda: os.environ.get("RAY_NODE_TYPE_NAME", "head")
def groups():
    offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sorted(key for offer in offers for key in offer if key in ("driver", "GPU"))
before = groups()
one = ray.get(ray.remote(num_gpus=1)(where).remote())
many = ray.get([ray.remote(num_gpus=8)(where).remote() for _ in range(2)])
fixed.append(ray.get(ray.remote(num_gpus=1)(has_fixed_size).remote()))
seen = {"fixed": fixed, "driver": where(), "before": before, "one": one, "many": many}
print("SEEN", json.dumps(seen))
"""


def autoscaling_config(port: int, machines: dict | None = None) -> dict:
    """The machine types of aws.yaml, with a provider that pretends them.

    Idle ones go after 3 seconds. `machines`: what GPU machines there are instead.
    """
    config = launcher("aws.yaml")
    types = machines and {
        "driver": {
            "resources": {"CPU": 0, "driver": 1},
            "min_workers": 0,
            "max_workers": 1,
            "node_config": {},
        },
        **machines,
    }
    types = types or {
        name: (
            {
                key: value
                for key, value in kind.items()
                if key in ("resources", "min_workers", "max_workers")
            }
            | {"node_config": {}}
        )
        for name, kind in config["available_node_types"].items()
        if name != config["head_node_type"]
    }
    types["ray.head.default"] = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": config["cluster_name"],
        "max_workers": config["max_workers"],
        "file_mounts": {},
        "cluster_synced_files": [],
        **{key: [] for key in COMMANDS},
        "idle_timeout_minutes": 0.05,
        "head_node_type": "ray.head.default",
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
            "gcs_address": f"{get_node_ip_address()}:{port}",
        },
        "available_node_types": types,
    }


PRETENDED = {
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_enable_autoscaler_v2": "1",
    # As `ray up` and KubeRay set it.
    "RAY_NODE_TYPE_NAME": "ray.head.default",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}


@pytest.fixture
def pretended_cluster(request, tmp_path):
    port, file = free_port(), tmp_path / "autoscaling.json"
    file.write_text(json.dumps(autoscaling_config(port, getattr(request, "param", None))))
    with running_head(
        environment=PRETENDED, port=port, num_cpus=0, autoscaling_config=file
    ) as head:
        yield head


def wait_for(what, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "in time"
        time.sleep(1)


@pytest.mark.ray
@pytest.mark.slow
def test_machines_come_from_zero_and_go(pretended_cluster, tmp_path):
    """A job's driver gets its own machine, tasks get the groups that fit them, and all are gone
    after the job.
    """
    (tmp_path / "job").mkdir()
    (tmp_path / "job/probe.py").write_text(PROBE)
    wait_for(lambda: pretended_cluster.num_machines() == 1, UP_S)
    probe = (sys.executable, "probe.py")
    done = pretended_cluster.submit(
        *probe, flags=DRIVER, working_dir=tmp_path / "job", timeout_s=UP_S
    )
    assert done.returncode == 0, done.stdout[-3000:]
    seen = json.loads(done.stdout.split("SEEN ", 1)[1].splitlines()[0])
    assert seen["fixed"] == [False, False], "a driver or a task did not see the autoscaler"
    assert seen["driver"] == "driver"
    assert seen["before"] == ["driver"], (
        "a machine with GPUs was there before anything asked for one"
    )
    assert seen["one"] in ("gpu-1", "gpu-8")
    assert set(seen["many"]) == {"gpu-8"}
    wait_for(lambda: pretended_cluster.num_machines() == 1, DOWN_S)


PACK_JOB = """
import json, os, threading, time
import ray
from gram_platform.engine.part_workers import part_workers

ray.init(log_to_driver=False)
os.environ["GRAM_PACK_MACHINES"] = "1"
shapes = set()

def watch():
    while True:
        offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        shapes.update(key for offer in offers for key in offer if key in ("pack", "GPU"))
        time.sleep(0.5)

def work(task):
    time.sleep(1)
    return os.environ.get("RAY_NODE_TYPE_NAME", "head")

threading.Thread(target=watch, daemon=True).start()
where = [place for _, place in part_workers(lambda: None, True)(work, range(20))]
print("SEEN", json.dumps({"where": sorted(set(where)), "shapes": sorted(shapes)}))
"""
SMALL_MACHINES = {
    "gpu-2": {
        "resources": {"CPU": 4, "GPU": 2},
        "min_workers": 0,
        "max_workers": 3,
        "node_config": {},
    }
}
# GPUs are numbers here: training is on CPUs.
PRETEND = """
import json, sys, threading, time
from dataclasses import replace
import ray
from ray._private.state import available_resources_per_node
from ray.util import placement_group_table
from gram_platform.studies import workplace
own = workplace.execution_of
workplace.execution_of = lambda plan: (replace(own(plan)[0], device="cpu"), own(plan)[1])
"""
STUDY_JOB = (
    PRETEND
    + """
import random, psutil
from gram_platform.engine.ray_executor import RayExecutor
from gram_platform.studies.library.scaling import STUDY
from tests.submitted import execute

most, idle, longest, gangs, killed = [0], {}, [0.0], [], []
graphs, init = [], RayExecutor.__init__

def noted(self, *args, **more):
    init(self, *args, **more)
    graphs.append(self)

RayExecutor.__init__ = noted

def watch():
    while True:
        time.sleep(1.0)
        if not graphs:
            continue
        alive = [node for node in ray.nodes() if node["Alive"]]
        machines = {node["NodeID"]: node for node in alive if node["Resources"].get("GPU")}
        free = available_resources_per_node()
        most[0] = max(most[0], len(machines))
        for group in placement_group_table().values():
            if group["state"] == "CREATED" and len(group["bundles"]) > 1:
                gangs.append(len(set(group["bundles_to_node_id"].values())))
        waits = bool(graphs[-1].slots.starting)
        for node_id in machines:
            is_idle = waits and free.get(node_id, {}).get("GPU", 0.0) == 2.0
            if is_idle:
                since = idle.setdefault(node_id, time.monotonic())
                longest[0] = max(longest[0], time.monotonic() - since)
            else:
                idle.pop(node_id, None)
        if len(machines) == 3 and not killed and len(graphs[-1].progress.done) >= 3:
            victim = machines[random.choice(sorted(machines))]
            killed.append(victim["NodeID"])
            for process in psutil.process_iter(["cmdline"]):
                words = process.info["cmdline"] or ()
                if any(victim["RayletSocketName"] in word for word in words):
                    process.kill()

threading.Thread(target=watch, daemon=True).start()
arguments = ["--preset", "smoke", "--seeds", "2", "--methods", "baseline,gram"]
arguments += ["--storage", sys.argv[1]]
arguments += ["--device", "cuda", "--num-workers", "tiny=1", "small=2", "--gpus-per-machine", "2"]
code = execute(STUDY, arguments)
seen = {"code": code, "most": most[0], "gangs": sorted(set(gangs)), "killed": len(killed)}
print("SEEN", json.dumps(seen | {"longest_idle_s": longest[0]}))
"""
)
GRID_JOB = (
    PRETEND
    + """
from gram_platform.studies.library.lr_bs_grid import SEARCH
from tests.submitted import execute

most = {"machines": 0, "asked": 0, "gpus": 0.0}

def watch():
    while True:
        time.sleep(0.5)
        if not ray.is_initialized():
            continue
        machines = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU")]
        free = available_resources_per_node()
        groups = [group["state"] for group in placement_group_table().values()]
        now = {"machines": len(machines), "asked": sum(state != "REMOVED" for state in groups),
               "gpus": sum(2.0 - free[n].get("GPU", 0.0) for n in machines if n in free)}
        most.update({name: max(most[name], value) for name, value in now.items()})

threading.Thread(target=watch, daemon=True).start()
arguments = ["--preset", "smoke", "--sizes", "tiny", "--storage", sys.argv[1]]
arguments += ["--device", "cuda", "--gpus-per-run", "0.5"]
code = execute(SEARCH, arguments)
print("SEEN", json.dumps({"code": code, **most}))
"""
)


def seen_by(job: str, cluster: Head, tmp_path) -> tuple[dict, str]:
    """Submits a program on a driver's machine to a cluster without machines.

    Returns (what it saw, all that it said).
    """
    # Not in an upload: the pretended machines share one, and one that dies removes it.
    file = tmp_path / "job.py"
    file.write_text(job)
    wait_for(lambda: cluster.num_machines() == 1, UP_S)
    program = (sys.executable, file, tmp_path / "storage")
    done = cluster.submit(
        *program, flags=DRIVER, environment={"PYTHONPATH": str(ROOT)}, timeout_s=1400
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return json.loads(done.stdout.split("SEEN ", 1)[1].splitlines()[0]), done.stdout


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_packing_from_zero_machines_starts_no_gpu(pretended_cluster, tmp_path):
    seen, said = seen_by(PACK_JOB, pretended_cluster, tmp_path)
    assert seen == {"where": ["pack"], "shapes": ["pack"]}, said[-6000:]
    wait_for(lambda: pretended_cluster.num_machines() == 1, DOWN_S)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("pretended_cluster", [SMALL_MACHINES], indirect=True)
def test_a_grid_from_zero_machines_runs_all_trials_at_once(pretended_cluster, tmp_path):
    """Nine trials of half a GPU on at most three machines of two; no flag says how many at once.

    All nine are asked for at once, which brings all machines. Where machines start slower than
    trials train, the first trial is over before the last one has its place, so what is in use at
    once is only more than one machine has.
    """
    seen, said = seen_by(GRID_JOB, pretended_cluster, tmp_path)
    gpus = seen.pop("gpus")
    assert seen == {"code": 0, "machines": 3, "asked": 9}, said[-6000:]
    assert 2 < gpus <= 9 * 0.5
    store = Store(str(tmp_path / "storage"))
    assert [len(store.run(run_id).attempts.list()) for run_id in store.list_runs()] == [1] * 9


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("pretended_cluster", [SMALL_MACHINES], indirect=True)
def test_a_study_from_zero_machines_to_all(pretended_cluster, tmp_path):
    """Ranks share a machine, a machine that is killed at random costs no finished run, and none
    stands idle.
    """
    seen, said = seen_by(STUDY_JOB, pretended_cluster, tmp_path)
    assert (seen["code"], seen["most"], seen["killed"]) == (0, 3, 1), said[-6000:]
    assert seen["gangs"] == [1], "a run's ranks are on several machines"
    assert seen["longest_idle_s"] < 60
    store = Store(str(tmp_path / "storage"))
    tries = [len(store.run(run_id).attempts.list()) for run_id in store.list_runs()]
    assert all(store.run(run_id).result() for run_id in store.list_runs())
    assert sum(number > 1 for number in tries) <= 2 + 1, (
        "of the killed machine's two processes, and a gang's"
    )
