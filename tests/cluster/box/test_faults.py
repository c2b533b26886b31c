"""What a fault costs a study: it ends, with the bytes of an undisturbed one.

`FAULTS` has for each what the time-outs of Ray 2.60 and of ours predict, written before the first
run. Ray's head asks a node for its health every 3 s, waits 10 s for the answer, and takes the node
for dead after five failures: 15 s where the connection is refused, 50 to 65 s where nobody answers.
A raylet or a driver that does not reach the head for 60 s ends. A lease lasts 30 s, ranks wait 600
s for one another, operations of the storage are retried for 300 s. Checkpoints are written every 5
s. Each test prints the seconds to the next step, and the steps that were made twice.
"""

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.box.cluster import AS_OWNER, Cluster, no_cluster, running_cluster
from tests.cluster.box.hosts import Host
from tests.cluster.box.results import MIRRORED, SCALING, TOLERANCE, leaves, seen
from tests.cluster.box.watch import Place, Watch
from tests.tracking.servers import postgres_programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.skipif(bool(no_cluster()), reason=no_cluster() or "never"),
]
# Five runs, two of them of half a minute, and seven evaluations: deeper than the smoke study, in
# more and smaller steps.
LONGER = (
    "--sizes",
    "tiny",
    "--seeds",
    "1",
    "--set",
    "sizes[tiny].num_layers=12",
    "sizes[tiny].batch_size=4",
)
STUDY = (*SCALING, *LONGER, "--checkpoint-every", "5", "--methods", "baseline")
STEP = 60  # of the run that is disturbed
START_S, STUDY_S = 180, 600
WORKER, DRIVER = "the run's host", "the driver's host"
FORGET = """
import sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
client.rename_experiment(client.get_experiment_by_name("gram").experiment_id, sys.argv[2])
"""
# What a driver says whose study ends while MLflow is away: `gram sync` sends the rest.
AWAY_AT_THE_END = "the tables are not in MLflow"
NUMBERS = itertools.count()  # of storages
STOP_POSTGRES = f"cd /var/lib/gram-pg && {AS_OWNER} $0/pg_ctl stop -D data -m immediate"

Act = Callable[[Cluster, str], None]


def nothing(cluster: Cluster, host: str) -> None:
    """Heals nothing: hosts are restored before the next study."""


def impair_workers(delay_ms: float, loss: float) -> Act:
    def impair(cluster: Cluster, host: str) -> None:
        for name in cluster.workers:
            cluster[name].impair(delay_ms, loss)

    return impair


def mend_workers(cluster: Cluster, host: str) -> None:
    for name in cluster.workers:
        cluster[name].mend()


def of_host(act: Callable[[Host], None]) -> Act:
    return lambda cluster, host: act(cluster[host])


cut, mend, die = map(of_host, (Host.cut, Host.mend, Host.power_off))
suspend, resume, fill_disk = map(of_host, (Host.suspend, Host.resume, Host.fill_disk))


def rejoin(cluster: Cluster, host: str) -> None:
    cluster.rejoin(host)


def kill_raylet(cluster: Cluster, host: str) -> None:
    cluster[host].run("pkill", "-KILL", "-x", "raylet")


def stop_postgres(cluster: Cluster, host: str) -> None:
    cluster[host].run("sh", "-c", STOP_POSTGRES, postgres_programs())


def start_postgres(cluster: Cluster, host: str) -> None:
    cluster.start_postgres()


def stop_mlflow(cluster: Cluster, host: str) -> None:
    cluster[host].kill(cluster.servers["mlflow"])


@dataclass(frozen=True)
class Fault:
    """What happens to a host, when and for how long, and what the time-outs predict."""

    name: str
    predicted: str
    begin: Act
    heal: Act = nothing
    lasts_s: float | None = None  # None: until the study is over
    host: str = WORKER
    in_a_run: bool = True  # False: before the study is submitted
    num_ranks: int = 1
    may_fail: bool = False  # the documents say to submit again
    # After which a person ends `ray job submit`, which does not learn of the end.
    client_s: float | None = None

    @property
    def limit_s(self) -> float:
        return START_S + STUDY_S * (1 + self.may_fail) + (self.lasts_s or 0)


