"""A cluster as `cluster/README.md` describes one, on the hosts of a box: nothing is shared but the
bucket.

    with running_cluster(tmp_path) as cluster:
        log = cluster.submit("python", "experiments/scaling.py", *cluster.places)
        cluster.on_laptop("gram", "status", "--storage", cluster.storage)
        cluster["worker1"].cut()

The host `storage` has PostgreSQL, an S3 server (moto, whose buckets lie in its memory) and MLflow;
`head` has the head of Ray, which takes no work; `worker1` and on have a core each and may be asked
for a driver; `laptop` submits, and alone sees the checkout. Jobs bring the package in their upload.
Logs of the servers go to a folder of this machine.
"""

import contextlib
import importlib.util
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster.box.hosts import Box, Host, Machine, why_not
from tests.tracking.servers import postgres_programs

SUBMIT = ("ray", "job", "submit", "--working-dir", ".")
ROOT = Path(__file__).resolve().parents[3]
START_S = 180
S3_PORT, MLFLOW_PORT, POSTGRES_PORT, JOBS_PORT, RAY_PORT = 9000, 5000, 5432, 8265, 6379
# Fixed, because a raylet waits only 15 s for the port that an agent chose: too short on a busy
# machine.
AGENT_PORTS = ("--runtime-env-agent-port=6380", "--dashboard-agent-grpc-port=6381")
AS_OWNER = (
    "setpriv --reuid=$(id -u postgres || id -u nobody) --regid=$(id -g postgres || id -g nobody)"
    " --clear-groups"
)
POSTGRES = f"""
mkdir -p /var/lib/gram-pg && cd /var/lib/gram-pg && chown $(id -u postgres || id -u nobody) .
[ -d data ] || {{ {AS_OWNER} $1/initdb -D data -U gram -A trust -E UTF8 --locale=C -N &&
    echo 'host all all samenet trust' >> data/pg_hba.conf; }}
exec {AS_OWNER} $1/postgres -D data -k /var/lib/gram-pg -h '*' -F
"""
LISTENS = """
import socket, sys, time
deadline = time.monotonic() + float(sys.argv[3])
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.1)
"""
DATABASES = """
import psycopg, sys
where = {"host": "localhost", "user": "gram", "dbname": "postgres"}
with psycopg.connect(**where, autocommit=True) as connection:
    for name in sys.argv[1:]:
        connection.execute(f"CREATE DATABASE {name}")
"""
BUCKET = "import s3fs; s3fs.S3FileSystem().mkdir('gram')"
NODES = """
import ray
ray.init(address="auto", log_to_driver=False, logging_level="error")
print("NODES", *sorted(node["NodeName"] for node in ray.nodes() if node["Alive"]))
"""


def no_cluster() -> str:
    """Why this machine cannot have the cluster, in one sentence; empty if it can."""
    missing = [name for name in ("s3fs", "moto", "psycopg") if not importlib.util.find_spec(name)]
    if missing:
        install = "pip install -c constraints.txt -c cluster/requirements.txt -e '.[dev,s3-tests]'"
        return f"not installed: {', '.join(missing)}: {install}"
    return why_not() or ("" if postgres_programs() else "PostgreSQL is not installed")


