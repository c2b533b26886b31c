"""`make box`: brings a cluster of five hosts up on this machine, runs the smoke study on it, and
takes it down.

    python -m tests.cluster.box [any flags of the study, such as --methods gram]

Needs root, and the extras `dev` and `s3-tests`. Exit code 1 and a sentence where the machine cannot
have it.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.box.cluster import no_cluster, running_cluster

STUDY = ("python", "experiments/scaling.py", "--preset", "smoke")


def main(flags: list[str]) -> int:
    if why_not := no_cluster():
        print(f"error: {why_not}", file=sys.stderr)
        return 1
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[box {time.monotonic() - began:4.0f} s] {text}", flush=True)

    say("starting hosts: storage (S3, PostgreSQL, MLflow), head, worker1, worker2, laptop")
    with (
        tempfile.TemporaryDirectory(prefix="gram-box-") as logs,
        running_cluster(Path(logs)) as cluster,
    ):
        say(f"Ray has the nodes {', '.join(cluster.nodes())}; on the laptop:")
        for command in (
            ["ray", "job", "submit", "--working-dir", ".", "--", *STUDY, *flags, *cluster.places],
            ["gram", "status", "--storage", cluster.storage],
            ["gram", "report", "scaling", *cluster.places],
        ):
            say(" ".join(command))
            cluster.show(*command)
        say("taking everything down")
    say("nothing is left")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