FAULTS = (
    Fault("link cut 10 s", "TCP repeats what was lost: 0 to 13 s, nothing repeated", cut, mend, 10),
    Fault(
        "link cut 60 s",
        "lease lost at 30 s; Ray keeps the node if it has not given it up at 50 to 65 s: the run"
        " goes on within 60 to 100 s, there or on the other worker, from its last checkpoint: 5 s"
        " of work and the cut repeated",
        cut,
        mend,
        60,
    ),
    Fault(
        "link cut for good",
        "Ray gives the node up after 50 to 65 s, then 10 s: 5 s of work repeated",
        cut,
    ),
    Fault("host dead", "as a link cut for good: 60 to 80 s, 5 s of work repeated", die),
    Fault(
        "raylet killed",
        "its worker ends; the lease lasts 30 s: 30 to 45 s, 5 s of work repeated",
        kill_raylet,
    ),
    Fault(
        "host suspended 120 s",
        "as a link cut for good; it wakes after its lease, ends as held, and publishes nothing",
        suspend,
        resume,
        120,
    ),
    Fault(
        "disk of a worker full",
        "the run's next checkpoint fails, and every other run there; the study ends with 1: submit"
        " again",
        fill_disk,
        may_fail=True,
    ),
    Fault(
        "20 ms and .5% loss for the whole study",
        "slower, nothing repeated",
        impair_workers(20, 0.005),
        in_a_run=False,
    ),
    Fault(
        "200 ms and 5% loss for 60 s",
        "requests of the storage take seconds, no lease of 30 s is lost: nothing repeated",
        impair_workers(200, 0.05),
        mend_workers,
        60,
    ),
    Fault(
        "storage host away 60 s",
        "every run ends as held when its lease of 30 s is lost, and starts again from its last"
        " checkpoint 60 to 100 s after the cut",
        cut,
        mend,
        60,
        "storage",
    ),
    Fault(
        "storage host away 6 min",
        "operations are given up after 300 s: the driver ends with an error: submit again",
        cut,
        mend,
        360,
        "storage",
        may_fail=True,
    ),
    Fault(
        "PostgreSQL away 10 s",
        "MLflow refuses for 10 s, the driver asks again after 60 s: 0 s",
        stop_postgres,
        start_postgres,
        10,
        "storage",
    ),
    Fault(
        "MLflow away for the whole study",
        "0 s; `gram sync` sends everything",
        stop_mlflow,
        host="storage",
        in_a_run=False,
    ),
    Fault(
        "head dead",
        "the driver is there: submit again, to a new head",
        die,
        host="head",
        may_fail=True,
        client_s=20,
    ),
    Fault(
        "driver's host dead",
        "Ray gives the node up after 50 to 65 s and the job has failed: submit again",
        die,
        host=DRIVER,
        may_fail=True,
        client_s=90,
    ),
    Fault(
        "link cut 10 s, two ranks",
        "gloo waits, TCP repeats what was lost: 0 to 13 s, nothing repeated",
        cut,
        mend,
        10,
        num_ranks=2,
    ),
    Fault(
        "host dead and replaced, two ranks",
        "Ray gives the node up after 50 to 65 s; 30 s for a new group once the "
        "node is back: 5 s of work repeated",
        die,
        rejoin,
        30,
        num_ranks=2,
    ),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("box"), laptops=("laptop", "laptop2")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(cluster) -> dict:
    """What the study gives on one host, undisturbed and without Ray."""
    cluster.on_laptop(*STUDY, "gram", "--in-process", "--storage", "/root/alone", timeout_s=STUDY_S)
    return seen(cluster, "/root/alone")


@pytest.fixture
def storage(cluster) -> Iterator[str]:
    """An empty storage on a cluster that is whole, and an MLflow without nodes."""
    restore(cluster)
    name = f"fault{next(NUMBERS)}"
    yield f"s3://gram/{name}"
    restore(cluster)
    cluster["storage"].run(
        "python", "-c", FORGET, cluster.tracking_uri, name, env=cluster.variables
    )


def restore(cluster: Cluster) -> None:
    """Makes every host, link, disk, server and node of Ray as at the start; no driver is left."""
    for host in cluster.box.hosts.values():
        if host.is_up:
            host.resume()
            host.mend()
            host.free_disk()
            host.run("pkill", "-KILL", "-f", "experiments/scaling.py", check=False)
    for server, start in (("postgres", cluster.start_postgres), ("mlflow", cluster.start_mlflow)):
        if cluster.servers[server].poll() is not None:
            start()
    lost = (
        {"head", *cluster.workers}
        if not cluster["head"].is_up
        else set(cluster.workers) - set(cluster.nodes())
    )
    for name in sorted(lost):  # the head comes first
        cluster.rejoin(name)


def end_of(job: subprocess.Popen, log: Path) -> int:
    """The exit code of a job's client."""
    try:
        return job.wait(STUDY_S)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"after {STUDY_S} s: {log.read_text()[-6000:]}") from error


