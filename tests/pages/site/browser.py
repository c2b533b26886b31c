"""A headless Chromium driven through a pipe: pages are opened one after the other, and everything
they say is kept."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]
FLAGS += [
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-first-run",
    "--disable-extensions",
]
TIMEOUT_S = 60.0


class PageLeft(Exception):
    """The page that was asked something was navigated away from before it answered."""


class Browser:
    """One tab. `said` has every error and warning of a console, exception and request that left the
    machine."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest, self._number, self._session = b"", 0, None
        self.said: list[str] = []
        self._loaded = ""  # the loader of the last document whose load event has been fired
        self._attach(self._call("Target.createTarget", url="about:blank")["targetId"])

    def _attach(self, target: str) -> None:
        """Makes a tab ours."""
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.setLifecycleEventsEnabled", enabled=True)

    def open(self, path: Path) -> float:
        """Opens a file; the seconds until its load event has ended, as the page measures them."""
        return self.visit(path.as_uri())

    def visit(self, address: str) -> float:
        """As `open`, of a file or of a server on the loopback address."""
        loader = self._call("Page.navigate", url=address)["loaderId"]
        deadline = time.monotonic() + TIMEOUT_S
        while self._loaded != loader:  # an event of the page before is not this one's
            assert time.monotonic() < deadline, f"{address} does not load"
            self._receive(0.2)
        return self.evaluate("performance.getEntriesByType('navigation')[0].duration") / 1000

    def window(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the page's window, and which colours it is asked for."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def paper(self, width: int, dark: bool) -> None:
        """Shows the page as a sheet of this width in pixels; an event before it as a print has."""
        self.window(width, 700, dark=dark)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        self._call("Emulation.setEmulatedMedia", media="print", features=[scheme])

    def pdf(self) -> bytes:
        """Prints the page as a person does, on the paper that it asks for."""
        return base64.b64decode(
            self._call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        )

    def evaluate(self, expression: str):
        """The JSON value of a JavaScript expression; a promise is waited for."""
        got = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait_for(self, expression: str) -> bool:
        """Whether an expression becomes true in time; a page that is being left answers nothing."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(PageLeft):
                if self.evaluate(expression):
                    return True
            self._receive(0.1)
        return False

    def click(self, element: str) -> None:
        """Clicks the element that a JavaScript expression finds; a tab that its link opens becomes
        ours."""
        assert self.wait_for(f"Boolean({element})"), element
        opens_tab = self.evaluate(f"({element}).target === '_blank'")
        before = self._tabs()
        self._call("Runtime.evaluate", expression=f"({element}).click()", userGesture=True)
        deadline = time.monotonic() + TIMEOUT_S
        while opens_tab:
            assert time.monotonic() < deadline, f"{element} opens no tab"
            if opened := self._tabs() - before:
                self._attach(opened.pop())
                self._call("Page.bringToFront")  # a page behind another draws nothing
                return
            self._receive(0.1)

    def _tabs(self) -> set[str]:
        found = self._call("Target.getTargets")["targetInfos"]
        return {target["targetId"] for target in found if target["type"] == "page"}

    def saved(self, element: str, folder: Path) -> Path:
        """Clicks an element that saves a file; the file, in an empty folder."""
        folder.mkdir()
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self.click(element)
        deadline = time.monotonic() + TIMEOUT_S
        while not (files := [file for file in folder.iterdir() if file.suffix != ".crdownload"]):
            assert time.monotonic() < deadline, f"{element} saves nothing"
            self._receive(0.1)
        return files[0]

    def close(self) -> None:
        self._session = None
        self._call("Browser.close")

    def _call(self, method: str, **params) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            answer = self._receive(0.5, self._number)
            if answer is not None:
                message = answer.get("error", {}).get("message", "")
                if "navigated" in message or "context was destroyed" in message:
                    raise PageLeft(message)
                assert "error" not in answer, answer["error"]
                return answer["result"]
        raise AssertionError(f"Chromium does not answer {method}")

    def _receive(self, timeout_s: float, number: int | None = None) -> dict | None:
        """Takes what has arrived; the answer to call `number` if it is among it."""
        if not select.select([self._from], [], [], timeout_s)[0]:
            return None
        *messages, self._rest = (self._rest + os.read(self._from, 2**20)).split(b"\0")
        answer = None
        for message in map(json.loads, messages):
            if message.get("id") == number and number is not None:
                answer = message
            self._note(message.get("method", ""), message.get("params", {}))
        return answer

    def _note(self, method: str, params: dict) -> None:
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded = params["loaderId"]
        if method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled"
            and params["type"] in ("error", "warning", "assert")
        ):
            self.said.append(json.dumps(params)[:500])
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(json.dumps(params["entry"])[:500])
        if method == "Network.requestWillBeSent" and params["request"]["url"].startswith(
            ("http:", "https:", "ws:")
        ):
            self.said.append(f"request to {params['request']['url']}")


@contextlib.contextmanager
def running_browser(folder: Path) -> Iterator[Browser]:
    """A Chromium of our own with its profile in `folder`; skips the test where there is none."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("no Chromium is installed")
    (read_end, to_browser), (from_browser, write_end) = os.pipe(), os.pipe()
    # Chromium reads from descriptor 3 and writes to 4.
    shell = f'exec "$@" 3<&{read_end} 4>&{write_end}'
    command = ["bash", "-c", shell, "-", chromium, *FLAGS, f"--user-data-dir={folder}/profile"]
    with (folder / "chromium.log").open("w") as log:
        process = subprocess.Popen(command, pass_fds=(read_end, write_end), stdout=log, stderr=log)
    os.close(read_end)
    os.close(write_end)
    try:
        browser = Browser(to_browser, from_browser)
        yield browser
        browser.close()
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