class Cluster:
    """The hosts with what runs on them. A server that died is started again by its method."""

    def __init__(self, box: Box, logs: Path) -> None:
        self.box, self.logs = box, logs
        self.storage, self.tracking_uri = "s3://gram/storage", f"http://storage:{MLFLOW_PORT}"
        self.optuna_uri = "postgresql+psycopg://gram@storage/optuna"
        self.places = ("--storage", self.storage, "--tracking-uri", self.tracking_uri)
        self.workers = [name for name in box.hosts if name.startswith("worker")]
        self.servers: dict[str, subprocess.Popen] = {}  # by what each is
        self._token = secrets.token_hex(32)

    def __getitem__(self, name: str) -> Host:
        return self.box[name]

    @property
    def variables(self) -> dict[str, str]:
        """The environment of everything on every host; credentials of the bucket are a cluster's
        own business.
        """
        aws = {"AWS_ENDPOINT_URL": f"http://storage:{S3_PORT}", "AWS_DEFAULT_REGION": "us-east-1"}
        aws |= {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "nothing"}
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
        # The memory monitor and the number of threads know nothing of the other hosts on this
        # machine.
        shared = {
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
        }
        # 30 s are too few on a busy machine.
        shared |= {"RAY_raylet_start_wait_time_s": str(START_S)}
        jobs = {"RAY_AUTH_MODE": "token", "RAY_API_SERVER_ADDRESS": f"http://head:{JOBS_PORT}"}
        return aws | quiet | shared | jobs

    def serve(
        self,
        name: str,
        what: str,
        port: int,
        *command: str | Path,
        env: dict[str, str] | None = None,
    ) -> None:
        """Starts a server on a host, and returns when it listens.

        Raises AssertionError with the end of its log when it does not.
        """
        log = self.logs / f"{name}-{what}.log"
        host = self[name]
        process = self.servers[what] = host.start(
            *command, log=log, env=self.variables | (env or {})
        )
        try:
            host.run("python", "-I", "-c", LISTENS, name, port, START_S, timeout_s=START_S + 10)
        except AssertionError as error:
            host.kill(process)
            raise AssertionError(f"{what} on {name}: {log.read_text()[-3000:]}") from error

    def start_postgres(self) -> None:
        """With the data that is there, if any."""
        self.serve(
            "storage", "postgres", POSTGRES_PORT, "sh", "-c", POSTGRES, "sh", postgres_programs()
        )

    def start_s3(self) -> None:
        """With an empty bucket."""
        self.serve(
            "storage",
            "s3",
            S3_PORT,
            "python",
            "-m",
            "moto.server",
            "-H",
            "0.0.0.0",
            "-p",
            str(S3_PORT),
        )
        self["storage"].run("python", "-c", BUCKET, env=self.variables)

    def start_mlflow(self) -> None:
        command = [
            "mlflow",
            "server",
            "--host",
            "0.0.0.0",
            "--port",
            str(MLFLOW_PORT),
            "--workers",
            "1",
        ]
        command += ["--backend-store-uri", "postgresql+psycopg://gram@storage/mlflow"]
        command += ["--artifacts-destination", "s3://gram/mlflow"]
        command += ["--allowed-hosts", f"storage,storage:{MLFLOW_PORT}"]
        self.serve(
            "storage",
            "mlflow",
            MLFLOW_PORT,
            *command,
            env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )

    def start_storage(self) -> None:
        self.start_postgres()
        self["storage"].run("python", "-c", DATABASES, "mlflow", "optuna")
        self.start_s3()
        self.start_mlflow()

    def start_node(self, name: str) -> None:
        """Ray on a host, as the head or as a worker, with a bounded share of this machine."""
        host = self[name]
        host.run(
            "sh", "-c", "mkdir -p .ray && umask 077 && printf %s $0 > .ray/auth_token", self._token
        )
        command = [
            "ray",
            "start",
            f"--node-ip-address={host.address}",
            f"--node-name={name}",
            "--disable-usage-stats",
        ]
        command += [*AGENT_PORTS, f"--memory={3 * 2**30}", f"--object-store-memory={100 * 2**20}"]
        if name == "head":
            command += ["--head", f"--port={RAY_PORT}", "--num-cpus=0"]
            command += ["--dashboard-host=0.0.0.0", f"--dashboard-port={JOBS_PORT}"]
        else:
            command += [
                f"--address={self['head'].address}:{RAY_PORT}",
                "--num-cpus=1",
                '--resources={"driver": 1}',
            ]
        host.run(*command, env=self.variables, timeout_s=START_S)

    def rejoin(self, name: str) -> None:
        """Starts a host that is down, and Ray on it anew, whatever of Ray is left there."""
        if self[name].is_up:
            self[name].kill_processes()
        else:
            self[name].boot()
        self.start_node(name)

    def start_ray(self) -> None:
        """Returns when the head knows all workers and accepts jobs."""
        for name in ("head", *self.workers):
            self.start_node(name)
        self["head"].run(
            "python", "-I", "-c", LISTENS, "head", JOBS_PORT, START_S, timeout_s=START_S + 10
        )
        deadline = time.monotonic() + START_S
        while len(nodes := self.nodes()) < 1 + len(self.workers):
            assert time.monotonic() < deadline, f"only {nodes} are there"
            time.sleep(1)

    def nodes(self) -> list[str]:
        """The names of the nodes that Ray counts as alive."""
        said = self["head"].run("python", "-c", NODES, env=self.variables, timeout_s=START_S)
        return said.split("NODES", 1)[1].splitlines()[0].split()

    def on_laptop(self, *command: str | Path, timeout_s: float = 120, check: bool = True) -> str:
        """The output of a command in the checkout; fails as `Host.run` does."""
        return self["laptop"].run(
            *command, timeout_s=timeout_s, check=check, env=self._on_laptop, cwd=ROOT
        )

    @property
    def _on_laptop(self) -> dict[str, str]:
        """Unbuffered: into a file, `ray job submit` shows a job's log only when the job is over."""
        return self.variables | {
            "RAY_AUTH_TOKEN": self._token,
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def show(self, *command: str | Path, timeout_s: float = 1800) -> None:
        """Runs a command in the checkout, with its output where this process has its own.

        Raises AssertionError where it fails.
        """
        process = self["laptop"].popen(command, None, env=self._on_laptop, cwd=ROOT)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            self["laptop"].kill(process)
            raise
        assert code == 0, f"{command} ended with {code}"

    def submit(
        self, *command: str | Path, options: Sequence[str] = (), timeout_s: float = 600
    ) -> str:
        """The log of a job, submitted from the laptop's checkout, once it is over; options of `ray
        job submit`.
        """
        return self.on_laptop(*SUBMIT, *options, "--", *command, timeout_s=timeout_s)

    def start_job(
        self, log: Path, *command: str | Path, options: Sequence[str] = (), host: str = "laptop"
    ) -> subprocess.Popen:
        """A job under way; its client, on a host with the checkout, writes to a file of this
        machine.
        """
        return self[host].start(
            *SUBMIT, *options, "--", *command, log=log, env=self._on_laptop, cwd=ROOT
        )


@contextlib.contextmanager
def running_cluster(
    logs: Path, num_workers: int = 2, laptops: Sequence[str] = ("laptop",)
) -> Iterator[Cluster]:
    """A cluster whose nodes are up."""
    workers = [Machine(f"worker{n}") for n in range(1, num_workers + 1)]
    with Box(
        Machine("storage"), Machine("head"), *workers, *(Machine(n, sees=(ROOT,)) for n in laptops)
    ) as box:
        cluster = Cluster(box, logs)
        cluster.start_storage()
        cluster.start_ray()
        yield cluster
