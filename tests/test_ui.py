"""`gram ui`: MLflow's pages of a storage at any port, where reports find them, and nothing left
behind."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from gram_platform.cli import main
from gram_platform.pages.link_page import leave_link_page, link_page, write_link_page
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.views import StudyLog, study_views
from tests.pages.site.browser import running_browser

PATIENCE_S = 180.0
ARGUMENTS = [sys.executable, "-c", "from gram_platform.cli import main; main()", "ui"]


@pytest.mark.parametrize(
    "flags", [("{}",), ("memory://ui",), ("{}/none",), ("{}", "--port", "70000")]
)
def test_what_cannot_be_opened_is_bad_input(tmp_path, flags):
    Store("memory://ui").open_for_writing()
    with pytest.raises(SystemExit) as ended:
        main(["ui", "--storage", *(flag.format(tmp_path) for flag in flags)])
    assert ended.value.code == 2


def test_the_page_that_leads_to_a_newer_mlflow_stays(tmp_path):
    database, page = tmp_path / "mlflow.db", tmp_path / "mlflow.html"
    first, second = "http://127.0.0.1:1", "http://127.0.0.1:2"
    write_link_page(database, first)
    write_link_page(database, second)
    leave_link_page(database, first)
    assert page.read_bytes() == link_page(second, "")
    leave_link_page(database, second)
    assert "MLflow is closed" in page.read_text()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


@pytest.mark.browser
def test_a_report_finds_mlflow_at_any_port_and_says_what_opens_it(tmp_path):
    """Through the page beside the database, from a report opened as a file."""
    report, page = tmp_path / "studies" / "scaling" / "report.html", tmp_path / "mlflow.html"
    report.parent.mkdir(parents=True)
    report.write_text('<a href="../../mlflow.html#/experiments/1/runs/abc?x=1">a run</a>')
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with running_browser(tmp_path) as browser:
        page.write_bytes(link_page("", "gram ui --storage '/my storage'"))
        browser.open(report)
        browser.click("document.querySelector('a')")
        assert browser.wait_for(
            "document.querySelector('pre')?.innerText === \"gram ui --storage '/my storage'\""
        )
        usual = browser.evaluate("document.querySelector('a').href")
        assert usual == "http://127.0.0.1:5000/#/experiments/1/runs/abc?x=1"
        page.write_bytes(link_page(address, "gram ui"))
        browser.open(report)
        browser.click("document.querySelector('a')")
        assert browser.wait_for(f"location.href === '{address}/#/experiments/1/runs/abc?x=1'")
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_newest_study_is_opened_and_ctrl_c_leaves_nothing(tmp_path):
    root, opened = tmp_path / "a storage", tmp_path / "opened"
    store = Store(root).open_for_writing()
    tracker = Tracker(default_tracking_uri(store.root))
    submission = {
        "command": "",
        "commit": "",
        "sources": "",
        "upload": "",
        "versions": {},
        "machine": "",
    }
    for name, started in (("a_newest", "2026-11-26"), ("older", "2026-11-25")):
        rows = [{**submission, "node_hours": 0.0, "started": started}]
        store.study_dir(name).write_json("study.json", {"submissions": rows})
        tracker.log_study(StudyLog(name, {}, {}, {}, views=study_views(name, "0", {}, ("core",))))
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{opened}"\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": str(browser), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*ARGUMENTS, "--storage", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        assert line.startswith(f"MLflow of {root}, a_newest: http://127.0.0.1:")
        page = line.split(": ")[1].strip()
        assert "viewStateShareKey=gram.a_newest.ratios" in page
        assert process.stdout.readline() == "Ctrl-C closes it\n"
        address = page.split("/#")[0]
        assert f'"{address}/"' in (root / "mlflow.html").read_text()
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert answer.status == 200
        until(opened.exists)
        assert opened.read_text().strip() == page
        port = address.rpartition(":")[2]
        taken = subprocess.run(
            [*command, "--port", port], capture_output=True, text=True, env=environment, check=False
        )
        assert (taken.returncode, "a free port" in taken.stderr) == (2, True)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, rest) == (0, "MLflow is closed\n")
        assert psutil.wait_procs(children, timeout=10)[1] == []
        assert "gram ui --storage" in (root / "mlflow.html").read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_the_server_ends_where_gram_ui_is_killed(tmp_path):
    store = Store(tmp_path).open_for_writing()
    Tracker(default_tracking_uri(store.root)).prepare_database()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*ARGUMENTS, "--storage", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout.readline().startswith("MLflow of ")
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_storage_that_takes_no_page_costs_a_warning(tmp_path):
    (tmp_path / "mlflow.html").mkdir()
    with pytest.warns(RuntimeWarning):
        write_link_page(tmp_path / "mlflow.db", "http://127.0.0.1:1")
