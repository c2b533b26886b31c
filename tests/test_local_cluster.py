"""The local cluster: private, passes the job's exit code, and leaves nothing behind however it ends."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from gram_platform.engine.local_cluster import head, state
from gram_platform.engine.local_cluster.state import (
    MARK,
    Cluster,
    processes_of,
    read_state,
    state_file,
    stop,
    write_state,
)
from tests import pseudo_terminal
from tests.ending import STACKS, exit_code

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_PORTS = (6379, 8265, 10001, 52365)  # GCS, dashboard, client server, dashboard agent

JOB = """
import json, os, sys, time
import ray
ray.init()
nodes = ray.nodes()
cpus = ray.get(ray.remote(lambda: os.environ["GRAM_STORAGE"]).remote())
print("REPORT", json.dumps({"mark": os.environ["GRAM_LOCAL_CLUSTER"], "num_nodes": len(nodes), "storage": cpus,
    "address": ray.get_runtime_context().gcs_address, "upload": os.getcwd()}), flush=True)
sys.exit(7)
"""


@pytest.fixture
def job_folder(tmp_path, monkeypatch):
    """A working directory whose job reports where it ran, and one that sleeps."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "report.py").write_text(JOB)
    (folder / "sleep.py").write_text("import time\nprint('SLEEPING', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gram_platform.engine.local_cluster", *arguments]


def errors_of(folder: Path) -> Path:
    return folder.with_name("errors.txt")