def places_of(cluster: Cluster, storage: str) -> tuple[str, ...]:
    return ("--storage", storage, "--tracking-uri", cluster.tracking_uri)


def host_of(fault: Fault, cluster: Cluster, place: Place | None) -> str:
    if fault.host == WORKER:
        return place.host if place else ""
    if fault.host != DRIVER:
        return fault.host
    (driver,) = (
        n
        for n in cluster.workers
        if cluster[n].run("pgrep", "-f", "experiments/scaling.py", check=False)
    )
    return driver


@pytest.mark.parametrize(
    "fault", [pytest.param(f, id=f.name, marks=pytest.mark.timeout(f.limit_s)) for f in FAULTS]
)
def test_a_study_survives(fault, cluster, alone, storage, tmp_path, capsys):
    methods = ("gram",) if fault.num_ranks == 1 else ("--num-workers", str(fault.num_ranks))
    study = (*STUDY, *methods, *places_of(cluster, storage))
    options = ("--entrypoint-resources", '{"driver": 1}') if fault.host == DRIVER else ()
    log = tmp_path / "job.log"
    with Watch(cluster, storage, tmp_path / "watch.log") as watch:
        began = time.time()
        if not fault.in_a_run:
            fault.begin(cluster, fault.host)
        job = cluster.start_job(log, *study, options=options)
        place = watch.place(STEP, START_S) if fault.in_a_run else None
        since, host = time.time(), host_of(fault, cluster, place)
        finished = watch.finished(since)
        if fault.in_a_run:
            fault.begin(cluster, host)
        if fault.lasts_s is not None:
            time.sleep(fault.lasts_s)
            fault.heal(cluster, host)
        if fault.client_s is not None:
            time.sleep(fault.client_s)
            cluster["laptop"].kill(job)
        code, ended = end_of(job, log), time.time()
        assert code == 0 or fault.may_fail, log.read_text()[-6000:]
        if code:
            restore(cluster)
            cluster.submit(*study, timeout_s=STUDY_S)
        is_away = AWAY_AT_THE_END in log.read_text()
        assert is_away or fault.begin is not stop_mlflow
        if is_away:
            restore(cluster)
            cluster.on_laptop("gram", "sync", *places_of(cluster, storage))
        found = seen(cluster, storage)
        with capsys.disabled():
            print(f"\n{fault.name} on {host}: predicted {fault.predicted}")
            print(
                f"  job ended with {code} after {ended - began:.0f} s, all after"
                f" {time.time() - began:.0f} s"
            )
            if place:
                print(
                    "  next step after"
                    f" {watch.next_step_s(place, found['winners'][place.run_id], since):.0f} s"
                )
            print(
                "  steps made twice:"
                f" {[watch.repeated_steps(run_id) for run_id in found['attempts']]}",
                flush=True,
            )
    check(cluster, storage, found, alone, fault.num_ranks)
    assert {run_id: found["attempts"][run_id] for run_id in finished} == finished, (
        "a finished run was trained again"
    )
    if fault.begin is suspend:
        assert found["winners"][place.run_id] != place.attempt, "a process that woke published"


def check(cluster: Cluster, storage: str, found: dict, alone: dict, num_ranks: int = 1) -> None:
    """Every node has the reference's result, MLflow each node once, and the table is the same."""
    if num_ranks == 1:
        assert found["results"] == alone["results"]
        assert found["table"] == alone["table"]
    else:
        expected = {node: alone["results"][node] for node in found["results"]}
        assert dict(leaves(found["results"])) == pytest.approx(
            dict(leaves(expected)), abs=TOLERANCE
        )
    cluster.on_laptop("python", "-c", MIRRORED, storage, cluster.tracking_uri)


@pytest.mark.timeout(START_S + 2 * STUDY_S)
def test_two_laptops_submit_the_same_study(cluster, alone, storage, tmp_path):
    """Predicted: each run is trained once, because leases last 30 s; both jobs end, the second one
    idle a little.
    """
    study = (*STUDY, "gram", *places_of(cluster, storage))
    logs = {host: tmp_path / f"{host}.log" for host in ("laptop", "laptop2")}
    jobs = {host: cluster.start_job(log, *study, host=host) for host, log in logs.items()}
    assert {host: end_of(job, logs[host]) for host, job in jobs.items()} == dict.fromkeys(logs, 0)
    found = seen(cluster, storage)
    check(cluster, storage, found, alone)
    assert set(found["attempts"].values()) == {1}
