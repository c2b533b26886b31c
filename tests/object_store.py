"""An S3 of our own for a test: moto's server, whose buckets lie in memory, and the environment that
leads to it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

PATIENCE_S = 60.0


@contextlib.contextmanager
def running_s3(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Iterator[str]:
    """The URL of a new bucket, which this process and those that it starts reach through the usual
    variables.

    Skips the test where s3fs or moto is missing.
    """
    install = "pip install -c constraints.txt -c cluster/requirements.txt -e '.[s3-tests]'"
    for module in ("s3fs", "moto"):
        pytest.importorskip(module, reason=f"{module} is not installed: {install}")
    import s3fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    variables |= {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    variables |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_for(port, process)
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()  # the next test's server has another address
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, "moto's server ended"
        assert time.monotonic() < deadline, "moto's server does not listen"
        time.sleep(0.1)
