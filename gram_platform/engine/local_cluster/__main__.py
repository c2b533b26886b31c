"""Runs `make demo` and `make stop`.

python -m gram_platform.engine.local_cluster run [--keep] -- python experiments/scaling.py --preset demo
python -m gram_platform.engine.local_cluster stop

Leaves nothing running, however the job or this process ends, unless `--keep` is given: a signal stops the cluster
first, and the next `run` or `stop` reads the state file and ends whatever a `kill -9` left.
"""

import argparse
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

from gram_platform.config import terminal
from gram_platform.config.crash_safe import A_FILE, A_FOLDER, kind_of, remove_whole
from gram_platform.config.endings import exit_codes, outlive_output
from gram_platform.engine.local_cluster.head import free_port, spawn, start, submit
from gram_platform.engine.local_cluster.state import (
    Cluster,
    default_storage,
    kill_processes,
    local_folder,
    read_state,
    stop,
)
from gram_platform.engine.local_cluster.ui import (
    HOST,
    LINK_PAGE,
    MLFLOW_PORT,
    RUNS_PAGE,
    answers,
    mlflow_command,
    write_link_page,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWNER_STOP_TIMEOUT_S = 20.0


def say(text: str) -> None:
    terminal.say(f"[local cluster] {text}")


def raise_exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def run(command: list[str], keep: bool) -> int:
    """Runs the command as a job on a private cluster and returns the job's exit code."""
    before = read_state()
    if before and before.owner_is_alive():
        say(f"another demo uses this storage (process {before.owner_pid}); wait for it, or stop it with `make stop`")
        return 1
    if before:
        say(f"ended {stop(before)} processes left by an earlier demo")
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            # Under `nohup` it stays ignored.
            signal.signal(number, raise_exit)
    code, started = 1, time.monotonic()
    try:
        cluster = start()
        say(f"Ray is up after {time.monotonic() - started:.1f} s; storage {default_storage()}")
        code = submit(cluster, command)
        if code:
            say(f"the job ended with exit code {code}; run the same command again to continue")
        if keep:
            announce(cluster, serve_mlflow(cluster))
    except SystemExit as interrupted:
        code, keep = interrupted.code, False
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if not keep:
            take_down(failed=code != 0)
    return code


def take_down(failed: bool) -> None:
    """Ends the recorded cluster; keeps Ray's logs of a failed job in the storage."""
    cluster = read_state()
    if cluster is None:
        return
    kill_processes(cluster)
    try:
        if failed:
            keep_logs(cluster)
    finally:
        stop(cluster)
    if (database := local_folder() / "mlflow.db").exists():
        # Imported here: it takes a second.
        from gram_platform.tracking.connection import opened_by
        from gram_platform.tracking.database import database_uri

        binaries = Path(sys.executable).parent
        say(f"everything is stopped; to see MLflow's pages: {binaries}/{opened_by(database_uri(database))}")


def keep_logs(cluster: Cluster) -> None:
    logs, target = cluster.ray_folder / "session_latest" / "logs", local_folder() / "ray_logs"
    if logs.is_dir():
        remove_whole(target)
        # A storage has only files and folders.
        shutil.copytree(logs, target, ignore=_special)
        say(f"Ray's logs are in {target}")


def _special(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if kind_of(Path(folder) / name) not in (A_FILE, A_FOLDER)]


def serve_mlflow(cluster: Cluster) -> str:
    """Starts MLflow's pages as part of the cluster and waits for them; returns their address."""
    port, log, database = free_port(MLFLOW_PORT), cluster.folder / "mlflow.log", local_folder() / "mlflow.db"
    server, address = spawn(cluster, mlflow_command(database, port), log), f"http://{HOST}:{port}"
    if not answers(server, address):
        return f"did not start: see {log}"
    write_link_page(database, address)
    return address


def announce(cluster: Cluster, mlflow_address: str) -> None:
    say(f"MLflow: {mlflow_address}{RUNS_PAGE if mlflow_address.startswith('http') else ''}")
    say(f"Ray:    {cluster.address} (its pages ask for the token in {cluster.token_file}); to submit another job:")
    binary = Path(sys.executable).parent / "ray"
    token = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={cluster.token_file}"
    say(f"  {token} {binary} job submit --address {cluster.address} --working-dir . -- python ...")
    say("both keep running until `make stop`")


def stop_all() -> int:
    """Ends the recorded cluster, and its demo if that still runs."""
    cluster = read_state()
    if cluster is None:
        say("nothing is running")
        return 0
    if cluster.owner_is_alive():
        owner = psutil.Process(cluster.owner_pid)
        owner.terminate()
        psutil.wait_procs([owner], timeout=OWNER_STOP_TIMEOUT_S)
    say(f"ended {stop(cluster)} processes")
    if (database := local_folder() / "mlflow.db").with_name(LINK_PAGE).exists():
        write_link_page(database)
    return 0


def main() -> int:
    """Returns the job's exit code; 2 for bad input, without doing anything."""
    parser = argparse.ArgumentParser(
        prog="python -m gram_platform.engine.local_cluster", description=__doc__.split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run_parser = commands.add_parser("run", help="run a command as a job on a private local Ray cluster")
    run_parser.add_argument("--keep", action="store_true", help="leave Ray, and MLflow's pages, running afterwards")
    run_parser.add_argument("job", nargs="+", help="the command, after --")
    commands.add_parser("stop", help="stop only what a run left running")
    arguments = parser.parse_args()
    outlive_output()
    with exit_codes():
        return run(arguments.job, arguments.keep) if arguments.command == "run" else stop_all()


if __name__ == "__main__":
    sys.exit(main())
