"""The documented command, `ray job submit --working-dir . -- python experiments/x.py`, on an interpreter without us.

The cluster's Python sees every installed dependency but not this project, as on a cluster whose image holds only the
dependencies: the package has to come with the upload.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gram_platform.engine.local_cluster import head, state
from gram_platform.studies import session

ROOT = Path(__file__).resolve().parents[1]
MAX_UPLOAD_BYTES = 5_000_000

PROBE = """
import os, pathlib, subprocess, sys
import ray
import gram_platform.config
ray.init()
def where():
    import gram_platform.config
    bare = subprocess.run([sys.executable, "-c", "import gram_platform"], cwd="/", env={})
    assert bare.returncode != 0, f"{sys.executable} has the project installed"
    return gram_platform.config.__file__
for path in (where(), ray.get(ray.remote(where).remote())):
    assert pathlib.Path(path).is_relative_to(os.getcwd()), path
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory) -> Path:
    """The interpreter of a virtual environment that links to every installed package except this project."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "gram_platform" not in entry.name:  # the package, its metadata, and the hook of an editable install
            (packages / entry.name).symlink_to(entry)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "venv/lib" / version / "site-packages/dependencies.pth").write_text(str(packages))
    python = folder / "venv/bin/python"
    ray = folder / "venv/bin/ray"
    ray.write_text(f"#!{python}\nfrom ray.scripts.scripts import main\nmain()\n")
    ray.chmod(0o755)
    return python


@pytest.fixture
def kuberay_like(bare_python, storage, monkeypatch):
    """A head that takes no work, as KubeRay's, and one machine of two CPUs, which a driver may ask for too."""
    plain, port = head.head_command, head.free_port()

    def without_cpus(cluster: state.Cluster) -> list[str]:
        kept = [option for option in plain(cluster) if not option.startswith(("--port=", "--num-cpus="))]
        return [*kept, f"--port={port}", "--num-cpus=0"]

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "executable", str(bare_python))
    monkeypatch.setattr(head, "head_command", without_cpus)
    cluster = head.start()
    machine = ["ray", "start", f"--address=127.0.0.1:{port}", "--num-cpus=2", "--resources", '{"driver": 1}', "--block"]
    head.spawn(cluster, machine, cluster.folder / "machine.log")
    deadline = time.monotonic() + 120
    while sum(node["raylet"]["state"] == "ALIVE" for node in nodes_of(cluster)) < 2:
        assert time.monotonic() < deadline, (cluster.folder / "machine.log").read_text()
        time.sleep(0.2)
    yield cluster
    state.stop(cluster)


def nodes_of(cluster: state.Cluster) -> list[dict]:
    answer = head.ask(cluster, "/nodes?view=summary")
    return answer["data"]["summary"] if answer else []


@pytest.fixture(scope="module")
def bare_cluster(bare_python, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAM_STORAGE", str(tmp_path_factory.mktemp("storage")))
        patch.delenv("PYTHONPATH", raising=False)
        patch.setattr(sys, "executable", str(bare_python))
        cluster = head.start()
        yield cluster
        state.stop(cluster)


def test_the_interpreter_lacks_the_project(bare_python):
    for module, found in (("ray", True), ("gram_platform", False)):
        done = subprocess.run([bare_python, "-c", f"import {module}"], cwd="/", capture_output=True, check=False)
        assert (done.returncode == 0) == found, done.stderr.decode()


@pytest.mark.slow
@pytest.mark.ray
def test_package_travels_with_the_job(bare_cluster, tmp_path, monkeypatch):
    """On the driver and in a task, from a script in `experiments/`; the exit code says so."""
    shutil.copytree(ROOT / "gram_platform", tmp_path / "gram_platform", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/probe.py").write_text(PROBE)
    monkeypatch.chdir(tmp_path)
    assert head.submit(bare_cluster, ["python", "experiments/probe.py"]) == 0


@pytest.mark.ray
def test_this_checkout_is_a_small_upload_and_its_experiments_build(bare_cluster, monkeypatch):
    monkeypatch.chdir(ROOT)
    uploads = bare_cluster.ray_folder / "session_latest/runtime_resources/working_dir_files"
    before = set(uploads.glob("_ray_pkg_*"))
    build = "python experiments/scaling.py --help >/dev/null"  # test_architecture.py builds all experiments
    assert head.submit(bare_cluster, ["bash", "-c", build]) == 0
    upload = next(path for path in set(uploads.glob("_ray_pkg_*")) - before if path.is_dir())
    files = {path.relative_to(upload): path.stat().st_size for path in upload.rglob("*") if path.is_file()}
    assert Path("gram_platform/config/identity.py") in files
    assert not {path.parts[0] for path in files} & {".venv", ".git", "shared", "storage"}
    largest = sorted(files.items(), key=lambda item: -item[1])[:5]
    assert sum(files.values()) < MAX_UPLOAD_BYTES, f"unpacked; the largest files are {largest}"


ADVICE = """ray job submit --entrypoint-resources '{"driver": 1}'"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_documented_command_works_from_a_head_that_takes_no_work(kuberay_like, storage, monkeypatch, capfd):
    """As it is written, without a flag: the study begins; with the preset of a minute it ends with its table."""
    monkeypatch.chdir(ROOT)
    submit = ["ray", "job", "submit", "--address", kuberay_like.address, "--working-dir", "."]
    job = subprocess.Popen(
        [*submit, "--", "python", "experiments/scaling.py"],
        env=head.environment(kuberay_like),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in job.stdout:
        lines.append(line)
        if "trained in" in line:
            break
    (job_id,) = set(re.findall(r"raysubmit_\w+", "".join(lines)))
    stop = ["ray", "job", "stop", "--address", kuberay_like.address, job_id]
    subprocess.run(stop, env=head.environment(kuberay_like), capture_output=True, check=True)
    job.communicate()
    said = "".join(lines)
    assert said.count(ADVICE) == 1, said
    assert "trained in" in said, said
    small = ["--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--methods", "baseline"]
    assert head.submit(kuberay_like, ["python", "experiments/scaling.py", *small]) == 0
    assert "2 of 2 nodes done" in capfd.readouterr().out
    assert (storage / "studies/scaling/table.csv").exists()


PLACES = [  # CPUs here, resources of the cluster, whether it can grow -> whether the driver's flag is named
    (0.0, {"CPU": 8.0, "driver": 1.0}, False, True),
    (0.0, {}, True, True),
    (0.0, {"CPU": 8.0}, False, False),  # there is no machine for it
    (2.0, {"CPU": 2.0, "driver": 1.0}, True, False),
]


@pytest.mark.parametrize(("cpus", "resources", "can_grow", "is_named"), PLACES)
def test_a_driver_on_a_head_names_the_flag_that_moves_it(cpus, resources, can_grow, is_named, monkeypatch):
    here = SimpleNamespace(get_node_id=lambda: "here")
    nodes = [{"NodeID": "here", "Resources": {"CPU": cpus}}, {"NodeID": "there", "Resources": {"CPU": 8.0}}]
    monkeypatch.setattr(session.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(session.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(session.ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(session, "has_fixed_size", lambda: not can_grow)
    assert (ADVICE in session.advice_on_place()) == is_named