@contextlib.contextmanager
def sleeping_job(folder: Path):
    """(process, its cluster) of a run whose job has started and sleeps."""
    with errors_of(folder).open("w") as errors:
        process = subprocess.Popen(
            command("run", "--", "python", "sleep.py"),
            cwd=folder,
            env=os.environ | STACKS,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert any("SLEEPING" in line for line in process.stdout), "the job never started"
        yield process, read_state()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if left := read_state():
            stop(left)


def occupy(port: int, stack: contextlib.ExitStack) -> None:
    listener = stack.enter_context(socket.socket())
    with contextlib.suppress(OSError):  # somebody else has it already: as good
        listener.bind(("0.0.0.0", port))
        listener.listen()


@pytest.mark.ray
@pytest.mark.slow
def test_private_beside_another_cluster(ray_cluster, job_folder, storage, monkeypatch):
    """Default ports in use, another cluster running and named in the environment: neither is touched or joined."""
    other = ray_cluster.get_runtime_context().gcs_address
    monkeypatch.setenv("RAY_ADDRESS", other)
    with contextlib.ExitStack() as stack:
        for port in DEFAULT_PORTS:
            occupy(port, stack)
        done = subprocess.run(
            command("run", "--", "python", "report.py"), cwd=job_folder, capture_output=True, text=True, check=False
        )
    assert done.returncode == 7, done.stdout + done.stderr
    report = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("REPORT")).removeprefix("REPORT"))
    assert report["num_nodes"] == 1
    assert report["address"] != other
    assert report["storage"] == str(storage)
    assert not Path(report["upload"]).exists()
    assert not [p for p in psutil.process_iter() if has_mark(p, report["mark"])]
    assert not state_file().exists()
    assert (storage / "ray_logs").is_dir()  # the job failed
    assert ray_cluster.get(ray_cluster.remote(lambda: 1).remote()) == 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_job_prints_for_the_terminal_of_its_reader(storage):
    """A log has the whole text; the reader of `make demo` has a terminal, though the job has none."""
    program = "from gram_platform.engine.local_cluster.__main__ import main; raise SystemExit(main())"
    reports = "from rich.console import Console as C; c = C(); print('REPORT', c.is_terminal, c.width, c.color_system)"
    job = ("run", "--", sys.executable, "-c", reports)
    code, printed = pseudo_terminal.run(*job, program=program, columns=87)
    assert code == 0
    assert re.findall(r"REPORT ([\w ]+\w)", pseudo_terminal.plain(printed)) == ["True 87 256"]
    done = subprocess.run(command(*job), cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert re.search("REPORT False .* None", done.stdout)


@pytest.mark.ray
def test_a_ray_that_answers_without_its_token_is_not_used(storage, monkeypatch):
    """As an older one does, which knows no token."""
    private = head.environment
    monkeypatch.setattr(head, "environment", lambda cluster: private(cluster) | {"RAY_AUTH_MODE": "disabled"})
    with pytest.raises(RuntimeError, match="without its token"):
        head.start()
    assert read_state() is None


def has_mark(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get(MARK) == mark
    return False


@pytest.mark.ray
def test_a_signal_ends_everything(job_folder, storage):
    with sleeping_job(job_folder) as (process, cluster):
        with pytest.raises(urllib.error.HTTPError, match="401"):  # a client without the token
            urllib.request.urlopen(cluster.address + "/api/jobs/", timeout=60)
        port = int(cluster.address.rpartition(":")[2])
        assert {c.laddr.ip for c in psutil.net_connections("tcp") if c.laddr.port == port} == {"127.0.0.1"}
        second = subprocess.run(
            command("run", "--", "true"), cwd=job_folder, capture_output=True, text=True, check=False
        )
        assert second.returncode == 1
        assert "another demo" in second.stdout
        assert processes_of(cluster)
        process.send_signal(signal.SIGTERM)
        assert exit_code(process, errors_of(job_folder)) == 128 + signal.SIGTERM
        assert not processes_of(cluster)
        assert not cluster.folder.exists()


@pytest.mark.slow
@pytest.mark.ray
def test_leftovers_of_a_killed_run_are_ended_and_keep_keeps(job_folder, storage):
    with sleeping_job(job_folder) as (process, killed):
        process.kill()
        process.wait()
        assert processes_of(killed)
        done = subprocess.run(
            command("run", "--keep", "--", "true"), cwd=job_folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not processes_of(killed)
        kept = read_state()
        page = next(x for x in done.stdout.splitlines() if "MLflow:" in x).split()[-1]
        assert urllib.request.urlopen(page, timeout=60).status == 200
        stopped = subprocess.run(command("stop"), capture_output=True, text=True, check=False)
        assert stopped.returncode == 0, stopped.stderr
        assert not processes_of(kept)
        assert not state_file().exists()


def test_stop_spares_whoever_has_the_pid_now(storage, job_folder):
    """A state file whose owner is dead, its pid given to another process, ends neither that nor anything else."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        write_state(Cluster("0" * 32, bystander.pid, time.time() - 1e6, "http://127.0.0.1:1"))
        done = subprocess.run(command("stop"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert bystander.poll() is None
        assert not state_file().exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_stop_with_nothing_running(storage, job_folder):
    for text in (None, "{", '{"mark": 1}', "[1]", "[" * 100_000):
        if text is not None:
            state_file().parent.mkdir()
            state_file().write_text(text)
        done = subprocess.run(command("stop"), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_nothing_in_the_storage_says_what_to_remove(storage, tmp_path):
    """Whoever can write the storage must not remove a folder of this machine, nor of another that shares it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    fields = {"mark": "0" * 32, "owner_pid": 2**22 + 1, "owner_created": 0.0, "folder": str(home), "address": ""}
    (storage / "local_cluster.json").write_text(json.dumps(fields))
    assert read_state() is None
    assert subprocess.run(command("stop"), capture_output=True, check=False).returncode == 0
    assert (home / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_others_may_change_is_refused(storage, tmp_path, monkeypatch):
    """Another user of the machine made it first, or made a link of its name."""
    monkeypatch.setattr(state, "TEMPORARY", tmp_path)
    folder = state.private_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(ValueError, match="mode 0700"):
        read_state()
    folder.rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match="mode 0700"):
        write_state(Cluster("f" * 32, os.getpid(), 0.0, ""))


def test_two_starts_at_once_are_not_mixed(storage):
    first = Cluster("f" * 32, os.getpid(), 0.0, "")
    write_state(first)
    with pytest.raises(ValueError, match="no other demo"):
        write_state(Cluster("e" * 32, os.getpid(), 0.0, ""))
    assert read_state() == first
    stop(first)
    assert read_state() is None


@pytest.mark.parametrize("place", ["a file", "~nobody-of-this-name/x"])
def test_a_storage_that_is_no_folder(place, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("x")
    monkeypatch.setenv("GRAM_STORAGE", place if place.startswith("~") else str(tmp_path / place))
    for arguments in (("stop",), ("run", "--", "true")):
        done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: storage=")
        assert place in done.stderr


def test_marked_descendants_are_found(storage):
    """A process that left its session and whose parent died is still found by the mark."""
    cluster = Cluster("f" * 32, os.getpid(), 0.0, "")
    script = "sleep 60 & exit 0"
    subprocess.run(["sh", "-c", script], env=os.environ | {MARK: cluster.mark}, start_new_session=True, check=True)
    assert len(processes_of(cluster)) == 1
    assert stop(cluster) == 1
    assert not processes_of(cluster)
