"""What the pages say of a cluster, done from a laptop: a study, a grid, runs across hosts, status,
report, stop.
"""

import time

import pytest

from tests.cluster.box.cluster import ROOT, no_cluster, running_cluster
from tests.cluster.box.results import MIRRORED, SCALING, SMALL, TOLERANCE, leaves, seen

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(no_cluster()), reason=no_cluster() or "never"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("box")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(cluster):
    """What the small study gives on one host, without Ray."""
    cluster.on_laptop(*SMALL, "--in-process", "--storage", "/root/alone", timeout_s=300)
    return seen(cluster, "/root/alone")["results"]


def test_hosts_of_the_cluster_do_not_see_the_project(cluster):
    for name in ("head", *cluster.workers):
        assert "No module named" in cluster[name].run(
            "python", "-c", "import gram_platform", check=False
        )
        assert "No such file" in cluster[name].run("ls", ROOT, check=False)


def test_a_study_its_status_its_report_and_again(cluster, alone):
    assert "trained in" in cluster.submit(*SMALL, *cluster.places)
    first = seen(cluster, cluster.storage)
    assert first["results"] == alone
    assert first["hosts"] == cluster.workers
    assert "5 complete; 7 of 7 evaluations complete" in cluster.on_laptop(
        "gram", "status", "--storage", cluster.storage
    )
    report = cluster.on_laptop("gram", "report", "scaling", *cluster.places)
    assert "read from MLflow" in report
    assert f"{cluster.storage}/studies/scaling/report.html" in report
    cluster.on_laptop("python", "-c", MIRRORED, cluster.storage, cluster.tracking_uri)
    again = cluster.submit(*SMALL, *cluster.places)
    assert "trained in" not in again
    assert seen(cluster, cluster.storage) == first
    cluster.on_laptop("python", "-c", MIRRORED, cluster.storage, cluster.tracking_uri)


def test_a_grid(cluster):
    storage = "s3://gram/grid"
    places = ("--storage", storage, "--tracking-uri", cluster.tracking_uri)
    log = cluster.submit(
        "python", "experiments/lr_bs_grid.py", "--preset", "smoke", *places, timeout_s=800
    )
    assert "report.html" in log
    found = seen(cluster, storage)
    assert set(found["attempts"].values()) == {1}
    assert found["hosts"] == cluster.workers


def test_runs_of_two_ranks_on_two_hosts(cluster, alone):
    """A worker has one core, so the two ranks of each run are on two hosts, and speak through the
    network.
    """
    storage = "s3://gram/two"
    places = ("--storage", storage, "--tracking-uri", cluster.tracking_uri)
    cluster.submit(*SMALL, "--num-workers", "2", *places, timeout_s=800)
    for name in cluster.workers:
        assert "ray-train-app-worker" in cluster[name].run(
            "ls", "/tmp/ray/session_latest/logs/train"
        ), f"no rank on {name}"
    assert dict(leaves(seen(cluster, storage)["results"])) == pytest.approx(
        dict(leaves(alone)), abs=TOLERANCE
    )


def test_a_job_is_stopped_and_submitted_again(cluster, alone, tmp_path):
    storage = "s3://gram/stopped"
    log, places = (
        tmp_path / "job.log",
        ("--storage", storage, "--tracking-uri", cluster.tracking_uri),
    )
    # Long enough to be stopped; the small study is a part of it.
    study = (*SCALING, "--sizes", "tiny")
    job = cluster.start_job(log, *study, *places, options=("--submission-id", "first"))
    deadline = time.monotonic() + 300
    while "trained in" not in log.read_text():
        assert job.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)
    said = cluster.on_laptop("ray", "job", "stop", "first")
    assert "was stopped" in said
    before = seen(cluster, storage)
    finished = {node for node, result in before["results"].items() if result}
    assert finished
    cluster.submit(*study, *places, timeout_s=900)
    after = seen(cluster, storage)
    assert len(finished) < len(after["results"])
    assert all(after["results"].values())
    assert {node: after["results"][node] for node in alone} == alone
    for run_id in finished & before["attempts"].keys():
        assert after["attempts"][run_id] == before["attempts"][run_id], (
            f"{run_id} was trained again"
        )
