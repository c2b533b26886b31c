"""The documented command, `ray job submit --working-dir . -- python experiments/x.py`, on an
interpreter without us.

The cluster's Python sees every installed dependency but not this project, as on a cluster whose
image holds only the dependencies: the package has to come with the upload.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gram_platform.engine.machine import free_port
from gram_platform.studies import workplace
from tests.heads import running_head

ROOT = Path(__file__).resolve().parents[1]
MAX_UPLOAD_BYTES = 5_000_000


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory) -> Path:
    """The interpreter of a virtual environment that links to every installed package except this
    project.
    """
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # The package, its metadata, and the hook of an editable install.
        if "gram_platform" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "venv/lib" / version / "site-packages/dependencies.pth").write_text(str(packages))
    python = folder / "venv/bin/python"
    ray = folder / "venv/bin/ray"
    ray.write_text(f"#!{python}\nfrom ray.scripts.scripts import main\nmain()\n")
    ray.chmod(0o755)
    return python


@pytest.fixture
def kuberay_like(bare_python, tmp_path, monkeypatch):
    """A head that takes no work, as KubeRay's, and one machine of two CPUs, which a driver may ask
    for too.
    """
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with running_head(bare_python, {"GRAM_STORAGE": str(tmp_path / "storage")}, num_cpus=0) as head:
        machine = ("--num-cpus=2", "--resources", '{"driver": 1}', "--block")
        head.spawn("ray", "start", f"--address=127.0.0.1:{head.port}", *machine)
        deadline = time.monotonic() + 120
        while head.num_machines() < 2:
            assert time.monotonic() < deadline, (head.folder / "log.txt").read_text()
            time.sleep(0.2)
        yield head


@pytest.fixture(scope="module")
def bare_head(bare_python):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        with running_head(bare_python) as head:
            yield head


@pytest.mark.ray
def test_this_checkout_is_a_small_upload_and_its_experiments_build(bare_head):
    uploads = bare_head.folder / "ray/session_latest/runtime_resources/working_dir_files"
    before = set(uploads.glob("_ray_pkg_*"))
    # test_architecture.py builds all experiments
    done = bare_head.submit("python", "experiments/scaling.py", "--help", working_dir=ROOT)
    assert done.returncode == 0, done.stdout
    upload = next(path for path in set(uploads.glob("_ray_pkg_*")) - before if path.is_dir())
    files = {
        path.relative_to(upload): path.stat().st_size
        for path in upload.rglob("*")
        if path.is_file()
    }
    assert Path("gram_platform/config/identity.py") in files
    assert not {path.parts[0] for path in files} & {".venv", ".git", "shared", "storage"}
    largest = sorted(files.items(), key=lambda item: -item[1])[:5]
    assert sum(files.values()) < MAX_UPLOAD_BYTES, f"unpacked; the largest files are {largest}"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_head_as_the_documents_start_it_takes_a_job_and_is_stopped_alone(ray_cluster, tmp_path):
    """The commands as they are written, on free ports; the job only plans the study."""
    blocks = re.findall(r"(?:^    .*\n)+", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    (commands,) = (block for block in blocks if "ray start --head" in block)
    folder, mark = Path(tempfile.mkdtemp(prefix="gram-head-", dir="/tmp")), uuid.uuid4().hex
    replaced = {"/tmp/ray-trial": str(folder), "8266": str(free_port()), "10002": str(free_port())}
    replaced |= {"~/.gram": f"{tmp_path / 'storage'} --dry-run"}
    for written, here in replaced.items():
        assert written in commands
        commands = commands.replace(written, here)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "GRAM_TEST_MARK": mark, "SPT_NOENV": "1"}
    try:
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "study scaling, preset smoke" in done.stdout
        deadline = time.monotonic() + 60
        while left := [process for process in psutil.process_iter() if has_mark(process, mark)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
        assert ray_cluster.get(ray_cluster.remote(lambda: 1).remote()) == 1
    finally:
        shutil.rmtree(folder)


def has_mark(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("GRAM_TEST_MARK") == mark
    return False


ADVICE = """ray job submit --entrypoint-resources '{"driver": 1}'"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_documented_command_works_from_a_head_that_takes_no_work(kuberay_like, tmp_path):
    """As it is written, without a flag: the study begins; with the preset of a minute it ends with
    its table.
    """
    job = subprocess.Popen(
        kuberay_like.job("python", "experiments/scaling.py", working_dir=ROOT),
        env=kuberay_like.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in job.stdout:
        lines.append(line)
        if "trained in" in line:
            break
    said = "".join(lines)
    (job_id,) = set(re.findall(r"raysubmit_\w+", said))
    stop = ["ray", "job", "stop", "--address", kuberay_like.address, job_id]
    subprocess.run(stop, env=kuberay_like.environment, capture_output=True, check=True)
    job.communicate()
    assert said.count(ADVICE) == 1, said
    assert "trained in" in said, said
    small = ("--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--methods", "baseline")
    done = kuberay_like.submit("python", "experiments/scaling.py", *small, working_dir=ROOT)
    assert done.returncode == 0, done.stdout
    assert "2 of 2 nodes done" in done.stdout
    assert (tmp_path / "storage/studies/scaling/table.csv").exists()


# CPUs here, resources of the cluster, whether it can grow -> whether the driver's flag is named.
PLACES = [
    (0.0, {"CPU": 8.0, "driver": 1.0}, False, True),
    (0.0, {}, True, True),
    (0.0, {"CPU": 8.0}, False, False),  # there is no machine for it
    (2.0, {"CPU": 2.0, "driver": 1.0}, True, False),
]


@pytest.mark.parametrize(("cpus", "resources", "can_grow", "is_named"), PLACES)
def test_a_driver_on_a_head_names_the_flag_that_moves_it(
    cpus, resources, can_grow, is_named, monkeypatch
):
    here = SimpleNamespace(get_node_id=lambda: "here")
    nodes = [
        {"NodeID": "here", "Resources": {"CPU": cpus}},
        {"NodeID": "there", "Resources": {"CPU": 8.0}},
    ]
    monkeypatch.setattr(workplace.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(workplace.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(workplace.ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(workplace, "has_fixed_size", lambda: not can_grow)
    assert (ADVICE in workplace.advice_on_place()) == is_named
