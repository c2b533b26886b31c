"""Writes the page that forwards links in reports to MLflow, whatever MLflow's port is.

Browsers open reports as files, and such pages cannot read MLflow's address from another file. So
reports link to LINK_PAGE next to the database, with the path in MLflow as the URL fragment. While
MLflow is running, LINK_PAGE redirects to it. Otherwise it shows the command that starts MLflow.
"""

from html import escape
from pathlib import Path

from gram_platform.config.crash_safe import whole_file
from gram_platform.config.terminal import warn

LINK_PAGE = "mlflow.html"
HOST, MLFLOW_PORT = "127.0.0.1", 5000
PAGE_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>MLflow</title>
<style>:root { color-scheme: light dark; font: 16px/1.5 system-ui; } a { color: inherit; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }</style><main><h1>MLflow</h1>
"""
USUAL = f"""<p>Or, where it listens at its usual port:
<a href="http://{HOST}:{MLFLOW_PORT}/">MLflow's page</a>.</p>
<script>document.querySelector("a").href += location.hash</script>
"""


def link_page(address: str, command: str) -> bytes:
    """Returns a page that redirects to `address`. If this is "", the page shows `command`."""
    closed = (
        "<p>MLflow is closed. This command opens it; then follow the link"
        f" again:</p><pre>{escape(command)}</pre>"
    )
    opened = (
        f'<p><a href="{address}/">Open</a></p><script>location.replace("{address}/" +'
        " location.hash)</script>\n"
    )
    return (PAGE_HEAD + (opened if address else f"{closed}\n{USUAL}")).encode()


def write_link_page(database: Path, address: str = "") -> None:
    """Writes LINK_PAGE. `address` is "" if MLflow is not running. Warns if writing fails."""
    # This import takes a second.
    from gram_platform.tracking.connection import explain_opening
    from gram_platform.tracking.database import database_uri

    try:
        with whole_file(database.with_name(LINK_PAGE)) as path:
            Path(path).write_bytes(link_page(address, explain_opening(database_uri(database))))
    except OSError as error:
        warn(f"{LINK_PAGE} cannot be written, so links of reports do not find MLflow: {error}")


def leave_link_page(database: Path, address: str) -> None:
    """Says in LINK_PAGE that MLflow is closed, if the page is absent or redirects to `address`."""
    page = database.with_name(LINK_PAGE)
    if not page.is_file() or page.read_bytes() == link_page(address, ""):
        write_link_page(database)
