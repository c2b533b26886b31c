"""Says how `mlflow ui` is started on a storage's database, and keeps the page in the storage that leads to it.

A report is opened as a file, MLflow listens at some port, and a browser lets a page of a file read no other file. So
links of reports go to LINK_PAGE beside the database, with the address of MLflow's page as their fragment. It sends the
browser on while MLflow is open, and says else what opens it: a plain link, in every browser, without memory.
"""

import subprocess
import sys
import time
from contextlib import suppress
from html import escape
from pathlib import Path

from gram_platform.config.crash_safe import whole_file
from gram_platform.config.terminal import warn
from gram_platform.engine.local_cluster.head import open_directly

LINK_PAGE = "mlflow.html"
HOST, MLFLOW_PORT = "127.0.0.1", 5000
ANSWER_TIMEOUT_S = 60.0
# Without it MLflow opens on traces of language models.
RUNS_PAGE = "/#/experiments/1/runs?workflowType=machine_learning"
PAGE_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>MLflow</title><style>:root { color-scheme: light dark; font: 16px/1.5 system-ui; } a { color: inherit; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }</style><main><h1>MLflow</h1>
"""
USUAL = f"""<p>Or, where it listens at its usual port: <a href="http://{HOST}:{MLFLOW_PORT}/">MLflow's page</a>.</p>
<script>document.querySelector("a").href += location.hash</script>
"""


def link_page(address: str, command: str) -> bytes:
    """Makes the page that sends a browser on to MLflow at `address`; "" for the page that says what opens MLflow."""
    closed = f"<p>MLflow is closed. This command opens it; then follow the link again:</p><pre>{escape(command)}</pre>"
    opened = f'<p><a href="{address}/">Open</a></p><script>location.replace("{address}/" + location.hash)</script>\n'
    return (PAGE_HEAD + (opened if address else f"{closed}\n{USUAL}")).encode()


def write_link_page(database: Path, address: str = "") -> None:
    """Writes the page beside a storage's database: MLflow is open at `address`, or closed. Warns where it cannot."""
    # Imported here: it takes a second.
    from gram_platform.tracking.connection import opened_by
    from gram_platform.tracking.database import database_uri

    try:
        with whole_file(database.with_name(LINK_PAGE)) as path:
            Path(path).write_bytes(link_page(address, opened_by(database_uri(database))))
    except OSError as error:
        warn(f"{LINK_PAGE} cannot be written, so links of reports do not find MLflow: {error}")


def leave_link_page(database: Path, address: str) -> None:
    """Says that MLflow is closed, unless the page leads to an MLflow that was opened after the one at `address`."""
    page = database.with_name(LINK_PAGE)
    if not page.is_file() or page.read_bytes() == link_page(address, ""):
        write_link_page(database)


def mlflow_command(database: Path, port: int) -> list[str]:
    """Returns the command of MLflow's server, for this machine alone."""
    from gram_platform.tracking.database import database_uri

    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", database_uri(database)]
    return [*command, "--host", HOST, "--port", str(port), "--workers", "1"]


def answers(server: subprocess.Popen, address: str) -> bool:
    """Waits until the server answers at its address; False if it ends before, or does not answer in time."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), open_directly(address + "/health", 5.0):
            return True
        time.sleep(0.2)
    return False
